//! A sorted map in pieces that copies share: a copy costs one reference for each piece, and a change copies one piece.
//!
//! Control threads change the map of models once or twice for each load, and shards keep the copies of before until
//! they have the next one. With a plain map each of N loads would copy what is known of N models; this copies one
//! reference for some dozen of them.

use std::borrow::Borrow;
use std::sync::Arc;

/// Entries of a piece; a longer one is divided.
const PIECE_MAX: usize = 64;

/// See the [module](self).
#[derive(Debug, Clone)]
pub struct Pieces<K, V> {
    /// None of them is empty; sorted, as their entries are.
    pieces: Vec<Arc<Vec<(K, V)>>>,
}

impl<K, V> Default for Pieces<K, V> {
    fn default() -> Pieces<K, V> {
        Pieces { pieces: Vec::new() }
    }
}

impl<K: Ord + Clone, V: Clone> Pieces<K, V> {
    /// The piece that has the key or would have it, and the key's place in it.
    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> (usize, Result<usize, usize>)
    where
        K: Borrow<Q>,
    {
        let begins_before = |piece: &Arc<Vec<(K, V)>>| piece.first().is_some_and(|(first, _)| first.borrow() <= key);
        let at = self.pieces.partition_point(begins_before).saturating_sub(1);
        let Some(piece) = self.pieces.get(at) else { return (at, Err(0)) };
        (at, piece.binary_search_by(|(other, _)| other.borrow().cmp(key)))
    }

    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let (piece, Ok(place)) = self.find(key) else { return None };
        Some(&self.pieces.get(piece)?.get(place)?.1)
    }

    /// The value that the key had before is gone.
    pub fn insert(&mut self, key: K, value: V) {
        let (at, place) = self.find(&key);
        let Some(piece) = self.pieces.get_mut(at) else {
            self.pieces.push(Arc::new(vec![(key, value)]));
            return;
        };
        let entries = Arc::make_mut(piece);
        match place {
            Ok(place) => entries[place] = (key, value),
            Err(place) => entries.insert(place, (key, value)),
        }
        if entries.len() > PIECE_MAX {
            let upper = entries.split_off(entries.len() / 2);
            self.pieces.insert(at + 1, Arc::new(upper));
        }
    }

    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        let (at, Ok(place)) = self.find(key) else { return };
        let Some(piece) = self.pieces.get_mut(at) else { return };
        if piece.len() == 1 {
            self.pieces.remove(at);
            return;
        }
        Arc::make_mut(piece).remove(place);
        // Or what a poll removes and adds would leave many short pieces.
        let len_of = |at: usize| self.pieces.get(at).map_or(usize::MAX, |piece| piece.len());
        if len_of(at).saturating_add(len_of(at + 1)) <= PIECE_MAX / 2 {
            let next = self.pieces.remove(at + 1);
            Arc::make_mut(&mut self.pieces[at]).extend(next.iter().cloned());
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.pieces.iter().flat_map(|piece| piece.iter()).map(|(key, value)| (key, value))
    }

    /// The entries from that key on.
    pub fn range_from<'a, Q: Ord + ?Sized>(&'a self, key: &Q) -> impl Iterator<Item = (&'a K, &'a V)> + use<'a, K, V, Q>
    where
        K: Borrow<Q>,
    {
        let (at, place) = self.find(key);
        let (Ok(place) | Err(place)) = place;
        let pieces = self.pieces.get(at..).unwrap_or_default();
        pieces.iter().flat_map(|piece| piece.iter()).skip(place).map(|(key, value)| (key, value))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Not at random, and no key twice in a row.
    fn keys(count: usize) -> impl Iterator<Item = usize> {
        (0..count).map(move |at| at * 7919 % count)
    }

    fn check(pieces: &Pieces<usize, usize>, expected: &BTreeMap<usize, usize>) {
        assert!(pieces.iter().eq(expected.iter()));
        assert!(pieces.pieces.iter().all(|piece| !piece.is_empty() && piece.len() <= PIECE_MAX));
        let ends = expected.keys().next_back().map_or(0, |last| last + 2);
        for key in 0..ends {
            assert_eq!(pieces.get(&key), expected.get(&key));
        }
        for key in (0..ends).step_by(17) {
            assert!(pieces.range_from(&key).eq(expected.range(key..)));
        }
    }

    #[test]
    fn what_is_inserted_and_removed_is_as_in_a_plain_map() {
        let (mut pieces, mut expected) = (Pieces::default(), BTreeMap::new());
        check(&pieces, &expected);
        pieces.remove(&1);
        for key in keys(1000) {
            pieces.insert(key * 2, key);
            expected.insert(key * 2, key);
        }
        check(&pieces, &expected);
        for key in keys(500) {
            pieces.insert(key * 2, key + 1);
            expected.insert(key * 2, key + 1);
        }
        check(&pieces, &expected);
        for (at, key) in keys(1000).enumerate().filter(|(_, key)| key % 10 != 3) {
            pieces.remove(&(key * 2));
            pieces.remove(&(key * 2 + 1));
            expected.remove(&(key * 2));
            if at % 250 == 0 {
                check(&pieces, &expected);
            }
        }
        check(&pieces, &expected);
        assert!(pieces.pieces.len() <= expected.len() * 4 / PIECE_MAX + 2, "{} pieces", pieces.pieces.len());
        for key in keys(1000) {
            pieces.remove(&(key * 2));
        }
        assert!(pieces.pieces.is_empty());
    }

    #[test]
    fn a_change_copies_one_piece_and_leaves_copies_as_they_are() {
        let mut pieces = Pieces::default();
        keys(1000).for_each(|key| pieces.insert(key, 0));
        let before = pieces.clone();
        pieces.insert(500, 1);
        assert_eq!((before.get(&500), pieces.get(&500)), (Some(&0), Some(&1)));
        let shared = before.pieces.iter().zip(&pieces.pieces).filter(|(one, other)| Arc::ptr_eq(one, other)).count();
        assert_eq!(shared, pieces.pieces.len() - 1);
    }
}
