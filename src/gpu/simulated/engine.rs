//! The thread that does the work of one simulated device: any operation that is due may be the next.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::MutexGuard;
use std::time::Instant;

use super::super::driver::DriverError;
use super::SimulatedCore;
use super::work::Work;
use super::world::World;

/// Runs until the driver closes.
pub(super) fn run(shared: &SimulatedCore, device: usize) {
    let mut world = shared.lock();
    while !world.is_closing {
        world = match choose(&mut world, device) {
            Choice::Operation(id) => execute(shared, world, id),
            Choice::Later(due) => {
                let wait = due.saturating_duration_since(Instant::now());
                let (world, _) = shared.work.wait_timeout(world, wait).unwrap_or_else(|poisoned| poisoned.into_inner());
                world
            }
            Choice::Nothing => shared.work.wait(world).unwrap_or_else(|poisoned| poisoned.into_inner()),
        };
    }
}

enum Choice {
    Operation(u64),
    Later(Instant),
    Nothing,
}

/// Chooses one of the operations that are due, by the seed.
fn choose(world: &mut World, device: usize) -> Choice {
    if world.holds > 0 {
        return Choice::Nothing;
    }
    let Some(device) = world.devices.get_mut(device) else { return Choice::Nothing };
    let now = Instant::now();
    let is_due = |due: &Instant| device.broken.is_some() || *due <= now;
    let due: Vec<usize> =
        device.ready.iter().enumerate().filter(|(_, (_, due))| is_due(due)).map(|(place, _)| place).collect();
    if due.is_empty() {
        return device.ready.iter().map(|(_, due)| *due).min().map_or(Choice::Nothing, Choice::Later);
    }
    let chosen = due[device.choices.below(due.len() as u64) as usize];
    Choice::Operation(device.ready.swap_remove(chosen).0)
}

/// Runs the operation, without the lock: a kernel may take long.
fn execute<'a>(shared: &'a SimulatedCore, mut world: MutexGuard<'a, World>, id: u64) -> MutexGuard<'a, World> {
    let Some(operation) = world.operations.get_mut(&id) else { return world };
    let (device, work) = (operation.device, operation.task.work.clone());
    if let Some(code) = operation.fails.take() {
        world.break_device(device, code);
    } else {
        drop(world);
        // SAFETY: the spans were checked when it was enqueued, memory that incomplete work uses is not freed, and all
        // that conflicts with it is complete or waits for it.
        let done = catch_unwind(AssertUnwindSafe(|| unsafe { work.run() }));
        world = shared.lock();
        if done.is_err() {
            let name = match &work {
                Work::Kernel { program, .. } => program.name,
                Work::Foreign(_) => "a launch of another library",
                _ => "a copy",
            };
            world.break_device(device, DriverError::LAUNCH_FAILED);
            world.violate("cuLaunchKernel", Some(device), &format!("{name} panicked"));
        }
    }
    world.complete(id);
    shared.done.notify_all();
    shared.work.notify_all();
    world
}
