//! Tests of flights: how pieces are joined to copies, and batches on devices that keep no order by themselves.

use super::*;
use crate::kernels::{AFFINE, Affine};
use crate::simulated::{Simulated, Spec};
use crate::{Gpus, Settings};

fn host(bytes: &Slice) -> Piece {
    Piece::Host(bytes.clone())
}

/// The lengths of the runs, in pieces.
fn divided(pieces: &[Piece], is_pinned: impl Fn(&Slice) -> bool) -> Vec<usize> {
    runs(pieces, is_pinned).iter().map(|run| run.pieces.len()).collect()
}

#[test]
fn short_pieces_are_gathered_and_long_pinned_neighbours_go_as_one() {
    let long = Slice::copy_of(&vec![7; 4 * OWN_COPY_BYTES_MIN]);
    let (front, back) = (long.window(0..OWN_COPY_BYTES_MIN), long.window(OWN_COPY_BYTES_MIN..2 * OWN_COPY_BYTES_MIN));
    let apart = long.window(3 * OWN_COPY_BYTES_MIN..4 * OWN_COPY_BYTES_MIN);
    let (short, empty) = (Slice::copy_of(b"short"), Slice::empty());
    let cases: [(&[&Slice], bool, &[usize]); 8] = [
        (&[], true, &[]),
        (&[&empty], true, &[]),
        (&[&short, &short, &short], true, &[3]),
        (&[&front, &back], true, &[2]),
        (&[&front, &back, &apart], true, &[2, 1]),
        (&[&front, &apart], false, &[2]),
        (&[&short, &front, &back, &short, &short], true, &[1, 2, 2]),
        (&[&short, &empty, &apart, &empty, &short], true, &[2, 1, 2]),
    ];
    for (number, (pieces, pinned, expected)) in cases.into_iter().enumerate() {
        let pieces: Vec<Piece> = pieces.iter().map(|piece| host(piece)).collect();
        assert_eq!(divided(&pieces, |_| pinned), expected, "case {number}");
    }
    let halves = [host(&long.window(0..30_000)), host(&long.window(30_000..90_000))];
    assert_eq!(divided(&halves, |_| true), [2], "together they are long enough, as they lie");
}

#[test]
fn gathered_pieces_lie_one_behind_the_other() {
    let pieces = [host(&Slice::copy_of(b"one ")), host(&Slice::empty()), host(&Slice::copy_of(b"two"))];
    let mut bytes = [0; 7];
    gather(&pieces, &mut bytes);
    assert_eq!(&bytes, b"one two");
}

/// A host with two devices that check the order of their work.
fn host_of_two(seed: u64, delay_us_max: u64) -> (Arc<Simulated>, Arc<Gpus>) {
    let simulated = Arc::new(Simulated::new(Spec { delay_us_max, ..Spec::prompt(2, seed) }));
    let gpus = Gpus::with(simulated.clone(), &Settings { pinned_pool_bytes: 8 << 20, ..Settings::default() });
    (simulated, gpus)
}

fn numbers(values: impl IntoIterator<Item = f32>) -> Slice {
    let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
    Slice::copy_of(&bytes)
}

fn values(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect()
}

fn landed(flight: &mut Flight) {
    while !flight.is_complete().unwrap() {
        std::thread::yield_now();
    }
}

const DOUBLE: Affine = Affine { scale: 2.0, bias: 1.0 };

#[test]
fn batches_overlap_and_each_has_its_own_numbers() {
    for seed in 0..12 {
        let (simulated, gpus) = host_of_two(seed, 30);
        let gpu = gpus.get(0).unwrap();
        let lanes = Lanes::new(gpu, gpus.pinned()).unwrap();
        let kernel = gpu.kernel(&AFFINE).unwrap();
        let mut under_way = std::collections::VecDeque::new();
        for number in 0..20u16 {
            let pieces: Vec<Piece> =
                (0..3).map(|piece| host(&numbers((0..50 + piece).map(|at| f32::from(number * 10 + at))))).collect();
            let expected: Vec<f32> = pieces
                .iter()
                .flat_map(|piece| match piece {
                    Piece::Host(bytes) => values(bytes),
                    Piece::Device(_) => unreachable!("all are the host's"),
                })
                .map(|value| DOUBLE.apply(value))
                .collect();
            let mut flight = Flight::new(&lanes).unwrap();
            let input = flight.add_input(&pieces).unwrap();
            let output = flight.output(expected.len() * 4).unwrap();
            DOUBLE.launch(&mut flight, &kernel, input, output, expected.len()).unwrap();
            let fetched = flight.fetch(output, 0, expected.len() * 4).unwrap();
            flight.seal().unwrap();
            assert_eq!(flight.take_fetched(fetched).map(|bytes| bytes.len()), None, "not before it is complete");
            under_way.push_back((flight, fetched, expected));
            if under_way.len() == 3 {
                let (mut flight, fetched, expected) = under_way.pop_front().unwrap();
                landed(&mut flight);
                assert_eq!(values(&flight.take_fetched(fetched).unwrap()), expected, "seed {seed}");
                assert!(flight.take_fetched(fetched).is_none(), "once");
            }
        }
        // A dropped flight is waited for.
        drop(under_way);
        assert_eq!(simulated.violations(), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn what_lies_on_the_device_is_used_there_and_what_is_elsewhere_is_brought() {
    let (simulated, gpus) = host_of_two(3, 20);
    let (gpu, other) = (gpus.get(0).unwrap(), gpus.get(1).unwrap());
    let lanes = Lanes::new(gpu, gpus.pinned()).unwrap();
    let kernel = gpu.kernel(&AFFINE).unwrap();
    let here = gpu.put(&numbers([1.0, 2.0])).unwrap();
    let there = other.put(&numbers([3.0])).unwrap();

    let before = simulated.counts();
    let mut flight = Flight::new(&lanes).unwrap();
    let input = flight.add_input(&[Piece::Device(here.clone())]).unwrap();
    assert_eq!(flight.input_address(input), here.address());
    let output = flight.output(8).unwrap();
    DOUBLE.launch(&mut flight, &kernel, input, output, 2).unwrap();
    flight.seal().unwrap();
    landed(&mut flight);
    let made = flight.take_outputs().remove(0).unwrap();
    let after = simulated.counts();
    assert_eq!((before.copies_in, before.copies_across), (after.copies_in, after.copies_across), "nothing is copied");
    let mut seen = [0; 8];
    gpu.fetch(&made, &mut seen).unwrap();
    assert_eq!(values(&seen), [3.0, 5.0]);

    let mut flight = Flight::new(&lanes).unwrap();
    let pieces = [Piece::Device(made.clone()), host(&numbers([7.0])), Piece::Device(there.clone())];
    let input = flight.add_input(&pieces).unwrap();
    let output = flight.output(16).unwrap();
    DOUBLE.launch(&mut flight, &kernel, input, output, 4).unwrap();
    let target = {
        let buffer = other.allocate(8).unwrap();
        let at = buffer.address();
        // SAFETY: the buffer is this test's, and lives as long as its owner.
        unsafe { DeviceTarget::foreign(other.clone(), at, 8, Arc::new(buffer)) }
    };
    let fetched = flight.fetch(output, 4, 4).unwrap();
    flight.deliver(output, 8, 8, &target).unwrap();
    flight.seal().unwrap();
    landed(&mut flight);
    assert_eq!(values(&flight.take_fetched(fetched).unwrap()), [11.0]);
    let mut seen = [0; 8];
    other.fetch(&target.freeze(), &mut seen).unwrap();
    assert_eq!(values(&seen), [15.0, 7.0]);
    drop(flight);
    assert_eq!(simulated.violations(), Vec::<String>::new());
}

#[test]
fn long_pinned_inputs_go_as_they_lie_and_the_rest_as_one_copy() {
    let (simulated, gpus) = host_of_two(4, 0);
    let gpu = gpus.get(0).unwrap();
    let lanes = Lanes::new(gpu, gpus.pinned()).unwrap();
    let mut long = gpus.pinned().take(2 * OWN_COPY_BYTES_MIN).unwrap();
    // Small numbers, all different.
    for (at, number) in long.chunks_exact_mut(4).enumerate() {
        number.copy_from_slice(&(at as f32).to_le_bytes());
    }
    let long = long.freeze();
    let half = OWN_COPY_BYTES_MIN;
    let copies = |pieces: &[Piece]| {
        let before = simulated.counts().copies_in;
        let mut flight = Flight::new(&lanes).unwrap();
        let input = flight.add_input(pieces).unwrap();
        let (from, len) = (flight.input_address(input), flight.input_len(input));
        let output = flight.output(len).unwrap();
        flight.compute().unwrap();
        let identity = Affine { scale: 1.0, bias: 0.0 };
        identity.launch(&mut flight, &gpu.kernel(&AFFINE).unwrap(), input, output, len / 4).unwrap();
        let fetched = flight.fetch(output, 0, len).unwrap();
        flight.seal().unwrap();
        landed(&mut flight);
        let expected: Vec<u8> = pieces
            .iter()
            .flat_map(|piece| match piece {
                Piece::Host(bytes) => bytes.to_vec(),
                Piece::Device(_) => Vec::new(),
            })
            .collect();
        assert!(*flight.take_fetched(fetched).unwrap() == *expected, "at {from:?}");
        simulated.counts().copies_in - before
    };
    assert_eq!(copies(&[host(&long.window(0..half)), host(&long.window(half..2 * half))]), 1, "neighbours");
    let apart = [host(&long.window(half..2 * half)), host(&long.window(0..half))];
    assert_eq!(copies(&apart), 2, "each by itself");
    let parts: Vec<Piece> = (0..32).rev().map(|at| host(&long.window(at * 4096..(at + 1) * 4096))).collect();
    assert_eq!(copies(&parts), 1, "short ones are gathered, wherever they lie and however many they are");
    let mixed = [host(&long.window(0..10_000)), host(&Slice::copy_of(&vec![0; 60_000]))];
    assert_eq!(copies(&mixed), 1);
    let short: Vec<Piece> = (0..40).map(|number| host(&numbers([number as f32; 10]))).collect();
    assert_eq!(copies(&short), 1, "gathered");
    let plain = Slice::copy_of(&vec![9; 3 * half]);
    assert_eq!(copies(&[host(&plain), host(&numbers([1.0]))]), 1, "what is not pinned is gathered at any length");
    // The pool is too small for this one: it goes from plain memory.
    let large = Slice::copy_of(&vec![3; 9 << 20]);
    assert_eq!(copies(&[host(&large)]), 1);
    assert_eq!(simulated.violations(), Vec::<String>::new());
}

#[test]
fn a_failed_launch_is_returned_where_it_is_queried() {
    let (simulated, gpus) = host_of_two(5, 0);
    let gpu = gpus.get(0).unwrap();
    let lanes = Lanes::new(gpu, gpus.pinned()).unwrap();
    let kernel = gpu.kernel(&AFFINE).unwrap();
    simulated.fail_after(1, 719);
    let mut flight = Flight::new(&lanes).unwrap();
    let input = flight.add_input(&[host(&numbers([1.0]))]).unwrap();
    let output = flight.output(4).unwrap();
    let launched = DOUBLE.launch(&mut flight, &kernel, input, output, 1).and_then(|()| flight.seal());
    let error = launched.and_then(|()| {
        loop {
            if flight.is_complete()? {
                return Ok(());
            }
        }
    });
    assert_eq!(error.unwrap_err().code, 719);
    assert!(gpu.failure().is_some_and(|text| text.contains("719")));
    assert!(gpus.failure().is_some_and(|text| text.starts_with("GPU 0: ")));
    let again = Flight::new(&lanes).and_then(|mut flight| flight.add_input(&[host(&numbers([1.0]))]).map(drop));
    assert_eq!(again.unwrap_err().code, 719, "a device that failed takes nothing more");
}
