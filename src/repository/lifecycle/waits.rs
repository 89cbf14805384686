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
    waiting: Vec<(u64, ModelId)>,
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
                pending.extend(self.waiting.iter().filter(|(load, _)| *load == holder).map(|(_, slot)| slot));
            }
        }
        None
    }
}

impl Waits {
    /// Records a wait for the slot on behalf of the load, until the returned value is dropped.
    pub fn wait_for(&self, load: u64, slot: &ModelId) -> Result<SlotWait<'_>, Status> {
        let mut table = lock(&self.table);
        if let Some(model) = table.circle(load, slot) {
            return Err(circle(&model.name, &slot.name));
        }
        table.waiting.push((load, slot.clone()));
        Ok(SlotWait { waits: self, load, slot: slot.clone() })
    }

    /// Records that an operation holds the slot, until the returned value is dropped.
    pub fn hold(&self, slot: &ModelId) -> SlotHold<'_> {
        let mut table = lock(&self.table);
        table.operations_so_far += 1;
        let operation = table.operations_so_far;
        table.holders.insert(slot.clone(), operation);
        SlotHold { waits: self, operation, slot: slot.clone() }
    }

    /// Whether a load waits for the operation that holds this slot.
    pub fn is_awaited(&self, slot: &ModelId) -> bool {
        lock(&self.table).waiting.iter().any(|(_, wanted)| wanted == slot)
    }
}

fn circle(model: &str, wanted: &str) -> Status {
    match model == wanted {
        true => Status::unavailable(format!("model '{model}' cannot load or unload itself while it is being loaded")),
        false => Status::unavailable(format!(
            "model '{wanted}' cannot be loaded or unloaded for model '{model}' while '{model}' is being loaded, \
             because the load of '{wanted}' waits for '{model}'"
        )),
    }
}

/// See [`Waits::wait_for`].
pub struct SlotWait<'a> {
    waits: &'a Waits,
    load: u64,
    slot: ModelId,
}

impl Drop for SlotWait<'_> {
    fn drop(&mut self) {
        let mut table = lock(&self.waits.table);
        // A load may wait for a slot twice.
        let at = table.waiting.iter().position(|(load, slot)| *load == self.load && *slot == self.slot);
        at.map(|at| table.waiting.swap_remove(at));
    }
}

/// See [`Waits::hold`].
pub struct SlotHold<'a> {
    waits: &'a Waits,
    pub operation: u64,
    slot: ModelId,
}

impl Drop for SlotHold<'_> {
    fn drop(&mut self) {
        lock(&self.waits.table).holders.remove(&self.slot);
    }
}

thread_local! {
    static ON_BEHALF_OF: RefCell<Option<LoadUnderWay>> = const { RefCell::new(None) };
}

/// While this lives, its thread acts on behalf of a model.
pub struct OnBehalf {
    before: Option<LoadUnderWay>,
}

impl OnBehalf {
    pub fn of(model: &LoadUnderWay) -> OnBehalf {
        OnBehalf { before: ON_BEHALF_OF.replace(Some(model.clone())) }
    }

    pub fn is_here() -> bool {
        ON_BEHALF_OF.with_borrow(Option::is_some)
    }

    /// The load that waits for the current operation of this thread.
    pub fn load() -> Option<u64> {
        ON_BEHALF_OF.with_borrow(|model| model.as_ref()?.operation())
    }
}

impl Drop for OnBehalf {
    fn drop(&mut self) {
        ON_BEHALF_OF.set(self.before.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> ModelId {
        ModelId { name: name.to_owned(), ..ModelId::default() }
    }

    fn refused(outcome: Result<SlotWait<'_>, Status>) -> String {
        outcome.err().expect("a refusal").message.into_owned()
    }

    #[test]
    fn a_load_that_would_wait_for_itself_is_refused_over_however_many_others() {
        let waits = Waits::default();
        let a = waits.hold(&id("a"));
        let text = "model 'a' cannot load or unload itself while it is being loaded";
        assert_eq!(refused(waits.wait_for(a.operation, &id("a"))), text);
        let _a_awaits_b = waits.wait_for(a.operation, &id("b")).unwrap();
        let b = waits.hold(&id("b"));
        let _b_awaits_c = waits.wait_for(b.operation, &id("c")).unwrap();
        let c = waits.hold(&id("c"));
        let text = "model 'a' cannot be loaded or unloaded for model 'c' while 'c' is being loaded, because the load \
                    of 'a' waits for 'c'";
        assert_eq!(refused(waits.wait_for(c.operation, &id("a"))), text);
        assert!(waits.wait_for(c.operation, &id("d")).is_ok(), "others may be loaded");
    }

    #[test]
    fn of_two_that_load_each_other_the_second_is_refused() {
        let waits = Waits::default();
        let (a, b) = (waits.hold(&id("a")), waits.hold(&id("b")));
        let a_awaits_b = waits.wait_for(a.operation, &id("b")).unwrap();
        assert!(waits.wait_for(b.operation, &id("a")).is_err());
        // A slot with two waits stays awaited until both are dropped.
        drop(waits.wait_for(a.operation, &id("b")).unwrap());
        assert!(waits.is_awaited(&id("b")) && waits.wait_for(b.operation, &id("a")).is_err());
        drop(a_awaits_b);
        assert!(!waits.is_awaited(&id("b")) && waits.wait_for(b.operation, &id("a")).is_ok());
    }

    #[test]
    fn nothing_waits_for_a_load_that_is_over() {
        let waits = Waits::default();
        let (a, b) = (waits.hold(&id("a")), waits.hold(&id("b")));
        let _b_awaits_a = waits.wait_for(b.operation, &id("a")).unwrap();
        let number = a.operation;
        drop(a);
        let again = waits.hold(&id("a"));
        assert_ne!(again.operation, number);
        assert!(waits.wait_for(number, &id("b")).is_ok(), "the first load of it is over");
        assert!(waits.wait_for(again.operation, &id("b")).is_err());
    }

    #[test]
    fn a_thread_acts_for_the_load_as_long_as_that_lasts() {
        let model = LoadUnderWay::default();
        assert!(!OnBehalf::is_here());
        let on_behalf = OnBehalf::of(&model);
        assert_eq!((OnBehalf::is_here(), OnBehalf::load()), (true, None), "it serves");
        let under_way = model.begin(7);
        assert_eq!(OnBehalf::load(), Some(7));
        drop(under_way);
        assert_eq!(OnBehalf::load(), None);
        drop(on_behalf);
        assert!(!OnBehalf::is_here());
    }
}
