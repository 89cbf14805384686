//! Tests of the real driver on GPU 0. They are ignored where `cargo test` runs; benches/gpu_first_hour runs each in a
//! process of its own on a host that has a GPU.

use std::collections::VecDeque;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::kernels::{AFFINE, Affine};
use crate::{DeviceTarget, Flight, Gpus, Imported, Lanes, Piece, Settings};
use nereid_memory::Slice;

const HANDLE: &str = "NEREID_TEST_IPC_HANDLE";
const DOUBLE: Affine = Affine { scale: 2.0, bias: 1.0 };

/// Writes to address 0.
static WILD: Program = Program {
    name: "nereid_wild",
    ptx: ".version 6.4\n.target sm_70\n.address_size 64\n.visible .entry nereid_wild()\n{\n    .reg .b64 %at;\n    \
          .reg .b32 %one;\n    mov.u64 %at, 0;\n    mov.u32 %one, 1;\n    st.global.u32 [%at], %one;\n    ret;\n}\n\0",
    on_host: nothing,
};
/// Text that no compiler accepts.
static BROKEN: Program =
    Program { name: "broken", ptx: ".version 6.4\n.target sm_70\n.address_size 64\nbroken\n\0", on_host: nothing };

unsafe fn nothing(_: &[Argument]) {}

fn host() -> Arc<Gpus> {
    let gpus = Gpus::discover(&Settings::default());
    assert!(gpus.get(0).is_some() && !gpus.is_simulated(), "a GPU that the driver names");
    gpus
}

fn numbers(count: usize, from: usize) -> Vec<f32> {
    (0..count).map(|at| (from + at) as f32 / 8.0).collect()
}

fn bytes_of(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

#[test]
#[ignore = "needs a GPU: benches/gpu_first_hour runs it"]
fn a_device_describes_itself() {
    let gpus = host();
    let gpu = gpus.get(0).unwrap();
    let described = gpu.description();
    println!("{} of {}: {described:?}, memory {:?}", gpu.id(), gpu.driver().name(), gpu.memory());
    assert!(described.uuid.starts_with("GPU-") && described.uuid.len() == 40, "{described:?}");
    assert!(described.compute_capability >= (5, 0) && described.pci_address.len() == 12, "{described:?}");
    let (free, total) = gpu.memory().unwrap();
    assert!(0 < free && free <= total && total == described.memory_bytes, "{free} of {total}");
    assert_eq!(gpu.allocate(usize::MAX / 2).unwrap_err().code, DriverError::OUT_OF_MEMORY);
    let error = gpu.kernel(&BROKEN).unwrap_err();
    println!("{error}");
    assert_eq!(error.code, 218);
    assert_eq!(gpus.failure(), None, "a program that does not compile breaks nothing");
}

#[test]
#[ignore = "needs a GPU: benches/gpu_first_hour runs it"]
fn bytes_come_back_as_they_went() {
    let gpus = host();
    let gpu = gpus.get(0).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8usize {
            scope.spawn(move || {
                for turn in 0..200usize {
                    let len = (1usize << (turn % 23)) + thread;
                    let bytes: Vec<u8> = (0..len).map(|at| (at * 31 + turn * 7 + thread) as u8).collect();
                    let slice = gpu.put(&bytes).unwrap();
                    let copy = gpu.copy_here(&slice).unwrap();
                    let mut back = vec![0; len];
                    gpu.fetch(&copy, &mut back).unwrap();
                    assert!(back == bytes, "{len} bytes");
                    let owner = gpu.allocate(len).unwrap();
                    // SAFETY: the memory is the owner's alone.
                    let target = unsafe { DeviceTarget::foreign(gpu.clone(), owner.address(), len, Arc::new(owner)) };
                    let half = len / 2;
                    gpu.put_at(&target.part(0, half), &bytes[half..half * 2]).unwrap();
                    gpu.copy_to(&target.part(half, len - half), &slice.window(0..len - half)).unwrap();
                    gpu.fetch(&target.freeze(), &mut back).unwrap();
                    assert!(back[..half] == bytes[half..half * 2] && back[half..] == bytes[..len - half]);
                }
            });
        }
    });
    assert_eq!(gpu.pool_usage().0, 0);
}

#[test]
#[ignore = "needs a GPU: benches/gpu_first_hour runs it"]
fn batches_in_flight_have_their_own_numbers() {
    let gpus = host();
    let gpu = gpus.get(0).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let gpus = &gpus;
            scope.spawn(move || {
                let lanes = Lanes::new(gpu, gpus.pinned()).unwrap();
                let kernel = gpu.kernel(&AFFINE).unwrap();
                let mut in_flight = VecDeque::new();
                for number in 0..3_000usize {
                    let sizes = [1, 7 + number % 50, [3, 400, 20_000, 100_000][(number / 40) % 4]];
                    let pieces: Vec<Vec<f32>> =
                        sizes.iter().map(|size| numbers(*size, (thread * 5_000 + number) % 10_000)).collect();
                    let expected: Vec<f32> = pieces.concat().iter().map(|value| DOUBLE.apply(*value)).collect();
                    let as_pieces: Vec<Piece> =
                        pieces.iter().map(|piece| Piece::Host(Slice::copy_of(&bytes_of(piece)))).collect();
                    let mut flight = Flight::new(&lanes).unwrap();
                    let input = flight.add_input(&as_pieces).unwrap();
                    let output = flight.output(expected.len() * 4).unwrap();
                    DOUBLE.launch(&mut flight, &kernel, input, output, expected.len()).unwrap();
                    let fetched = flight.fetch(output, 0, expected.len() * 4).unwrap();
                    flight.seal().unwrap();
                    in_flight.push_back((flight, fetched, expected));
                    if in_flight.len() == 3 {
                        let (mut flight, fetched, expected) = in_flight.pop_front().unwrap();
                        while !flight.is_complete().unwrap() {
                            std::thread::yield_now();
                        }
                        assert!(*flight.take_fetched(fetched).unwrap() == *bytes_of(&expected), "{number}");
                    }
                }
            });
        }
    });
    assert_eq!((gpus.failure(), gpu.pool_usage().0), (None, 0));
}

#[test]
#[ignore = "needs a GPU: benches/gpu_first_hour runs it"]
fn a_recording_runs_as_often_as_it_is_launched() {
    let gpus = host();
    let gpu = gpus.get(0).unwrap();
    let lanes = Lanes::new(gpu, gpus.pinned()).unwrap();
    let kernel = gpu.kernel(&AFFINE).unwrap();
    let count = 5_000;
    let (input, output) = (Arc::new(gpu.allocate(count * 4).unwrap()), Arc::new(gpu.allocate(count * 4).unwrap()));
    let pairs = [(Arc::clone(&input), Arc::clone(&output), count)];
    let graph = Arc::new(DOUBLE.record(&lanes, &kernel, &pairs).unwrap());
    for turn in 0..500 {
        let given = numbers(count, turn);
        let mut flight = Flight::new(&lanes).unwrap();
        flight.add_input_in(&input, &[Piece::Host(Slice::copy_of(&bytes_of(&given)))]).unwrap();
        let made = flight.output_to(&output);
        flight.run(&graph).unwrap();
        let fetched = flight.fetch(made, 0, count * 4).unwrap();
        flight.seal().unwrap();
        while !flight.is_complete().unwrap() {
            std::thread::yield_now();
        }
        let expected: Vec<f32> = given.iter().map(|value| DOUBLE.apply(*value)).collect();
        assert!(*flight.take_fetched(fetched).unwrap() == *bytes_of(&expected), "{turn}");
    }
    assert_eq!(gpus.failure(), None);
}

/// A recording in the process-wide mode, in which ONNX Runtime records, refuses nothing to other threads.
#[test]
#[ignore = "needs a GPU: benches/gpu_first_hour runs it"]
fn while_another_thread_records_all_is_allowed() {
    let driver = open().expect("a driver");
    let functions = Functions::load().unwrap();
    driver.enter(0).unwrap();
    let recorded = driver.create_stream(0).unwrap();
    // SAFETY: the stream lives until the end; 0 is the process-wide mode.
    assert_eq!(unsafe { (functions.begin_capture)(pointer(recorded.0), 0) }, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let stream = driver.create_stream(0).unwrap();
            let event = driver.create_event(0, EventOptions { sleeps: true, is_timed: false }).unwrap();
            let (at, pinned) = (driver.allocate(0, 16).unwrap(), driver.allocate_pinned(16).unwrap());
            // SAFETY: all of it lives until it is freed below, behind the event.
            unsafe {
                driver.copy_in(0, stream, at, pinned, 16).unwrap();
                driver.record(0, event, stream).unwrap();
                while !driver.query(0, event).unwrap() {}
                driver.synchronize(0, event).unwrap();
                driver.free(0, at).unwrap();
                driver.free_pinned(pinned).unwrap();
            }
        });
    });
    let mut graph = ptr::null_mut();
    // SAFETY: the recording that was begun above; the place is ours.
    assert_eq!(unsafe { (functions.end_capture)(pointer(recorded.0), &mut graph) }, 0);
}

#[test]
#[ignore = "needs a GPU: benches/gpu_first_hour runs it"]
fn memory_of_another_process_is_read_and_written() {
    let gpus = host();
    let gpu = gpus.get(0).unwrap();
    let bytes: Vec<u8> = (0..100_000usize).map(|at| (at % 251) as u8).collect();
    if let Ok(text) = std::env::var(HANDLE) {
        let (handle, offset) = text.split_once('@').unwrap();
        let handle: Vec<u8> = (0..64).map(|at| u8::from_str_radix(&handle[2 * at..2 * at + 2], 16).unwrap()).collect();
        let imported = Imported::open(gpu, &handle.try_into().unwrap()).unwrap();
        let slice = imported.slice(offset.parse().unwrap(), bytes.len(), ()).unwrap();
        let mut back = vec![0; bytes.len()];
        gpu.fetch(&slice, &mut back).unwrap();
        assert!(back == bytes);
        // SAFETY: the other process waits for this one, and uses the memory only afterwards.
        let target = unsafe { DeviceTarget::foreign(gpu.clone(), slice.address(), 5, Arc::new(slice.clone())) };
        gpu.put_at(&target, &[9; 5]).unwrap();
        let again = Imported::open(gpu, &exported_elsewhere(&text)).map(|_| ());
        println!("opened twice: {again:?}");
        assert!(slice.export().is_err(), "what belongs to another process is not passed on");
        assert_eq!(gpu.failure(), None, "a refused handle breaks nothing");
        return;
    }
    let _first = gpu.put(&[1; 1000]).unwrap();
    let slice = gpu.put(&bytes).unwrap();
    let exported = slice.export().unwrap();
    let handle: String = exported.handle.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("{}::memory_of_another_process_is_read_and_written", module_path!().split_once("::").unwrap().1);
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--ignored", "--nocapture"])
        .env(HANDLE, format!("{handle}@{}", exported.offset))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    println!("{text}");
    let mut back = vec![0; bytes.len()];
    gpu.fetch(&slice, &mut back).unwrap();
    assert!(back[..5] == [9; 5] && back[5..] == bytes[5..]);
}

fn exported_elsewhere(text: &str) -> crate::driver::IpcHandle {
    std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
}

/// An error that breaks the context is found by the wait for the work, names the device as lost, and ends all further
/// work there at once.
#[test]
#[ignore = "needs a GPU: benches/gpu_first_hour runs it"]
fn a_wild_write_loses_the_device() {
    let gpus = host();
    let gpu = gpus.get(0).unwrap();
    let slice = gpu.put(&[5; 100]).unwrap();
    let lanes = Lanes::new(gpu, gpus.pinned()).unwrap();
    let wild = gpu.kernel(&WILD).unwrap();
    let mut flight = Flight::new(&lanes).unwrap();
    // SAFETY: none: the kernel writes where nothing is, which is what is tested. No other work runs on the device.
    let launched = unsafe { flight.launch(&wild, Extent { blocks: 1, threads: 1 }, &[], &[]) };
    let start = Instant::now();
    let error = launched.and_then(|()| flight.seal()).and_then(|()| {
        while !flight.is_complete()? {
            assert!(start.elapsed() < Duration::from_secs(30), "it never ends");
        }
        Ok(())
    });
    let error = error.unwrap_err();
    println!("{error} after {:?}", start.elapsed());
    assert!(error.is_sticky(), "{error}");
    assert!(gpus.failure().is_some_and(|text| text.starts_with("GPU 0: ")));
    assert!(gpu.fetch(&slice, &mut [0; 100]).unwrap_err().is_sticky());
    assert!(gpu.put(&[1]).is_err());
    println!("{:?}", gpu.allocate(1 << 30).map(|_| ()));
}
