//! Waits between loads: a model that loads may request operations on models, and waits for their ends.
//!
//! An operation that a loading model requests and that needs the slot of this very model would wait for ever: the load
//! holds the slot and waits for the model, which waits for the operation. The same applies to models that load each
//! other, through any number of others. An operation that would close such a circle is refused with the reason.
//!
//! Each operation that holds a slot has a number, and models hold the number of the load that they are part of
//! ([`LoadUnderWay`]). One lock covers the check and the entry: of two operations that would close a circle together,
//! one is refused.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;

use super::super::models::ModelId;
use super::lock;
use nereid_request::{LoadUnderWay, Status};

/// See the [module](self).
#[derive(Default)]
pub struct Waits {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    operations_so_far: u64,
    /// The operation that holds each slot.
    holders: HashMap<ModelId, u64>,
    /// Loads, and the slots that operations on their behalf wait for or hold.
    wants: Vec<(u64, ModelId)>,
}

impl Table {
    /// The model of which the load would wait for itself, if it waited for this slot.
    fn circle(&self, load: u64, slot: &ModelId) -> Option<ModelId> {
        let (mut pending, mut seen) = (vec![slot], BTreeSet::new());
        while let Some(slot) = pending.pop() {
            let Some(&holder) = self.holders.get(slot) else { continue };
            if holder == load {
                return Some(slot.clone());
            }
            if seen.insert(holder) {
                pending.extend(self.wants.iter().filter(|(load, _)| *load == holder).map(|(_, slot)| slot));
            }
        }
        None
    }
}

impl Waits {
    /// Records that the slot is wanted on behalf of the load, until the returned value is dropped.
    pub fn want(&self, load: u64, slot: &ModelId) -> Result<Wanted<'_>, Status> {
        let mut table = lock(&self.table);
        if let Some(asker) = table.circle(load, slot) {
            return Err(circle(&asker.name, &slot.name));
        }
        table.wants.push((load, slot.clone()));
        Ok(Wanted { waits: self, load, slot: slot.clone() })
    }

    /// Records that an operation holds the slot, until the returned value is dropped.
    pub fn hold(&self, slot: &ModelId) -> Held<'_> {
        let mut table = lock(&self.table);
        table.operations_so_far += 1;
        let operation = table.operations_so_far;
        table.holders.insert(slot.clone(), operation);
        Held { waits: self, operation, slot: slot.clone() }
    }

    /// Whether a load waits for the operation that holds this slot.
    pub fn is_wanted(&self, slot: &ModelId) -> bool {
        lock(&self.table).wants.iter().any(|(_, wanted)| wanted == slot)
    }
}

fn circle(asker: &str, wanted: &str) -> Status {
    match asker == wanted {
        true => Status::unavailable(format!("model '{asker}' cannot load or unload itself while it is being loaded")),
        false => Status::unavailable(format!(
            "model '{wanted}' cannot be loaded or unloaded for model '{asker}' while '{asker}' is being loaded, \
             because the load of '{wanted}' waits for '{asker}'"
        )),
    }
}

/// See [`Waits::want`].
pub struct Wanted<'a> {
    waits: &'a Waits,
    load: u64,
    slot: ModelId,
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        let mut table = lock(&self.waits.table);
        // A load may want a slot twice.
        let at = table.wants.iter().position(|(load, slot)| *load == self.load && *slot == self.slot);
        at.map(|at| table.wants.swap_remove(at));
    }
}

/// See [`Waits::hold`].
pub struct Held<'a> {
    waits: &'a Waits,
    pub operation: u64,
    slot: ModelId,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        lock(&self.waits.table).holders.remove(&self.slot);
    }
}

thread_local! {
    static ASKER: RefCell<Option<LoadUnderWay>> = const { RefCell::new(None) };
}

/// While this lives, its thread acts on behalf of a model.
pub struct OnBehalf {
    before: Option<LoadUnderWay>,
}

impl OnBehalf {
    pub fn of(asker: &LoadUnderWay) -> OnBehalf {
        OnBehalf { before: ASKER.replace(Some(asker.clone())) }
    }

    pub fn is_here() -> bool {
        ASKER.with_borrow(Option::is_some)
    }

    /// The load that waits for the current operation of this thread.
    pub fn load() -> Option<u64> {
        ASKER.with_borrow(|asker| asker.as_ref()?.operation())
    }
}

impl Drop for OnBehalf {
    fn drop(&mut self) {
        ASKER.set(self.before.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> ModelId {
        ModelId { name: name.to_owned(), ..ModelId::default() }
    }

    fn refused(outcome: Result<Wanted<'_>, Status>) -> String {
        outcome.err().expect("a refusal").message.into_owned()
    }

    #[test]
    fn a_load_that_would_wait_for_itself_is_refused_over_however_many_others() {
        let waits = Waits::default();
        let a = waits.hold(&id("a"));
        let text = "model 'a' cannot load or unload itself while it is being loaded";
        assert_eq!(refused(waits.want(a.operation, &id("a"))), text);
        let _a_wants_b = waits.want(a.operation, &id("b")).unwrap();
        let b = waits.hold(&id("b"));
        let _b_wants_c = waits.want(b.operation, &id("c")).unwrap();
        let c = waits.hold(&id("c"));
        let text = "model 'a' cannot be loaded or unloaded for model 'c' while 'c' is being loaded, because the load \
                    of 'a' waits for 'c'";
        assert_eq!(refused(waits.want(c.operation, &id("a"))), text);
        assert!(waits.want(c.operation, &id("d")).is_ok(), "others may be loaded");
    }

    #[test]
    fn of_two_that_load_each_other_the_second_is_refused_whoever_loads_them() {
        let waits = Waits::default();
        let (a, b) = (waits.hold(&id("a")), waits.hold(&id("b")));
        let a_wants_b = waits.want(a.operation, &id("b")).unwrap();
        assert!(waits.want(b.operation, &id("a")).is_err());
        // A slot that is wanted twice stays wanted until both are dropped.
        drop(waits.want(a.operation, &id("b")).unwrap());
        assert!(waits.is_wanted(&id("b")) && waits.want(b.operation, &id("a")).is_err());
        drop(a_wants_b);
        assert!(!waits.is_wanted(&id("b")) && waits.want(b.operation, &id("a")).is_ok());
    }

    #[test]
    fn a_load_that_is_over_is_waited_for_by_nobody() {
        let waits = Waits::default();
        let (a, b) = (waits.hold(&id("a")), waits.hold(&id("b")));
        let _b_wants_a = waits.want(b.operation, &id("a")).unwrap();
        let number = a.operation;
        drop(a);
        let again = waits.hold(&id("a"));
        assert_ne!(again.operation, number);
        assert!(waits.want(number, &id("b")).is_ok(), "the first load of it is over");
        assert!(waits.want(again.operation, &id("b")).is_err());
    }

    #[test]
    fn a_thread_acts_for_the_load_as_long_as_that_lasts() {
        let asker = LoadUnderWay::default();
        assert!(!OnBehalf::is_here());
        let on_behalf = OnBehalf::of(&asker);
        assert_eq!((OnBehalf::is_here(), OnBehalf::load()), (true, None), "it serves");
        let under_way = asker.begin(7);
        assert_eq!(OnBehalf::load(), Some(7));
        drop(under_way);
        assert_eq!(OnBehalf::load(), None);
        drop(on_behalf);
        assert!(!OnBehalf::is_here());
    }
}
