//! Many random programs that order all their accesses: none is a violation, and each has the result of its operations
//! run one after the other.

use super::super::random::Random;
use super::*;

const PROGRAMS: u64 = 1000;
const OPERATIONS: usize = 24;
const BUFFERS: usize = 4;
const STREAMS: usize = 3;

/// The streams to wait for before a buffer is used: that of the last write, and those that have read since.
#[derive(Default, Clone)]
struct Users {
    writer: Option<usize>,
    readers: Vec<usize>,
}

struct Run {
    driver: Simulated,
    streams: Vec<StreamHandle>,
    buffers: Vec<DeviceAddress>,
    /// What each buffer holds when all is complete.
    model: Vec<Vec<u8>>,
    users: Vec<Users>,
}

impl Run {
    fn new(random: &mut Random, seed: u64) -> Run {
        let delay_us_max = if random.below(4) == 0 { 20 } else { 0 };
        let driver = Simulated::new(Spec { delay_us_max, ..Spec::prompt(1, seed) });
        let streams = (0..STREAMS).map(|_| driver.create_stream(0).unwrap()).collect();
        let buffers: Vec<DeviceAddress> = (0..BUFFERS).map(|_| driver.allocate(0, LEN).unwrap()).collect();
        let model = vec![vec![super::super::POISON; LEN]; BUFFERS];
        Run { driver, streams, buffers, model, users: vec![Users::default(); BUFFERS] }
    }

    /// Makes `stream` wait for all streams that it must not overtake.
    fn wait_for(&mut self, stream: usize, buffer: usize, writes: bool) {
        let users = &mut self.users[buffer];
        let mut others: Vec<usize> = users.writer.into_iter().collect();
        if writes {
            others.append(&mut users.readers);
            users.writer = Some(stream);
        } else {
            users.readers.push(stream);
        }
        for other in others.into_iter().filter(|other| *other != stream) {
            let event = self.driver.create_event(0, EventOptions::default()).unwrap();
            self.driver.record(0, event, self.streams[other]).unwrap();
            self.driver.wait(0, self.streams[stream], event).unwrap();
            // SAFETY: it is not used afterwards.
            unsafe { self.driver.destroy_event(0, event) };
        }
    }

    /// One operation of the program, and the same operation on the model.
    ///
    /// # Safety
    /// `host` is kept until all is complete.
    unsafe fn step(&mut self, random: &mut Random, host: &[u8]) {
        let stream = random.below(STREAMS as u64) as usize;
        let (to, from) = (random.below(BUFFERS as u64) as usize, random.below(BUFFERS as u64) as usize);
        let number = random.below(256) as u8;
        let (handle, at) = (self.streams[stream], self.buffers[to]);
        let done = match random.below(4) {
            0 => {
                self.wait_for(stream, to, true);
                self.model[to].fill(number);
                // SAFETY: the buffers live as long as the driver.
                unsafe { self.driver.fill(0, handle, at, number, LEN) }
            }
            1 if to != from => {
                self.wait_for(stream, from, false);
                self.wait_for(stream, to, true);
                self.model[to] = self.model[from].clone();
                // SAFETY: the buffers live as long as the driver.
                unsafe { self.driver.copy_across(0, handle, (0, at), (0, self.buffers[from]), LEN) }
            }
            2 => {
                self.wait_for(stream, to, true);
                let offset = number as usize;
                self.model[to].copy_from_slice(&host[offset..offset + LEN]);
                // SAFETY: as above, and the caller keeps the host's.
                unsafe { self.driver.copy_in(0, handle, at, host[offset..].as_ptr(), LEN) }
            }
            _ => {
                self.wait_for(stream, to, true);
                self.model[to].iter_mut().for_each(|byte| *byte = byte.wrapping_add(number));
                let kernel = self.driver.load(0, &ADD).unwrap();
                let arguments = [Argument::Address(at), Argument::U64(LEN as u64), Argument::U32(number.into())];
                let accesses = [false, true].map(|writes| Access { at, len: LEN, writes });
                // SAFETY: as above, and the caller keeps the host's.
                unsafe {
                    self.driver.launch(0, handle, kernel, Extent { blocks: 1, threads: 1 }, &arguments, &accesses)
                }
            }
        };
        done.unwrap_or_else(|error| panic!("{error}: {:?}", self.driver.violations()));
    }

    /// Copies all out, each in another stream, and frees it.
    fn finish(mut self, seed: u64) {
        let mut results = vec![vec![0; LEN]; BUFFERS];
        let mut events = Vec::new();
        for (buffer, result) in results.iter_mut().enumerate() {
            let stream = buffer % STREAMS;
            self.wait_for(stream, buffer, false);
            let event = self.driver.create_event(0, EventOptions { sleeps: buffer % 2 == 0, is_timed: false }).unwrap();
            // SAFETY: the results are kept until the events are complete.
            unsafe { self.driver.copy_out(0, self.streams[stream], result.as_mut_ptr(), self.buffers[buffer], LEN) }
                .unwrap();
            self.driver.record(0, event, self.streams[stream]).unwrap();
            events.push(event);
        }
        for event in events {
            self.driver.synchronize(0, event).unwrap();
        }
        assert_eq!(results, self.model, "program {seed}");
        for buffer in &self.buffers {
            // SAFETY: all that used it is complete.
            unsafe { self.driver.free(0, *buffer).unwrap() };
        }
        assert_eq!(self.driver.violations(), Vec::<String>::new(), "program {seed}");
    }
}

#[test]
fn programs_that_order_their_accesses_come_out_as_one_after_the_other() {
    let host: Vec<u8> = (0..LEN + 256).map(|number| number as u8).collect();
    for seed in 0..PROGRAMS {
        let mut random = Random::new(seed, 99);
        let mut run = Run::new(&mut random, seed);
        for _ in 0..OPERATIONS {
            // SAFETY: the bytes outlive the run.
            unsafe { run.step(&mut random, &host) };
        }
        run.finish(seed);
    }
}

#[test]
fn leaving_out_one_order_is_found_wherever_it_matters() {
    // Two streams write one buffer in turn; of the waits between them one is left out.
    for left_out in 0..5 {
        let rig = Rig::new(left_out);
        let at = rig.memory();
        let mut failed = None;
        for turn in 0..6u64 {
            let (own, other) = if turn % 2 == 0 { (rig.one, rig.two) } else { (rig.two, rig.one) };
            if turn > 0 && turn - 1 != left_out {
                rig.order(other, own).unwrap();
            }
            if rig.add(own, at, 1).is_err() {
                failed = Some(turn);
                break;
            }
        }
        assert_eq!(failed, Some(left_out + 1));
        rig.violation();
    }
}
