//! Measures a device: copies by size, launches, graphs, ways to wait, and ways to copy scattered bytes: `cargo bench
//! --bench gpu`.
//!
//! It prints Markdown for benches/results/gpu.md. Without a device it prints that and succeeds. `-- --simulated` runs
//! all of it a few times on the stand-in, to show that it works: those figures hold for no device. `-- --device=N`
//! takes another device than the first, `-- --rounds=N` another number of rounds than 200.

#![allow(unsafe_code)] // Work on a device needs promises: its memory outlives it, and no other code uses it.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nereid_gpu::driver::{
    Access, Argument, DeviceAddress, Driver, DriverError, EventHandle, EventOptions, Extent, GraphHandle, KernelHandle,
    Program, StreamHandle,
};
use nereid_gpu::simulated::{Simulated, Spec};
use nereid_gpu::{Gpus, Settings};
use rustix::time::{ClockId, clock_gettime};

type Outcome<T> = Result<T, DriverError>;

const ROUNDS: usize = 200;
const SIMULATED_ROUNDS: usize = 3;
/// Of each row, rounds that are not counted.
const WARM_UP: usize = 20;
const SIZES: [usize; 12] =
    [4, 64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20, 16 << 20];
const GRAPHS: [usize; 3] = [1, 10, 100];
/// Pieces, and bytes of each.
const SCATTERED: [(usize, usize); 9] = [
    (2, 1 << 10),
    (8, 1 << 10),
    (32, 1 << 10),
    (2, 16 << 10),
    (8, 16 << 10),
    (32, 16 << 10),
    (2, 256 << 10),
    (8, 256 << 10),
    (32, 256 << 10),
];
const BUFFER: usize = 16 << 20;
const GATHER_THREADS: u32 = 256;

/// Does nothing.
static NOTHING: Program = Program {
    name: "nereid_nothing",
    ptx: ".version 6.4\n.target sm_70\n.address_size 64\n.visible .entry nereid_nothing()\n{\n    ret;\n}\n",
    on_host: nothing_on_host,
};

unsafe fn nothing_on_host(_: &[Argument]) {}

/// Block `b` copies the piece that is the `b`th of a table to the `b`th place: all of a length, in units of 16 bytes.
static GATHER: Program = Program { name: "nereid_gather", ptx: GATHER_TEXT, on_host: gather_on_host };

const GATHER_TEXT: &str = ".version 6.4
.target sm_70
.address_size 64
.visible .entry nereid_gather(.param .u64 param_to, .param .u64 param_table, .param .u32 param_units)
{
    .reg .pred %is_past;
    .reg .b32 %block, %unit, %threads, %units, %a, %b, %c, %d;
    .reg .b64 %to, %table, %offset, %from, %source, %target;

    ld.param.u64 %to, [param_to];
    ld.param.u64 %table, [param_table];
    ld.param.u32 %units, [param_units];
    mov.u32 %block, %ctaid.x;
    mov.u32 %unit, %tid.x;
    mov.u32 %threads, %ntid.x;
    mul.wide.u32 %offset, %block, 8;
    add.s64 %table, %table, %offset;
    ld.global.u64 %from, [%table];
    mul.wide.u32 %offset, %block, %units;
    shl.b64 %offset, %offset, 4;
    add.s64 %to, %to, %offset;
next:
    setp.ge.u32 %is_past, %unit, %units;
    @%is_past bra end;
    mul.wide.u32 %offset, %unit, 16;
    add.s64 %source, %from, %offset;
    add.s64 %target, %to, %offset;
    ld.global.v4.u32 {%a, %b, %c, %d}, [%source];
    st.global.v4.u32 [%target], {%a, %b, %c, %d};
    add.u32 %unit, %unit, %threads;
    bra next;
end:
    ret;
}
";

/// The blocks are not among the arguments: the table ends with a zero.
unsafe fn gather_on_host(arguments: &[Argument]) {
    let &[Argument::Address(to), Argument::Address(table), Argument::U32(units)] = arguments else { return };
    let len = units as usize * 16;
    for piece in 0.. {
        // SAFETY: by contract the table, the memory that it names, and as many places are this kernel's.
        unsafe {
            let from = std::ptr::with_exposed_provenance::<u64>(table.0 as usize).add(piece).read();
            if from == 0 {
                return;
            }
            let to = std::ptr::with_exposed_provenance_mut::<u8>(to.0 as usize).add(piece * len);
            std::ptr::copy_nonoverlapping(std::ptr::with_exposed_provenance::<u8>(from as usize), to, len);
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| arguments.iter().find_map(|argument| argument.strip_prefix(name)?.parse().ok());
    let is_simulated = arguments.iter().any(|argument| argument == "--simulated");
    let simulated = is_simulated.then(|| Arc::new(Simulated::new(Spec::prompt(1, 7))));
    let gpus = match &simulated {
        Some(simulated) => Gpus::with(simulated.clone(), &Settings::default()),
        None => Gpus::discover(&Settings::default()),
    };
    let ordinal: usize = value("--device=").unwrap_or_default();
    let gpu = i32::try_from(ordinal).ok().and_then(|id| gpus.get(id));
    let (Some(driver), Some(gpu)) = (gpus.driver(), gpu) else {
        println!("SKIPPED: there is no GPU {ordinal} here, and nothing was measured");
        return ExitCode::SUCCESS;
    };
    let rounds = value("--rounds=").unwrap_or(if is_simulated { SIMULATED_ROUNDS } else { ROUNDS }).max(1);
    let description = gpu.description();
    let (name, capability) = (&description.name, description.capability());
    println!("{name}, compute capability {capability:.1}, {}, {rounds} rounds\n", driver.name());
    let done = Device::new(driver, ordinal, rounds).and_then(|device| device.measure());
    let violations = simulated.map(|simulated| simulated.violations()).unwrap_or_default();
    match (done, violations.as_slice()) {
        (Ok(()), []) => ExitCode::SUCCESS,
        (done, violations) => {
            eprintln!("{done:?} {violations:?}");
            ExitCode::FAILURE
        }
    }
}

/// One device, with a stream and memory for everything.
struct Device<'a> {
    driver: &'a Arc<dyn Driver>,
    ordinal: usize,
    rounds: usize,
    stream: StreamHandle,
    polled: EventHandle,
    slept: EventHandle,
    memory: DeviceAddress,
    pinned: *mut u8,
    /// A part of the same length for gathered bytes.
    staging: *mut u8,
    nothing: KernelHandle,
    gather: KernelHandle,
}

/// How the end of work is waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiting {
    Polling,
    Sleeping,
}

/// Times of the rounds of one row.
#[derive(Default)]
struct Times {
    enqueued_ns: Vec<u64>,
    complete_ns: Vec<u64>,
    cpu_ns: Vec<u64>,
}

impl<'a> Device<'a> {
    fn new(driver: &'a Arc<dyn Driver>, ordinal: usize, rounds: usize) -> Outcome<Device<'a>> {
        let sleeping = EventOptions { sleeps: true, is_timed: false };
        Ok(Device {
            driver,
            ordinal,
            rounds,
            stream: driver.create_stream(ordinal)?,
            polled: driver.create_event(ordinal, EventOptions::default())?,
            slept: driver.create_event(ordinal, sleeping)?,
            memory: driver.allocate(ordinal, BUFFER)?,
            pinned: driver.allocate_pinned(BUFFER)?,
            staging: driver.allocate_pinned(BUFFER)?,
            nothing: driver.load(ordinal, &NOTHING)?,
            gather: driver.load(ordinal, &GATHER)?,
        })
    }

    fn measure(&self) -> Outcome<()> {
        self.copies()?;
        self.launches()?;
        self.waits()?;
        self.scattered()
    }

    /// Times rounds of some work: until it was enqueued, until it was complete, and the CPU time of the thread.
    fn time(&self, waiting: Waiting, mut enqueue: impl FnMut() -> Outcome<()>) -> Outcome<Times> {
        let mut times = Times::default();
        for round in 0..self.rounds + WARM_UP.min(self.rounds) {
            let (cpu, begin) = (cpu_ns(), Instant::now());
            enqueue()?;
            let enqueued = begin.elapsed();
            let event = if waiting == Waiting::Polling { self.polled } else { self.slept };
            self.driver.record(self.ordinal, event, self.stream)?;
            match waiting {
                Waiting::Polling => while !self.driver.query(self.ordinal, event)? {},
                Waiting::Sleeping => self.driver.synchronize(self.ordinal, event)?,
            }
            let (complete, cpu) = (begin.elapsed(), cpu_ns().saturating_sub(cpu));
            if round >= WARM_UP.min(self.rounds) {
                times.enqueued_ns.push(nanoseconds(enqueued));
                times.complete_ns.push(nanoseconds(complete));
                times.cpu_ns.push(cpu);
            }
        }
        [&mut times.enqueued_ns, &mut times.complete_ns, &mut times.cpu_ns]
            .into_iter()
            .for_each(|all| all.sort_unstable());
        Ok(times)
    }

    fn copies(&self) -> Outcome<()> {
        print_head("Copies");
        let mut pageable = vec![1u8; BUFFER];
        let pageable = pageable.as_mut_ptr();
        for (kind, host) in [("pinned", self.pinned), ("pageable", pageable)] {
            for len in SIZES {
                // SAFETY: all of it lives to the end, and each round is complete before the next begins.
                let times = self.time(Waiting::Polling, || unsafe {
                    self.driver.copy_in(self.ordinal, self.stream, self.memory, host, len)
                })?;
                print_row(&format!("in, {kind}, {}", bytes(len)), &times, len);
            }
            for len in SIZES {
                // SAFETY: as above.
                let times = self.time(Waiting::Polling, || unsafe {
                    self.driver.copy_out(self.ordinal, self.stream, host, self.memory, len)
                })?;
                print_row(&format!("out, {kind}, {}", bytes(len)), &times, len);
            }
        }
        Ok(())
    }

    fn launch_nothing(&self) -> Outcome<()> {
        let extent = Extent { blocks: 1, threads: 1 };
        // SAFETY: the kernel takes nothing and touches nothing.
        unsafe { self.driver.launch(self.ordinal, self.stream, self.nothing, extent, &[], &[]) }
    }

    fn launches(&self) -> Outcome<()> {
        print_head("Launches");
        print_row("an event alone", &self.time(Waiting::Polling, || Ok(()))?, 0);
        for count in GRAPHS {
            let times = self.time(Waiting::Polling, || (0..count).try_for_each(|_| self.launch_nothing()))?;
            print_row(&format!("{count} empty kernels, one by one"), &times, 0);
            let graph = self.record(count)?;
            // SAFETY: the graph names no memory, and is destroyed after its last launch is complete.
            let times =
                self.time(Waiting::Polling, || unsafe { self.driver.launch_graph(self.ordinal, self.stream, graph) })?;
            // SAFETY: as above.
            unsafe { self.driver.destroy_graph(self.ordinal, graph) };
            print_row(&format!("{count} empty kernels, one graph"), &times, 0);
        }
        Ok(())
    }

    fn record(&self, count: usize) -> Outcome<GraphHandle> {
        self.driver.begin_capture(self.ordinal, self.stream)?;
        (0..count).try_for_each(|_| self.launch_nothing())?;
        self.driver.end_capture(self.ordinal, self.stream)
    }

    fn waits(&self) -> Outcome<()> {
        print_head("Waiting");
        for len in [4 << 10, 1 << 20, 16 << 20] {
            for (name, waiting) in [("looking", Waiting::Polling), ("sleeping", Waiting::Sleeping)] {
                // SAFETY: as for copies.
                let times = self.time(waiting, || unsafe {
                    self.driver.copy_in(self.ordinal, self.stream, self.memory, self.pinned, len)
                })?;
                print_row(&format!("{name} until {} are in", bytes(len)), &times, len);
            }
        }
        Ok(())
    }

    fn scattered(&self) -> Outcome<()> {
        print_head("Scattered pieces of pinned memory");
        for (count, len) in SCATTERED {
            // Apart from each other, so that nothing merges them.
            let places: Vec<*mut u8> =
                (0..count).map(|piece| self.pinned.wrapping_add(piece * 2 * len % BUFFER)).collect();
            let what = format!("{count} of {}", bytes(len));
            let times = self.time(Waiting::Polling, || {
                places.iter().enumerate().try_for_each(|(piece, from)| {
                    let to = self.memory.offset(piece * len);
                    // SAFETY: as for copies.
                    unsafe { self.driver.copy_in(self.ordinal, self.stream, to, *from, len) }
                })
            })?;
            print_row(&format!("{what}, a copy each"), &times, count * len);
            let times = self.time(Waiting::Polling, || {
                for (piece, from) in places.iter().enumerate() {
                    // SAFETY: both are this thread's, apart from each other, and no work is under way.
                    unsafe { std::ptr::copy_nonoverlapping(*from, self.staging.add(piece * len), len) };
                }
                // SAFETY: as for copies.
                unsafe { self.driver.copy_in(self.ordinal, self.stream, self.memory, self.staging, count * len) }
            })?;
            print_row(&format!("{what}, gathered by the host, one copy"), &times, count * len);
            let times = self.time(Waiting::Polling, || self.launch_gather(&places, len))?;
            print_row(&format!("{what}, gathered by a kernel"), &times, count * len);
        }
        Ok(())
    }

    /// The table goes into pinned memory too, where the kernel reads it.
    fn launch_gather(&self, places: &[*mut u8], len: usize) -> Outcome<()> {
        let table = self.staging.cast::<u64>();
        for (piece, place) in places.iter().map(|place| place.expose_provenance() as u64).chain([0]).enumerate() {
            // SAFETY: the table is this thread's, long enough, and no work is under way.
            unsafe { table.add(piece).write(place) };
        }
        let address = |at: *mut u8| DeviceAddress(at.expose_provenance() as u64);
        let table = DeviceAddress(table.expose_provenance() as u64);
        let units = u32::try_from(len / 16).unwrap_or(u32::MAX);
        let arguments = [Argument::Address(self.memory), Argument::Address(table), Argument::U32(units)];
        let mut accesses: Vec<Access> =
            places.iter().map(|place| Access { at: address(*place), len, writes: false }).collect();
        accesses.push(Access { at: table, len: (places.len() + 1) * 8, writes: false });
        accesses.push(Access { at: self.memory, len: places.len() * len, writes: true });
        let extent = Extent { blocks: u32::try_from(places.len()).unwrap_or(u32::MAX), threads: GATHER_THREADS };
        // SAFETY: the kernel takes these, and the accesses name all that they lead to.
        unsafe { self.driver.launch(self.ordinal, self.stream, self.gather, extent, &arguments, &accesses) }
    }
}

impl Drop for Device<'_> {
    fn drop(&mut self) {
        // SAFETY: every round was waited for; after an error no work runs any more.
        unsafe {
            self.driver.destroy_event(self.ordinal, self.polled);
            self.driver.destroy_event(self.ordinal, self.slept);
            self.driver.destroy_stream(self.ordinal, self.stream);
            let _ = self.driver.free(self.ordinal, self.memory);
            let _ = self.driver.free_pinned(self.pinned);
            let _ = self.driver.free_pinned(self.staging);
        }
    }
}

fn print_head(title: &str) {
    println!("## {title}\n");
    println!("| | asked for, µs | complete, µs: median | p99 | most | CPU, µs | GB/s |\n|---|---|---|---|---|---|---|");
}

fn print_row(what: &str, times: &Times, len: usize) {
    let us = |all: &[u64], share: f64| {
        let place = ((all.len() as f64 * share) as usize).min(all.len().saturating_sub(1));
        all.get(place).map_or(f64::NAN, |ns| *ns as f64 / 1000.0)
    };
    let (median, enqueued) = (us(&times.complete_ns, 0.5), us(&times.enqueued_ns, 0.5));
    let (p99, most, cpu) = (us(&times.complete_ns, 0.99), us(&times.complete_ns, 1.0), us(&times.cpu_ns, 0.5));
    let rate = if len > 0 { format!("{:.2}", len as f64 / median / 1000.0) } else { String::new() };
    println!("| {what} | {enqueued:.1} | {median:.1} | {p99:.1} | {most:.1} | {cpu:.1} | {rate} |");
}

fn bytes(len: usize) -> String {
    match len {
        _ if len >= 1 << 20 => format!("{} MiB", len >> 20),
        _ if len >= 1 << 10 => format!("{} KiB", len >> 10),
        _ => format!("{len} B"),
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Of this thread.
fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or_default()
}
