//! Tensors of a request found by their numbers in the model's configuration, in a time that does not grow with how many
//! there are: backends look up every input of a request, and requests may have thousands.

use super::tensor::{InputTensor, RequestedOutput};

/// So many are searched one after the other, which is faster than a table and takes no memory.
const SEARCHED_MAX: usize = 16;

/// What has a number in the configuration of its model, as validation has set it.
pub trait Numbered {
    fn number(&self) -> usize;
}

impl Numbered for InputTensor {
    fn number(&self) -> usize {
        self.index
    }
}

impl Numbered for RequestedOutput {
    fn number(&self) -> usize {
        self.index
    }
}

/// The item with a number. Clients mostly send tensors in the order of the configuration, where each stands at its
/// number: then this is one step. For one look-up; for many of one request see [`ByNumber`].
#[inline]
pub fn numbered<T: Numbered>(items: &[T], number: usize) -> Option<&T> {
    let likely = items.get(number).filter(|item| item.number() == number);
    likely.or_else(|| items.iter().find(|item| item.number() == number))
}

/// The items of a request, for look-ups of many of them.
pub struct ByNumber<'a, T> {
    items: &'a [T],
    /// Places by number, one more than they are, and 0 for none. Empty for few items, and where each stands at its
    /// number.
    places: Vec<u32>,
    is_in_order: bool,
}

impl<'a, T: Numbered> ByNumber<'a, T> {
    /// Takes memory only if there are many items that stand in another order than their numbers.
    pub fn new(items: &'a [T]) -> ByNumber<'a, T> {
        let is_in_order = || items.iter().enumerate().all(|(at, item)| item.number() == at);
        if items.len() <= SEARCHED_MAX {
            return ByNumber { items, places: Vec::new(), is_in_order: false };
        }
        if is_in_order() {
            return ByNumber { items, places: Vec::new(), is_in_order: true };
        }
        let numbers = items.iter().map(T::number);
        let mut places = vec![0; numbers.max().map_or(0, |most| most + 1)];
        // The first of two with one number, as a search finds.
        for (at, item) in items.iter().enumerate().rev() {
            if let (Some(place), Ok(at)) = (places.get_mut(item.number()), u32::try_from(at + 1)) {
                *place = at;
            }
        }
        ByNumber { items, places, is_in_order: false }
    }

    #[inline]
    pub fn get(&self, number: usize) -> Option<&'a T> {
        if self.is_in_order {
            return self.items.get(number);
        }
        if self.places.is_empty() {
            return numbered(self.items, number);
        }
        let place = *self.places.get(number)? as usize;
        self.items.get(place.checked_sub(1)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Item(usize);

    impl Numbered for Item {
        fn number(&self) -> usize {
            self.0
        }
    }

    #[test]
    fn items_are_found_in_any_order_and_number() {
        for count in [0, 1, 2, SEARCHED_MAX, SEARCHED_MAX + 1, 100] {
            let orders: [Vec<usize>; 4] = [
                (0..count).collect(),
                (0..count).rev().collect(),
                // Some are left out.
                (0..count).map(|at| at * 3).collect(),
                (0..count).map(|at| (at * 7 + 3) % count.max(1)).collect(),
            ];
            for order in orders {
                let items: Vec<Item> = order.iter().copied().map(Item).collect();
                let by_number = ByNumber::new(&items);
                for number in 0..count * 3 + 2 {
                    let expected = items.iter().find(|item| item.0 == number);
                    assert_eq!(by_number.get(number), expected, "{number} of {order:?}");
                    assert_eq!(numbered(&items, number), expected, "{number} of {order:?}");
                }
            }
        }
    }

    #[test]
    fn memory_is_taken_for_many_in_another_order_only() {
        let of = |numbers: Vec<usize>| {
            let items: Vec<Item> = numbers.into_iter().map(Item).collect();
            ByNumber::new(&items).places.capacity()
        };
        assert_eq!([of((0..SEARCHED_MAX).rev().collect()), of((0..1000).collect())], [0, 0]);
        assert!(of((0..1000).rev().collect()) >= 1000);
    }
}
