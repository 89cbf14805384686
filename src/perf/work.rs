//! Which request is next: the templates in turn, or the next step of a sequence that has none in flight.

use std::collections::VecDeque;

use super::plan::{Sequences, Work};
use super::request::SequenceMark;
use super::schedule::{Random, Share};

/// What to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    pub template: usize,
    /// Place among the sequences at a time, and the flags of the request in its sequence.
    pub sequence: Option<(usize, SequenceMark)>,
}

/// One thread's part of the work.
#[derive(Debug)]
pub struct Picker {
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Templates { next: usize, step: usize, count: usize, restarts: bool },
    Sequences(Box<Running>),
}

#[derive(Debug)]
struct Running {
    sequences: Sequences,
    share: Share,
    /// Numbers of the first template and of the templates of each stream.
    streams: Vec<(usize, usize)>,
    places: Vec<Option<Sequence>>,
    /// Places with no request in flight, the longest idle first.
    idle: VecDeque<usize>,
    /// Places that may be used.
    wanted: usize,
    begun: u64,
    random: Random,
    /// No sequence begins, and those that run end with their next request.
    ending: bool,
    ended: u64,
}

#[derive(Debug, Clone, Copy)]
struct Sequence {
    id: u64,
    stream: usize,
    sent: usize,
    length: usize,
}

impl Picker {
    pub fn new(work: &Work, share: Share, seed: u64) -> Picker {
        let mut first = 0;
        let mut streams = Vec::with_capacity(work.streams.len());
        for stream in work.streams.iter().filter(|stream| !stream.is_empty()) {
            streams.push((first, stream.len()));
            first += stream.len();
        }
        let kind = match &work.sequences {
            None => {
                let next = share.thread % first.max(1);
                let restarts = work.recording.is_some();
                Kind::Templates { next, step: share.threads, count: first.max(1), restarts }
            }
            Some(sequences) => Kind::Sequences(Box::new(Running {
                sequences: sequences.clone(),
                share,
                streams,
                places: Vec::new(),
                idle: VecDeque::new(),
                wanted: 0,
                begun: 0,
                random: Random::new(seed ^ share.thread as u64),
                ending: false,
                ended: 0,
            })),
        };
        Picker { kind }
    }

    /// A load begins, with so many sequences at a time. `share`: of the threads that have something to do in it.
    pub fn begin(&mut self, at_once: usize, share: Share) {
        let running = match &mut self.kind {
            Kind::Sequences(running) => running,
            // The times of recorded requests begin again, too, and are those of the same share.
            Kind::Templates { next, step, count, restarts: true } => {
                (*next, *step) = (share.thread % *count, share.threads);
                return;
            }
            Kind::Templates { restarts: false, .. } => return,
        };
        running.ending = false;
        running.wanted = at_once;
        for place in running.places.len()..at_once {
            running.places.push(None);
            running.idle.push_back(place);
        }
        running.idle.retain(|place| *place < at_once);
        for place in 0..at_once {
            if !running.idle.contains(&place) {
                running.idle.push_back(place);
            }
        }
    }

    /// Lets sequences end.
    pub fn finish(&mut self) {
        if let Kind::Sequences(running) = &mut self.kind {
            running.ending = true;
        }
    }

    /// Sequences that have begun and not ended.
    pub fn open(&self) -> usize {
        match &self.kind {
            Kind::Templates { .. } => 0,
            Kind::Sequences(running) => running.places.iter().flatten().count(),
        }
    }

    /// Sequences that ended well since the last time.
    pub fn take_ended(&mut self) -> u64 {
        match &mut self.kind {
            Kind::Templates { .. } => 0,
            Kind::Sequences(running) => std::mem::take(&mut running.ended),
        }
    }

    /// The next request; None if every sequence has one in flight.
    pub fn pick(&mut self) -> Option<Pick> {
        match &mut self.kind {
            Kind::Templates { next, step, count, .. } => {
                let template = *next;
                *next = (*next + *step) % *count;
                Some(Pick { template, sequence: None })
            }
            Kind::Sequences(running) => running.pick(),
        }
    }

    /// The request of that place is over, well or not.
    pub fn ended(&mut self, place: usize, mark: SequenceMark, good: bool) {
        if let Kind::Sequences(running) = &mut self.kind {
            running.over(place, mark, good);
        }
    }
}

impl Running {
    fn pick(&mut self) -> Option<Pick> {
        let at = match self.ending {
            false => 0,
            true => self.idle.iter().position(|place| self.places.get(*place).is_some_and(Option::is_some))?,
        };
        let place = self.idle.remove(at)?;
        let mut sequence = match self.places.get(place).copied().flatten() {
            Some(sequence) => sequence,
            None => self.start(),
        };
        let (first, len) = self.streams.get(sequence.stream).copied().unwrap_or((0, 1));
        let template = first + sequence.sent % len.max(1);
        let start = sequence.sent == 0;
        sequence.sent += 1;
        let end = sequence.sent >= sequence.length || self.ending;
        if let Some(slot) = self.places.get_mut(place) {
            *slot = Some(sequence);
        }
        Some(Pick { template, sequence: Some((place, SequenceMark { id: sequence.id, start, end })) })
    }

    fn start(&mut self) -> Sequence {
        let Sequences { first_id, end_id, length, length_variation_percent, .. } = self.sequences;
        let (thread, threads) = (self.share.thread as u64, self.share.threads.max(1) as u64);
        // Each thread has every so manyth id to itself, at least as many as sequences run here.
        let ids = end_id.map(|end| (end.saturating_sub(first_id) / threads).max(1));
        let mut number;
        let id = loop {
            let count = self.begun;
            self.begun += 1;
            number = count.wrapping_mul(threads).wrapping_add(thread);
            let own = ids.map_or(count, |ids| count % ids);
            let id = first_id.wrapping_add(own.wrapping_mul(threads)).wrapping_add(thread);
            let open = self.places.iter().flatten().any(|sequence| sequence.id == id);
            if !open || ids.is_some_and(|ids| ids <= self.wanted as u64 && count >= ids) {
                break id;
            }
        };
        let stream = (number % self.streams.len().max(1) as u64) as usize;
        let mean = length.unwrap_or_else(|| self.streams.get(stream).map_or(1, |(_, len)| *len));
        // Evenly from the mean less the variation to the mean and the variation.
        let spread = length_variation_percent / 100.0 * (2.0 * self.random.open_unit() - 1.0);
        let length = (mean as f64 * (1.0 + spread)).round().max(1.0) as usize;
        Sequence { id, stream, sent: 0, length }
    }

    fn over(&mut self, place: usize, mark: SequenceMark, good: bool) {
        if mark.end || !good {
            // After a failure the state of the model is unknown: the next sequence takes the place.
            if let Some(slot) = self.places.get_mut(place) {
                *slot = None;
            }
            self.ended += u64::from(mark.end && good);
        }
        if place < self.wanted {
            self.idle.push_back(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Endpoint, Protocol, Recording, Target, Template, tests::plan};

    fn work(streams: &[usize], sequences: Option<Sequences>) -> Work {
        let endpoint = Endpoint::Unix("/".into());
        let mut work = plan(Target { endpoint, tls: None, protocol: Protocol::Http }).work;
        work.streams = streams.iter().map(|len| vec![Template::default(); *len]).collect();
        work.sequences = sequences;
        work
    }

    fn sequences(length: Option<usize>, variation: f64, end_id: Option<u64>) -> Option<Sequences> {
        Some(Sequences { at_once: 2, length, length_variation_percent: variation, first_id: 10, end_id })
    }

    const ALONE: Share = Share { thread: 0, threads: 1 };

    #[test]
    fn templates_take_turns_over_all_threads() {
        let work = work(&[2, 0, 1], None);
        let picks = |share| {
            let mut picker = Picker::new(&work, share, 1);
            (0..5).map(|_| picker.pick().unwrap().template).collect::<Vec<_>>()
        };
        assert_eq!(picks(ALONE), [0, 1, 2, 0, 1]);
        assert_eq!(picks(Share { thread: 0, threads: 2 }), [0, 2, 1, 0, 2]);
        assert_eq!(picks(Share { thread: 1, threads: 2 }), [1, 0, 2, 1, 0]);
    }

    fn recording() -> Recording {
        let (file, contents) = ("f".into(), nereid_recording::Contents::Zero);
        Recording { file, used: 3, made: 0, contents, left_out: Default::default(), note: None }
    }

    #[test]
    fn each_load_begins_with_the_first_recorded_request() {
        let mut work = work(&[3], None);
        for (recording, expected) in [(Some(recording()), [0, 1, 0, 1]), (None, [0, 1, 2, 0])] {
            work.recording = recording;
            let mut picker = Picker::new(&work, ALONE, 1);
            let mut picks = Vec::new();
            for _ in 0..2 {
                picker.begin(0, ALONE);
                picks.extend((0..2).filter_map(|_| picker.pick()).map(|pick| pick.template));
            }
            assert_eq!(picks, expected);
        }
    }

    #[test]
    fn recorded_requests_take_turns_over_the_threads_that_work() {
        let mut work = work(&[3], None);
        work.recording = Some(recording());
        let mut picker = Picker::new(&work, Share { thread: 0, threads: 2 }, 1);
        let mut picks = |share| {
            picker.begin(0, share);
            (0..3).map(|_| picker.pick().unwrap().template).collect::<Vec<_>>()
        };
        assert_eq!(picks(ALONE), [0, 1, 2]);
        assert_eq!(picks(Share { thread: 0, threads: 2 }), [0, 2, 1]);
        assert_eq!(picks(Share { thread: 1, threads: 2 }), [1, 0, 2]);
    }

    #[test]
    fn a_sequence_has_one_request_in_flight_and_its_marks() {
        let mut picker = Picker::new(&work(&[1, 3], sequences(None, 0.0, None)), ALONE, 1);
        picker.begin(2, ALONE);
        let mark = |pick: Pick| pick.sequence.unwrap();
        let first = picker.pick().unwrap();
        let second = picker.pick().unwrap();
        assert_eq!(picker.pick(), None);
        assert_eq!((first.template, mark(first).1), (0, SequenceMark { id: 10, start: true, end: true }));
        assert_eq!((second.template, mark(second).1), (1, SequenceMark { id: 11, start: true, end: false }));
        picker.ended(mark(second).0, mark(second).1, true);
        let third = picker.pick().unwrap();
        assert_eq!((third.template, mark(third).1), (2, SequenceMark { id: 11, start: false, end: false }));
        picker.ended(mark(first).0, mark(first).1, true);
        assert_eq!((picker.take_ended(), picker.open()), (1, 1));
        let next = picker.pick().unwrap();
        assert_eq!(mark(next).1.id, 12);
        picker.finish();
        picker.ended(mark(third).0, mark(third).1, true);
        let last = picker.pick().unwrap();
        assert_eq!((last.template, mark(last).1), (3, SequenceMark { id: 11, start: false, end: true }));
        picker.ended(mark(last).0, mark(last).1, true);
        assert_eq!(picker.pick(), None, "no sequence begins any more");
        picker.ended(mark(next).0, mark(next).1, false);
        assert_eq!((picker.open(), picker.take_ended()), (0, 1));
        picker.begin(1, ALONE);
        assert_eq!(mark(picker.pick().unwrap()).1, SequenceMark { id: 13, start: true, end: false });
        assert_eq!(picker.pick(), None);
    }

    #[test]
    fn a_failure_ends_its_sequence() {
        let mut picker = Picker::new(&work(&[1], sequences(Some(5), 0.0, Some(12))), ALONE, 1);
        picker.begin(1, ALONE);
        let mut ids = Vec::new();
        for good in [true, false, true, false, false] {
            let (place, mark) = picker.pick().unwrap().sequence.unwrap();
            ids.push((mark.id, mark.start));
            picker.ended(place, mark, good);
        }
        assert_eq!(ids, [(10, true), (10, false), (11, true), (11, false), (10, true)], "ids come again");
    }

    #[test]
    fn lengths_vary_evenly_around_their_mean_and_threads_share_no_id() {
        let work = work(&[1], sequences(Some(20), 50.0, None));
        let mut lengths = Vec::new();
        let mut ids = Vec::new();
        for thread in 0..2 {
            let share = Share { thread, threads: 2 };
            let mut picker = Picker::new(&work, share, 7);
            picker.begin(1, share);
            let mut length = 0;
            while lengths.len() < 2000 * (thread + 1) {
                let (place, mark) = picker.pick().unwrap().sequence.unwrap();
                length += 1;
                if mark.end {
                    ids.push(mark.id);
                    lengths.push(std::mem::take(&mut length));
                }
                picker.ended(place, mark, true);
            }
        }
        assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&10), Some(&30)));
        let mean = lengths.iter().sum::<i32>() as f64 / lengths.len() as f64;
        assert!((mean - 20.0).abs() < 0.5, "{mean}");
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), lengths.len());
    }
}
