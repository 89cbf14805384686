//! A hash table by the names of models, in buckets that copies share. Shards look up in it for every request that they
//! have not seen before: one hash of the name, and one comparison.
//!
//! A copy costs one reference for each bucket, and a change copies one bucket; see [`pieces`](super::pieces).

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use super::ModelId;

/// Entries of a bucket on average; where there are more, the number of buckets is doubled.
const BUCKET_LEN: usize = 24;

/// See the [module](self).
#[derive(Debug, Clone)]
pub struct Names<V> {
    hasher: RandomState,
    /// A power of two.
    buckets: Vec<Arc<Bucket<V>>>,
    len: usize,
}

#[derive(Debug, Clone)]
struct Bucket<V> {
    /// Apart from the entries, so that a search reads few cache lines.
    hashes: Vec<u64>,
    entries: Vec<(Arc<ModelId>, V)>,
}

impl<V> Default for Bucket<V> {
    fn default() -> Bucket<V> {
        Bucket { hashes: Vec::new(), entries: Vec::new() }
    }
}

impl<V> Bucket<V> {
    fn position(&self, hash: u64, name: &[u8]) -> Option<usize> {
        let is_it = |at: usize| self.entries.get(at).is_some_and(|(id, _)| id.name.as_bytes() == name);
        (0..self.hashes.len()).find(|at| self.hashes.get(*at) == Some(&hash) && is_it(*at))
    }
}

impl<V> Default for Names<V> {
    fn default() -> Names<V> {
        Names { hasher: RandomState::new(), buckets: vec![Arc::default()], len: 0 }
    }
}

impl<V: Clone> Names<V> {
    fn bucket_at(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    #[inline]
    pub fn get(&self, name: &[u8]) -> Option<&V> {
        let hash = self.hasher.hash_one(name);
        let bucket = self.buckets.get(self.bucket_at(hash))?;
        Some(&bucket.entries.get(bucket.position(hash, name)?)?.1)
    }

    /// Sets what the name of this model leads to; with `None` it leads nowhere.
    pub fn set(&mut self, id: &Arc<ModelId>, value: Option<V>) {
        let name = id.name.as_bytes();
        let hash = self.hasher.hash_one(name);
        let at = self.bucket_at(hash);
        let Some(bucket) = self.buckets.get_mut(at) else { return };
        match (bucket.position(hash, name), value) {
            (Some(place), Some(value)) => Arc::make_mut(bucket).entries[place] = (Arc::clone(id), value),
            (Some(place), None) => {
                let bucket = Arc::make_mut(bucket);
                bucket.hashes.swap_remove(place);
                bucket.entries.swap_remove(place);
                self.len -= 1;
            }
            (None, Some(value)) => {
                let bucket = Arc::make_mut(bucket);
                bucket.hashes.push(hash);
                bucket.entries.push((Arc::clone(id), value));
                self.len += 1;
                if self.len > self.buckets.len() * BUCKET_LEN {
                    self.grow();
                }
            }
            (None, None) => {}
        }
    }

    fn grow(&mut self) {
        let mut buckets: Vec<Bucket<V>> = Vec::new();
        buckets.resize_with(self.buckets.len() * 2, Bucket::default);
        let mask = buckets.len() - 1;
        for bucket in &self.buckets {
            for (&hash, entry) in bucket.hashes.iter().zip(&bucket.entries) {
                if let Some(bucket) = buckets.get_mut(hash as usize & mask) {
                    bucket.hashes.push(hash);
                    bucket.entries.push(entry.clone());
                }
            }
        }
        self.buckets = buckets.into_iter().map(Arc::new).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> Arc<ModelId> {
        Arc::new(ModelId { name: format!("m{number}"), ..ModelId::default() })
    }

    #[test]
    fn names_lead_to_what_was_set_last() {
        let mut names = Names::default();
        assert_eq!(names.get(b""), None);
        for number in 0..1000 {
            names.set(&id(number), Some(number));
        }
        for number in (0..1000).step_by(3) {
            names.set(&id(number), Some(number + 1));
            names.set(&id(number + 1), None);
            names.set(&id(number + 1), None);
        }
        for number in 0..1000 {
            let expected = [Some(number + 1), None, Some(number)][number % 3];
            assert_eq!(names.get(format!("m{number}").as_bytes()).copied(), expected, "m{number}");
        }
        assert_eq!((names.get(b"m"), names.get(b"other")), (None, None));
        assert_eq!(names.len, 667);
        let longest = names.buckets.iter().map(|bucket| bucket.hashes.len()).max();
        assert!(longest.is_some_and(|longest| longest < 4 * BUCKET_LEN), "{longest:?}");
    }

    #[test]
    fn a_change_copies_one_bucket_and_leaves_copies_as_they_are() {
        let mut names = Names::default();
        (0..1000).for_each(|number| names.set(&id(number), Some(number)));
        let before = names.clone();
        names.set(&id(7), None);
        assert_eq!((before.get(b"m7"), names.get(b"m7")), (Some(&7), None));
        let pairs = before.buckets.iter().zip(&names.buckets);
        assert_eq!(pairs.filter(|(one, other)| !Arc::ptr_eq(one, other)).count(), 1);
    }
}
