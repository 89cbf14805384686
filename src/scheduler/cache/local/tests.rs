//! Least recently used, by bytes.

use super::super::super::mutants::with;
use super::*;
use nereid_memory::Slice;
use nereid_request::{DataType, OutputTensor, Response, Text};

fn key(number: u64) -> Key {
    // Keys that are far apart and share few chains.
    Key { hash: number << 8, seal: number }
}

fn entry(number: u64, len: usize) -> Arc<Entry> {
    let mut response = Response::new(Text::default());
    response.outputs.push(OutputTensor {
        name: Text::from("O"),
        datatype: DataType::Uint8,
        shape: [len as i64].as_slice().into(),
        data: [Slice::copy_of(&vec![number as u8; len])].into_iter().collect(),
        index: 0,
        on_device: None,
    });
    Entry::of(&response, key(number))
}

fn put(cache: &LocalCache, number: u64, len: usize) -> Inserted {
    cache.put(key(number), entry(number, len), false)
}

fn has(cache: &LocalCache, number: u64) -> bool {
    cache.find(key(number)).is_some()
}

/// Room for three entries of 1000 bytes.
fn three() -> LocalCache {
    LocalCache::new(3 * entry(0, 1000).byte_size())
}

fn oldest_goes() -> bool {
    let cache = three();
    (0..3).for_each(|number| assert_eq!(put(&cache, number, 1000), Inserted::Kept));
    assert!(has(&cache, 0), "used last");
    put(&cache, 3, 1000);
    [0, 1, 2, 3].map(|number| has(&cache, number)) == [true, false, true, true]
}

#[test]
fn what_was_used_longest_ago_makes_room() {
    assert!(oldest_goes());
    with(Some(Mutant::NewestEvicted), || assert!(!oldest_goes()));
}

#[test]
fn a_large_entry_takes_the_place_of_many() {
    let small = entry(0, 10).byte_size();
    let count = 4 * EVICTED_AT_ONCE;
    let cache = LocalCache::new(count * small);
    (0..count as u64).for_each(|number| assert_eq!(put(&cache, number, 10), Inserted::Kept));
    assert_eq!(cache.fill(), (count * small, count));
    let large = 10 + small * (count - 1);
    assert_eq!(put(&cache, 10_000, large), Inserted::Kept);
    assert_eq!(cache.fill().1, 1);
    assert_eq!(put(&cache, 10_001, large + small), Inserted::Refused, "more than there is");
    assert!(has(&cache, 10_000), "which throws nothing out");
    assert_eq!(put(&cache, 1, 10), Inserted::Kept);
    assert!(!has(&cache, 10_000) && has(&cache, 1));
}

#[test]
fn what_is_there_stays_unless_it_is_replaced() {
    let cache = three();
    assert_eq!(put(&cache, 1, 10), Inserted::Kept);
    assert_eq!(put(&cache, 1, 20), Inserted::Present);
    assert_eq!(cache.find(key(1)).unwrap().byte_size(), entry(1, 10).byte_size());
    assert_eq!(cache.put(key(1), entry(1, 20), true), Inserted::Kept);
    assert_eq!(cache.fill(), (entry(1, 20).byte_size(), 1));
}

#[test]
fn another_seal_is_another_request() {
    let confused = || {
        let cache = three();
        put(&cache, 1, 10);
        cache.find(Key { seal: 2, ..key(1) }).is_some()
    };
    assert!(!confused());
    with(Some(Mutant::SealIgnored), || assert!(confused()));
    let cache = three();
    put(&cache, 1, 10);
    let other = Key { seal: 2, ..key(1) };
    let of_other = Entry::of(&Response::default(), other);
    assert_eq!(cache.put(other, of_other, false), Inserted::Kept, "the later one has the place");
    assert!(cache.find(other).is_some() && !has(&cache, 1));
}

/// Compared with a model that is a list.
#[test]
fn random_uses_agree_with_a_list() {
    let mut state = 7u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    let cache = LocalCache::new(20_000);
    // The newest last.
    let mut list: Vec<(u64, usize)> = Vec::new();
    for _ in 0..20_000 {
        let number = random(100);
        let at = list.iter().position(|(other, _)| *other == number);
        if random(2) == 0 {
            assert_eq!(has(&cache, number), at.is_some());
            if let Some(at) = at {
                let used = list.remove(at);
                list.push(used);
            }
        } else {
            let len = random(3000) as usize;
            let size = entry(number, len).byte_size();
            let outcome = put(&cache, number, len);
            if at.is_none() {
                assert_eq!(outcome, Inserted::Kept);
                while list.iter().map(|(_, size)| size).sum::<usize>() + size > 20_000 {
                    list.remove(0);
                }
                list.push((number, size));
            } else {
                assert_eq!(outcome, Inserted::Present);
            }
        }
        assert_eq!(cache.fill(), (list.iter().map(|(_, size)| size).sum(), list.len()));
    }
}

#[test]
fn threads_share_it() {
    let cache = Arc::new(three());
    let threads: Vec<_> = (0..4u64)
        .map(|thread| {
            let cache = Arc::clone(&cache);
            std::thread::spawn(move || {
                for round in 0..2000 {
                    let number = (thread + round) % 7;
                    put(&cache, number, 900);
                    if let Some(entry) = cache.find(key(number)) {
                        assert_eq!(entry.seal, number);
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(cache.fill().1 <= 3);
}
