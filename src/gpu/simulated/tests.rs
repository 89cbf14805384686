//! Tests of the stand-in.

mod graphs;
mod order;
mod programs;
mod sharing;
mod violations;

use super::super::driver::{
    Access, Argument, DeviceAddress, Driver, EventHandle, EventOptions, Extent, Program, Result, StreamHandle,
};
use super::{Simulated, Spec};

/// Bytes of one access.
const LEN: usize = 1000;

/// Adds its number to every byte: address, length, number.
static ADD: Program = Program { name: "add", ptx: "", on_host: add };

/// A kernel that panics.
static PANIC: Program = Program { name: "panic", ptx: "", on_host: panic };

unsafe fn add(arguments: &[Argument]) {
    let &[Argument::Address(at), Argument::U64(len), Argument::U32(number)] = arguments else { return };
    let at = super::memory::pointer(at.0);
    for index in 0..len as usize {
        // SAFETY: by contract the range is this kernel's.
        unsafe { *at.add(index) = (*at.add(index)).wrapping_add(number as u8) }
    }
}

unsafe fn panic(_: &[Argument]) {
    panic!("requested by the test");
}

/// Two streams and an event of device 0, and shorter names for their operations.
struct Rig {
    driver: Simulated,
    one: StreamHandle,
    two: StreamHandle,
    event: EventHandle,
}

impl Rig {
    fn new(seed: u64) -> Rig {
        Rig::of(Spec::prompt(2, seed))
    }

    fn of(spec: Spec) -> Rig {
        let driver = Simulated::new(spec);
        let (one, two) = (driver.create_stream(0).unwrap(), driver.create_stream(0).unwrap());
        let event = driver.create_event(0, EventOptions::default()).unwrap();
        Rig { driver, one, two, event }
    }

    fn memory(&self) -> DeviceAddress {
        self.driver.allocate(0, LEN).unwrap()
    }

    fn copy_in(&self, stream: StreamHandle, to: DeviceAddress, from: &[u8]) -> Result<()> {
        // SAFETY: the tests keep both until the work is complete, or the driver refuses.
        unsafe { self.driver.copy_in(0, stream, to, from.as_ptr(), from.len()) }
    }

    fn copy_out(&self, stream: StreamHandle, to: &mut [u8], from: DeviceAddress) -> Result<()> {
        // SAFETY: the tests keep both until the work is complete, or the driver refuses.
        unsafe { self.driver.copy_out(0, stream, to.as_mut_ptr(), from, to.len()) }
    }

    fn copy(&self, stream: StreamHandle, to: DeviceAddress, from: DeviceAddress, len: usize) -> Result<()> {
        // SAFETY: the tests keep both until the work is complete, or the driver refuses.
        unsafe { self.driver.copy_across(0, stream, (0, to), (0, from), len) }
    }

    fn fill(&self, stream: StreamHandle, at: DeviceAddress, value: u8) -> Result<()> {
        // SAFETY: the tests keep both until the work is complete, or the driver refuses.
        unsafe { self.driver.fill(0, stream, at, value, LEN) }
    }

    fn add(&self, stream: StreamHandle, at: DeviceAddress, number: u32) -> Result<()> {
        let kernel = self.driver.load(0, &ADD)?;
        let arguments = [Argument::Address(at), Argument::U64(LEN as u64), Argument::U32(number)];
        let accesses = [false, true].map(|writes| Access { at, len: LEN, writes });
        let extent = Extent { blocks: 1, threads: 1 };
        // SAFETY: the tests keep both until the work is complete, or the driver refuses.
        unsafe { self.driver.launch(0, stream, kernel, extent, &arguments, &accesses) }
    }

    /// Waits for all work in the stream.
    fn finish(&self, stream: StreamHandle) -> Result<()> {
        let event = self.driver.create_event(0, EventOptions { sleeps: true, is_timed: false })?;
        self.driver.record(0, event, stream)?;
        let done = self.driver.synchronize(0, event);
        // SAFETY: no other code has it.
        unsafe { self.driver.destroy_event(0, event) };
        done
    }

    /// Later work in `later` waits for the work in `earlier`.
    fn order(&self, earlier: StreamHandle, later: StreamHandle) -> Result<()> {
        self.driver.record(0, self.event, earlier)?;
        self.driver.wait(0, later, self.event)
    }

    fn read(&self, at: DeviceAddress) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        self.copy_out(self.one, &mut bytes, at).unwrap();
        self.finish(self.one).unwrap();
        bytes
    }

    /// The one violation there is.
    fn violation(&self) -> String {
        let violations = self.driver.violations();
        assert_eq!(violations.len(), 1, "{violations:#?}");
        let code = self.driver.memory(0).expect_err("the device is broken").code;
        assert_eq!(code, 700);
        violations[0].clone()
    }

    fn assert_correct(&self) {
        assert_eq!(self.driver.violations(), Vec::<String>::new());
    }
}
