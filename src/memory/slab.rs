//! The [`Slab`]: entries with keys that never resolve once their value is gone.
//!
//! Work that runs elsewhere for a shard (on a worker, in the kernel) carries such a key as its return address. The
//! connection or request may be gone when the answer comes: then the key does not resolve, and never to another value
//! in the same entry.

use std::num::NonZeroU64;

/// Index and generation of an entry. As a number it fits `user_data` and is never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(NonZeroU64);

impl Key {
    /// `generation` must not be zero.
    fn new(index: u32, generation: u32) -> Option<Key> {
        NonZeroU64::new(u64::from(generation) << 32 | u64::from(index)).filter(|_| generation != 0).map(Key)
    }

    pub fn index(self) -> usize {
        (self.0.get() & u64::from(u32::MAX)) as usize
    }

    pub fn generation(self) -> u32 {
        (self.0.get() >> 32) as u32
    }

    pub fn to_u64(self) -> u64 {
        self.0.get()
    }

    /// The key that [`Key::to_u64`] gave, or `None` if no key has that number.
    pub fn from_u64(number: u64) -> Option<Key> {
        Key::new(number as u32, (number >> 32) as u32)
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.index(), self.generation())
    }
}

/// The slab's bound is reached. The value comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full<T>(pub T);

/// Values in entries that are reused, each time under a new key.
#[derive(Debug)]
pub struct Slab<T> {
    places: Vec<SlabEntry<T>>,
    free: Vec<u32>,
    len: usize,
    limit: usize,
}

#[derive(Debug)]
struct SlabEntry<T> {
    /// Of the value that is here, or of the next one.
    generation: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
    /// A slab that holds at most `limit` values at a time.
    pub fn new(limit: usize) -> Slab<T> {
        Slab { places: Vec::new(), free: Vec::new(), len: 0, limit: limit.min(u32::MAX as usize) }
    }

    pub fn insert(&mut self, value: T) -> Result<Key, Full<T>> {
        self.insert_with(value, |_, _| {})
    }

    /// Inserts, and lets `note` write the key into the value.
    pub fn insert_with(&mut self, value: T, note: impl FnOnce(&mut T, Key)) -> Result<Key, Full<T>> {
        if self.len >= self.limit {
            return Err(Full(value));
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let Ok(index) = u32::try_from(self.places.len()) else { return Err(Full(value)) };
                self.places.push(SlabEntry { generation: 1, value: None });
                index
            }
        };
        let place = &mut self.places[index as usize];
        let Some(key) = Key::new(index, place.generation) else { return Err(Full(value)) };
        note(place.value.insert(value), key);
        self.len += 1;
        Ok(key)
    }

    pub fn get(&self, key: Key) -> Option<&T> {
        self.places.get(key.index()).filter(|place| place.generation == key.generation())?.value.as_ref()
    }

    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.places.get_mut(key.index()).filter(|place| place.generation == key.generation())?.value.as_mut()
    }

    pub fn contains(&self, key: Key) -> bool {
        self.get(key).is_some()
    }

    pub fn remove(&mut self, key: Key) -> Option<T> {
        let place = self.places.get_mut(key.index()).filter(|place| place.generation == key.generation())?;
        let value = place.value.take()?;
        self.len -= 1;
        // An entry whose generations are used up is not used again: four billion connections later.
        if let Some(next) = place.generation.checked_add(1) {
            place.generation = next;
            self.free.push(key.index() as u32);
        }
        Some(value)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.places.iter().enumerate().filter_map(|(index, place)| {
            let value = place.value.as_ref()?;
            Some((Key::new(index as u32, place.generation)?, value))
        })
    }

    /// The keys of all values; for walking a slab while it changes.
    pub fn keys(&self) -> Vec<Key> {
        self.iter().map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_key_never_resolves() {
        let mut slab = Slab::new(2);
        let first = slab.insert("a").unwrap();
        assert_eq!(slab.remove(first), Some("a"));
        assert_eq!(slab.remove(first), None);
        let second = slab.insert("b").unwrap();
        assert_eq!(first.index(), second.index(), "the place is reused");
        assert_eq!((slab.get(first), slab.get(second)), (None, Some(&"b")));
        assert!(slab.get_mut(first).is_none() && !slab.contains(first));
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.len(), 1);
    }

    #[test]
    fn the_bound_holds_and_gives_the_value_back() {
        let mut slab = Slab::new(1);
        let key = slab.insert(1).unwrap();
        assert_eq!(slab.insert(2), Err(Full(2)));
        slab.remove(key);
        assert!(slab.insert_with(3, |value, key| *value += key.index()).is_ok());
        assert!(Slab::new(0).insert(()).is_err());
    }

    #[test]
    fn keys_survive_as_numbers() {
        let mut slab = Slab::new(10);
        let keys: Vec<Key> = (0..5).map(|i| slab.insert(i).unwrap()).collect();
        slab.remove(keys[2]);
        for key in &keys {
            assert_eq!(Key::from_u64(key.to_u64()), Some(*key));
        }
        assert_eq!(Key::from_u64(7), None, "generation 0 is never given out");
        assert_eq!(slab.keys(), [keys[0], keys[1], keys[3], keys[4]]);
        let unknown = Key::from_u64(1 << 32 | 99).unwrap();
        assert_eq!(slab.get(unknown), None);
    }

    #[test]
    fn a_place_retires_with_its_last_generation() {
        let mut slab = Slab::new(1);
        let key = slab.insert(()).unwrap();
        slab.remove(key);
        slab.places[0].generation = u32::MAX;
        let last = slab.insert(()).unwrap();
        assert_eq!((last.index(), last.generation()), (0, u32::MAX));
        slab.remove(last);
        assert_eq!(slab.insert(()).unwrap().index(), 1);
        assert!(!slab.contains(last));
    }
}
