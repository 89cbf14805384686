//! Tests of the registry: what registration checks, what holds a region, and what happens when its object loses its
//! pages.

use std::sync::mpsc::channel;

use super::testing::{Object, registry};
use super::*;
use crate::Slice;

#[test]
fn registration_checks_one_thing_after_the_other() {
    let object = Object::new(&[7; 10_000]);
    let regions = registry(b"taken", &object, 10_000);
    let text = |name: &[u8], key: &[u8], offset: u64, byte_size: u64| {
        regions.register(name, key, offset, byte_size).unwrap_err().to_string()
    };
    let reserved = b"triton_python_backend_shm_region_1";
    // Each row has every fault of the rows behind it.
    assert_eq!(text(b"taken", &[b'x'; 5000], 9, u64::MAX), "a name or a key has more than 4096 bytes");
    assert_eq!(text(b"taken", b"", 9, u64::MAX), "invalid shm key");
    assert_eq!(text(b"taken", b"///", 9, u64::MAX), "invalid shm key");
    assert_eq!(text(b"taken", &[&b"//"[..], reserved].concat(), 9, u64::MAX), "reserved prefix");
    assert_eq!(text(b"taken", b"/nereid-no-such-object", 9, u64::MAX), "already in manager");
    assert_eq!(text(b"new", b"/nereid-no-such-object", 9, u64::MAX), "cannot be opened");
    assert_eq!(text(b"new", b"nul\0inside", 0, 1), "cannot be opened");
    assert_eq!(text(b"new", object.key(), 9, u64::MAX), "invalid args");
    assert_eq!(text(b"new", object.key(), 10_000, 1), "invalid args");
    assert_eq!(text(b"new", object.key(), 0, 10_001), "invalid args");
    assert_eq!(text(b"new", object.key(), 9, 100), "unable to process address spaceInvalid argument");
    assert_eq!(text(b"new", object.key(), 0, 0), "unable to process address spaceInvalid argument");
    assert_eq!(regions.len(), 1);
    regions.register(b"new", object.key(), 4096, 5904).unwrap();
    regions.register(b"", object.key(), 0, 1).unwrap();
    let listed: Vec<_> = regions.list().iter().map(|it| (it.name().to_vec(), it.offset(), it.byte_size())).collect();
    assert_eq!(listed, [(vec![], 0, 1), (b"new".to_vec(), 4096, 5904), (b"taken".to_vec(), 0, 10_000)]);
}

#[test]
fn windows_lie_in_their_region() {
    let object = Object::new(b"abcdefgh");
    let regions = registry(b"r", &object, 8);
    let one = regions.get(b"r").unwrap();
    let window = |offset, byte_size| one.window(offset, byte_size).map(|window| window.bytes().to_vec());
    assert_eq!(window(0, 8).unwrap(), b"abcdefgh");
    assert_eq!(window(7, 1).unwrap(), b"h");
    assert_eq!(window(3, 0).unwrap(), b"");
    assert_eq!(window(8, 0).unwrap_err(), WindowError::Offset);
    assert_eq!(window(u64::MAX, u64::MAX).unwrap_err(), WindowError::Offset);
    assert_eq!(window(7, 2).unwrap_err(), WindowError::Size);
    let error = window(2, u64::MAX).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Integer overflow detected: byte_size (18446744073709551615) + offset (2) exceeds maximum value \
         (18446744073709551615)"
    );
    assert!(regions.get(b"other").is_none());
}

#[test]
fn what_is_written_is_in_the_object_and_the_other_way_round() {
    let object = Object::new(&[0; 8192]);
    let regions = Regions::default();
    regions.register(b"r", object.key(), 4096, 100).unwrap();
    let one = regions.get(b"r").unwrap();
    let window = one.window(10, 5).unwrap();
    let slice = window.slice();
    assert!(slice.is_in_region() && !Slice::copy_of(b"x").is_in_region());
    window.write(1, b"wxyz, and more than there is room for");
    assert_eq!(object.read(4096 + 10, 6), b"\0wxyz\0");
    object.write(4096 + 10, b"a");
    assert_eq!(window.bytes().to_vec(), b"awxyz");
    window.write_slice(0, &slice.window(1..5));
    assert_eq!(window.bytes().to_vec(), b"wxyzz", "ranges may overlap");
    window.write(9, b"beyond");
}

/// A length that a client changes between the check and the use of it cannot lead out of the bytes.
#[test]
fn what_was_checked_is_what_is_used() {
    let object = Object::new(b"\x01\0\0\0a");
    let regions = registry(b"r", &object, 5);
    let slice = regions.get(b"r").unwrap().window(0, 5).unwrap().slice();
    let (same, part) = (slice.clone(), slice.window(0..4));
    let checked: [u8; 4] = slice[..4].try_into().unwrap();
    assert_eq!(u32::from_le_bytes(checked), 1);
    object.write(0, &u32::MAX.to_le_bytes());
    assert_eq!(&slice[..], b"\x01\0\0\0a", "a slice that was read stays as it was read");
    assert_eq!((&same[..4], &*part), (&[0xff; 4][..], &[0xff; 4][..]), "each takes its copy when it is first read");
    let mut now = [0; 9];
    assert_eq!((slice.copy_to(0, &mut now), &now), (5, b"\xff\xff\xff\xffa\0\0\0\0"));
    let mut rest = slice;
    object.write(0, b"bcdef");
    rest.advance(2);
    assert_eq!(&*rest, b"def", "a part is read anew");
    let stable = same.stable();
    object.write(0, b".....");
    assert_eq!((&*stable, &*same), (&b"bcdef"[..], &b"\xff\xff\xff\xffa"[..]));
}

/// A client that never stops writing: every read is of one copy, whatever thread reads it.
#[test]
fn a_slice_reads_the_same_while_its_client_writes() {
    let object = Object::new(&[0; 4096]);
    let regions = registry(b"r", &object, 4096);
    let one = regions.get(b"r").unwrap();
    let (is_over, has_begun) = (AtomicBool::new(false), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            object.write(0, &[1; 4096]);
            has_begun.wait();
            let mut value = 1u8;
            while !is_over.load(Ordering::Relaxed) {
                value = value.wrapping_add(1);
                object.write(0, &[value; 4096]);
            }
        });
        has_begun.wait();
        for _ in 0..200 {
            let slice = one.window(0, 4096).unwrap().slice();
            let first = slice.to_vec();
            std::thread::yield_now();
            let slice = &slice;
            let again = std::thread::scope(|scope| scope.spawn(|| slice.to_vec()).join());
            // Ends the writer first: a panic would wait for it.
            if again.is_err() || again.as_deref().ok() != Some(&first[..]) {
                is_over.store(true, Ordering::Relaxed);
                panic!("the bytes of one slice changed");
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn an_unregistered_region_stays_until_its_last_use() {
    let object = Object::new(b"abcd");
    let regions = registry(b"r", &object, 4);
    let (first, second) = (regions.get(b"r").unwrap(), regions.get(b"r").unwrap());
    let slice = first.window(0, 4).unwrap().slice();
    regions.unregister(b"r").unwrap();
    assert_eq!(regions.len(), 1, "it is listed");
    assert!(matches!(regions.register(b"r", object.key(), 0, 4), Err(RegisterError::Exists)));
    first.end();
    first.end();
    drop(first);
    let third = regions.get(b"r").expect("and can be used");
    drop(second);
    assert_eq!(regions.len(), 1);
    drop(third);
    assert!(regions.is_empty() && regions.get(b"r").is_none());
    assert_eq!(&*slice, b"abcd", "a slice that points into it keeps its pages");
    regions.register(b"r", object.key(), 0, 2).unwrap();
    regions.unregister(b"r").unwrap();
    regions.unregister(b"r").unwrap();
    assert!(regions.is_empty());
}

#[test]
fn a_use_of_a_former_region_leaves_its_successor_alone() {
    let object = Object::new(b"abcd");
    let regions = registry(b"r", &object, 4);
    let former = regions.find(b"r").unwrap();
    regions.unregister(b"r").unwrap();
    regions.register(b"r", object.key(), 0, 4).unwrap();
    assert!(!former.uses.begin(), "no use begins after the last one");
    assert!(regions.table.remove(&former).is_none());
    assert_eq!(regions.len(), 1);
}

#[test]
fn many_regions_are_listed_in_order() {
    let object = Object::new(b"abcd");
    let regions = Regions::default();
    let names: Vec<String> = (0..LISTED_AT_ONCE * 3 + 1).map(|number| format!("{number:04}")).collect();
    for name in names.iter().rev() {
        regions.register(name.as_bytes(), object.key(), 0, 4).unwrap();
    }
    let listed: Vec<_> =
        regions.list().iter().map(|region| String::from_utf8_lossy(region.name()).into_owned()).collect();
    assert_eq!(listed, names);
}

#[test]
fn uses_begin_and_end_while_regions_come_and_go() {
    let object = Object::new(&[1; 4096]);
    let regions = registry(b"r", &object, 4096);
    let (users, rounds) = (4, 1000);
    std::thread::scope(|scope| {
        let read = || {
            for _ in 0..rounds {
                let one = loop {
                    match regions.get(b"r") {
                        Some(one) => break one,
                        None => std::thread::yield_now(),
                    }
                };
                let slice = one.window(1, 8).unwrap().slice();
                one.end();
                assert_eq!(*slice, [1; 8], "its pages are there");
            }
        };
        let readers: Vec<_> = (0..users).map(|_| scope.spawn(read)).collect();
        while !readers.iter().all(|reader| reader.is_finished()) {
            regions.unregister(b"r").unwrap();
            // Until its last use is over, the name is taken.
            let _ = regions.register(b"r", object.key(), 0, 4096);
        }
    });
    regions.unregister(b"r").unwrap();
    assert!(regions.is_empty());
    let (done, finished) = channel();
    regions.job_thread().run(move || done.send(()).unwrap());
    finished.recv().unwrap();
    assert_eq!(mapped(&object), 0);
}

/// Mappings of an object in this process.
fn mapped(object: &Object) -> usize {
    let name = String::from_utf8_lossy(object.key()).into_owned();
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains(&name)).count()
}

#[test]
fn pages_go_with_their_last_holder_and_not_on_its_thread() {
    let object = Object::new(b"abcd");
    let regions = registry(b"r", &object, 4);
    assert_eq!(mapped(&object), 1);
    let slice = regions.get(b"r").unwrap().window(0, 4).unwrap().slice();
    regions.unregister(b"r").unwrap();
    assert_eq!((mapped(&object), regions.len()), (1, 0));
    // The background thread is busy: the thread that drops the last slice does not unmap.
    let (gate, opened) = channel::<()>();
    regions.job_thread().try_run(move || opened.recv().unwrap_or_default()).unwrap();
    drop(slice);
    assert_eq!(mapped(&object), 1);
    drop(gate);
    let (done, finished) = channel();
    regions.job_thread().run(move || done.send(()).unwrap());
    finished.recv().unwrap();
    assert_eq!(mapped(&object), 0);
}

#[test]
fn a_truncated_object_reads_as_zeros_and_is_marked() {
    let object = Object::new(&[7; 3 * 4096]);
    let other = Object::new(&[9; 4096]);
    let regions = registry(b"r", &object, 3 * 4096);
    regions.register(b"other", other.key(), 0, 4096).unwrap();
    let one = regions.get(b"r").unwrap();
    let slice = one.window(0, 3 * 4096).unwrap().slice();
    object.truncate(4096);
    assert!(!one.region().is_lost(), "no page was touched");
    let mut byte = [1];
    assert_eq!((slice.copy_to(4095, &mut byte), byte, one.region().is_lost()), (1, [7], false));
    assert_eq!((slice.copy_to(4096, &mut byte), byte, one.region().is_lost()), (1, [0], true));
    assert!(slice[4096..].iter().all(|byte| *byte == 0));
    one.window(5000, 4).unwrap().write(0, b"into nothing");
    let intact = regions.get(b"other").unwrap();
    assert_eq!(intact.window(0, 1).unwrap().bytes().to_vec(), [9]);
    assert!(!intact.region().is_lost());
    object.truncate(3 * 4096);
    assert!(one.region().is_lost(), "that does not heal");
    drop((one, slice));
    regions.unregister(b"r").unwrap();
    // The place in the list is taken again, without its history.
    object.write(0, &[5; 3 * 4096]);
    regions.register(b"r", object.key(), 0, 3 * 4096).unwrap();
    let one = regions.get(b"r").unwrap();
    assert_eq!((one.window(2 * 4096, 1).unwrap().bytes().to_vec()[0], one.region().is_lost()), (5, false));
}

#[test]
fn a_write_to_what_is_gone_is_marked_as_well() {
    let object = Object::new(&[7; 2 * 4096]);
    let regions = registry(b"r", &object, 2 * 4096);
    let one = regions.get(b"r").unwrap();
    object.truncate(0);
    one.window(0, 2 * 4096).unwrap().write(0, &[1; 2 * 4096]);
    assert!(one.region().is_lost());
}
