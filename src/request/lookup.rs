//! Tensors of a request found by their numbers in the model's configuration: backends look up every input of a request,
//! and requests may have thousands. [`numbered`] takes one step for a tensor that stands at its number, and searches
//! otherwise; [`ByNumber`] takes a time that grows with the logarithm of how many there are, in any order.

use super::response::OutputTensor;
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

impl Numbered for OutputTensor {
    fn number(&self) -> usize {
        self.index
    }
}

impl Numbered for RequestedOutput {
    fn number(&self) -> usize {
        self.index
    }
}

/// The item with a number: of several the one that stands at its number, else the first. Clients mostly send tensors in
/// the order of the configuration, where each stands at its number: then this is one step. For few look-ups; for many
/// of one request see [`ByNumber`].
#[inline]
pub fn numbered<T: Numbered>(items: &[T], number: usize) -> Option<&T> {
    at_its_number(items, number).or_else(|| items.iter().find(|item| item.number() == number))
}

#[inline]
fn at_its_number<T: Numbered>(items: &[T], number: usize) -> Option<&T> {
    items.get(number).filter(|item| item.number() == number)
}

/// The items of a request, for look-ups of many of them.
#[derive(Debug)]
pub struct ByNumber<'a, T> {
    items: &'a [T],
    places: Places,
}

#[derive(Debug)]
enum Places {
    /// Of few items, which are searched.
    Searched,
    /// Each item stands at its number.
    InOrder,
    /// The number and the place of each item, sorted. A table by number would be faster, but nothing bounds the
    /// numbers: what a warm-up sends that the model does not have is numbered `usize::MAX`.
    Sorted(Vec<(usize, usize)>),
}

impl<'a, T: Numbered> ByNumber<'a, T> {
    /// Takes memory only if there are many items that stand in another order than their numbers.
    pub fn new(items: &'a [T]) -> ByNumber<'a, T> {
        if items.len() <= SEARCHED_MAX {
            return ByNumber { items, places: Places::Searched };
        }
        if items.iter().enumerate().all(|(at, item)| item.number() == at) {
            return ByNumber { items, places: Places::InOrder };
        }
        let mut sorted: Vec<_> = items.iter().enumerate().map(|(at, item)| (item.number(), at)).collect();
        sorted.sort_unstable();
        ByNumber { items, places: Places::Sorted(sorted) }
    }

    /// What [`numbered`] finds.
    #[inline]
    pub fn get(&self, number: usize) -> Option<&'a T> {
        match &self.places {
            Places::Searched => numbered(self.items, number),
            Places::InOrder => self.items.get(number),
            Places::Sorted(_) => self.items.get(self.place(number)?),
        }
    }

    /// The place of the item that [`get`](ByNumber::get) finds.
    pub fn place(&self, number: usize) -> Option<usize> {
        if at_its_number(self.items, number).is_some() {
            return Some(number);
        }
        match &self.places {
            Places::Searched => self.items.iter().position(|item| item.number() == number),
            Places::InOrder => None,
            Places::Sorted(sorted) => {
                let first = sorted.partition_point(|(other, _)| *other < number);
                sorted.get(first).filter(|(found, _)| *found == number).map(|(_, at)| *at)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Item {
        number: usize,
        /// Tells items of one number apart.
        place: usize,
    }

    impl Numbered for Item {
        fn number(&self) -> usize {
            self.number
        }
    }

    fn items(numbers: &[usize]) -> Vec<Item> {
        numbers.iter().enumerate().map(|(place, number)| Item { number: *number, place }).collect()
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
                let items = items(&order);
                let by_number = ByNumber::new(&items);
                for number in (0..count * 3 + 2).chain([usize::MAX]) {
                    let expected = items.iter().find(|item| item.number == number);
                    assert_eq!(by_number.get(number), expected, "{number} of {order:?}");
                    assert_eq!(numbered(&items, number), expected, "{number} of {order:?}");
                }
            }
        }
    }

    #[test]
    fn of_items_with_one_number_both_look_ups_find_the_same() {
        for count in [3, SEARCHED_MAX, SEARCHED_MAX + 1, 50] {
            let orders: [Vec<usize>; 4] = [
                vec![1; count],
                // The last ones stand at their numbers, and the first have the same.
                (0..count).map(|at| if at < 2 { count - 1 - at } else { at }).collect(),
                (0..count).map(|at| at / 2).collect(),
                (0..count).rev().map(|at| at / 2).collect(),
            ];
            for order in orders {
                let items = items(&order);
                let by_number = ByNumber::new(&items);
                for number in 0..count + 1 {
                    let found = numbered(&items, number);
                    assert_eq!(by_number.get(number), found, "{number} of {order:?}");
                    assert_eq!(by_number.place(number), found.map(|item| item.place), "{number} of {order:?}");
                    assert_eq!(found.is_some(), order.contains(&number), "{number} of {order:?}");
                    if order.get(number) == Some(&number) {
                        assert_eq!(found.map(|item| item.place), Some(number), "of {order:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn large_numbers_take_no_more_memory_than_small_ones() {
        let mut numbers: Vec<usize> = (0..100).rev().collect();
        numbers.extend([usize::MAX, usize::MAX - 1, 1 << 40, usize::MAX]);
        let items = items(&numbers);
        let by_number = ByNumber::new(&items);
        assert_eq!(by_number.get(usize::MAX), items.get(100));
        assert_eq!(by_number.get(usize::MAX - 1), items.get(101));
        assert_eq!(by_number.get(1 << 40), items.get(102));
        assert_eq!(by_number.get(7), items.get(92));
        assert_eq!(by_number.get(1 << 41), None);
        assert!(matches!(&by_number.places, Places::Sorted(sorted) if sorted.len() == numbers.len()));
    }

    #[test]
    fn memory_is_taken_for_many_in_another_order_only() {
        let few: Vec<usize> = (0..SEARCHED_MAX).rev().collect();
        let (few, in_order) = (items(&few), items(&(0..1000).collect::<Vec<_>>()));
        assert!(matches!(ByNumber::new(&few).places, Places::Searched));
        assert!(matches!(ByNumber::new(&in_order).places, Places::InOrder));
        let reversed = items(&(0..1000).rev().collect::<Vec<_>>());
        assert!(matches!(ByNumber::new(&reversed).places, Places::Sorted(_)));
    }
}
