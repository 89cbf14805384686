//! Places with generational keys: what is addressed from afar may be gone when the answer comes.
//!
//! A key is 64 bits, so that it can travel as the user data of a kernel operation or with a request; one that outlived
//! its value never finds another.

/// Generation in the high half, index in the low half. Never 0.
pub type Key = u64;

#[derive(Debug)]
pub struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
    len: usize,
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { places: Vec::new(), free: Vec::new(), len: 0 }
    }
}

impl<T> Slab<T> {
    pub fn new() -> Slab<T> {
        Slab::default()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn insert(&mut self, value: T) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 1, value: None });
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[index as usize];
        place.value = Some(value);
        self.len += 1;
        u64::from(place.generation) << 32 | u64::from(index)
    }

    fn place(&mut self, key: Key) -> Option<&mut Place<T>> {
        let place = self.places.get_mut(key as u32 as usize)?;
        (u64::from(place.generation) == key >> 32).then_some(place)
    }

    pub fn get(&self, key: Key) -> Option<&T> {
        let place = self.places.get(key as u32 as usize)?;
        if u64::from(place.generation) == key >> 32 { place.value.as_ref() } else { None }
    }

    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.place(key)?.value.as_mut()
    }

    /// Takes the value out; the key is stale from now on.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let place = self.place(key)?;
        let value = place.value.take()?;
        // Generation 0 is left out, so that no key is ever 0.
        place.generation = place.generation.checked_add(1).unwrap_or(1);
        self.free.push(key as u32);
        self.len -= 1;
        Some(value)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.places.iter().enumerate().filter_map(|(index, place)| {
            Some((u64::from(place.generation) << 32 | index as u64, place.value.as_ref()?))
        })
    }

    pub fn keys(&self) -> Vec<Key> {
        self.iter().map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_key_finds_nothing() {
        let mut slab = Slab::new();
        let first = slab.insert("a");
        assert_eq!(slab.remove(first), Some("a"));
        let second = slab.insert("b");
        assert_eq!(second as u32, first as u32, "the place is used again");
        assert_eq!((slab.get(first), slab.remove(first)), (None, None));
        assert_eq!((slab.get(second), slab.len()), (Some(&"b"), 1));
        assert_eq!(slab.get(u64::MAX), None);
    }
}
