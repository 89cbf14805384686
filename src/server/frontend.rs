//! Ports of a server inside an application, opened and closed while it runs: one service for each front end, on shards
//! of its own.
//!
//! They are the program's ports: the same listeners, shards and service. What differs is the application's business: no
//! signal ends them, no thread is bound to a core, and no supervisor is notified. A front end holds its server, so that
//! clients of a server that was stopped get an answer (contract/python_api.md section 14).

mod settings;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::time::Duration;

use super::access::Access;
use super::core::Core;
use super::embedded::Embedded;
use super::inherited::InheritedSockets;
use super::key_files::KeyFiles;
use super::options::Restriction;
use super::shards::{self, Shards};
use super::watchdog::Watchdog;
use super::{drain, listeners, load};
use crate::api::ServerState;
use nereid_observe::log::LogGuard;
use nereid_request::Status;
use nereid_shard::Host;
use nereid_shard::placement::{Cores, Placement, SpinFlags};

use settings::Settings;
pub use settings::{Kind, Value};

/// See the [module](self).
pub struct Frontend {
    /// Gone once the server is deleted.
    server: Weak<Embedded>,
    /// For the next start.
    settings: Mutex<Settings>,
    running: Mutex<Option<Running>>,
}

/// The open port.
struct Running {
    shards: Shards,
    watchdog: Watchdog,
    /// The server's parts, which are there until the port is closed.
    core: Arc<Core>,
    /// Dropped last.
    log: LogGuard,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Frontend {
    /// A front end of a server that the application owns; it opens no port yet.
    pub fn new(server: &Access, kind: Kind) -> Result<Frontend, Status> {
        let not_owned = || Status::unsupported("this server belongs to its own program, whose flags open its ports");
        let server = server.embedded().map_err(|_| not_owned())?;
        let settings = Mutex::new(Settings::new(kind, server.core().options.clone()));
        Ok(Frontend { server: Arc::downgrade(&server), settings, running: Mutex::default() })
    }

    /// Sets an option for the next start.
    pub fn set(&self, name: &str, value: Value<'_>) -> Result<(), Status> {
        lock(&self.settings).set(name, value)
    }

    /// Requires a header with a value for requests of a group, for the next start on.
    pub fn restrict(&self, restriction: Restriction) -> Result<(), Status> {
        lock(&self.settings).restrict(restriction)
    }

    /// Opens the port; it answers when this returns.
    pub fn start(&self) -> Result<(), Status> {
        let mut running = lock(&self.running);
        let settings = lock(&self.settings).clone();
        if running.is_some() {
            let text = format!("{} server is already running.", settings.kind.name());
            return Err(Status::already_exists(text));
        }
        *running = Some(self.open(&settings)?);
        Ok(())
    }

    fn open(&self, settings: &Settings) -> Result<Running, Status> {
        let core = self.server.upgrade().map(|server| Arc::clone(server.core()));
        let core = core.filter(|core| core.facts.state() != ServerState::Exiting);
        let core = core.ok_or_else(|| Status::unavailable("Server not ready"))?;
        let options = &settings.options;
        let probe = shards::try_engine(options, Host::Thread);
        let tls = listeners::load_tls(options)?;
        let mut inherited = InheritedSockets::default();
        let ports = listeners::reserve(options, &mut inherited)?;
        let access = KeyFiles::open(options).map_err(Status::invalid)?.access();
        let facts = core.facts_of_ports(options, access)?;
        let placement = placement(settings.threads)?;
        let shards = Shards::start(shards::Parts {
            options,
            placement: &placement,
            pool: core.pool.clone(),
            owns_heap: false,
            facts: Arc::clone(&facts),
            lifecycle: Arc::clone(&core.lifecycle),
            render_metrics: {
                let core = Arc::clone(&core);
                Arc::new(move |format| core.render_metrics(format))
            },
            inspect: None,
            metrics: Arc::clone(&core.metrics),
            ipc_counts: None,
            load: load::monitor(options, &core.lifecycle, &core.metrics),
            thread_name: settings.kind.thread_name(),
            host: Host::Thread,
            // The watchdog reports a shard that ends by itself; no thread waits here.
            ends: mpsc::channel().0,
            probe,
            tls,
            ports,
            inherited: &mut inherited,
            takeover: None,
        })?;
        shards.log_endpoints();
        match Watchdog::start(shards.job_posts(), facts, None) {
            Ok(watchdog) => Ok(Running { shards, watchdog, core, log: LogGuard::new() }),
            Err(error) => {
                shards.stop();
                Err(Status::internal(format!("cannot start a thread: {error}")))
            }
        }
    }

    /// The port that is bound, which tells what port 0 became.
    pub fn port(&self) -> Result<u16, Status> {
        let running = lock(&self.running);
        let port = running.as_ref().and_then(|running| running.shards.ports().first().copied());
        port.ok_or_else(|| self.not_running())
    }

    fn not_running(&self) -> Status {
        Status::unavailable(format!("{} server is not running.", lock(&self.settings).kind.name()))
    }

    /// Closes the port: accepted requests are finished within the time for that, the others get an error.
    pub fn stop(&self) -> Result<(), Status> {
        // Held until the port is closed: a start meanwhile would find it in use.
        let mut place = lock(&self.running);
        let Running { shards, watchdog, core, log } = place.take().ok_or_else(|| self.not_running())?;
        let time = lock(&self.settings).drain_timeout.unwrap_or_else(|| self.exit_timeout(&core));
        // Shards that end now do so on purpose.
        drop(watchdog);
        drain::close(shards, time);
        drop((core, log));
        drop(place);
        Ok(())
    }

    fn exit_timeout(&self, core: &Core) -> Duration {
        let server = self.server.upgrade();
        let secs = server.map_or(core.options.exit_timeout_secs, |server| server.exit_timeout_secs());
        Duration::from_secs(u64::from(secs))
    }
}

impl Drop for Frontend {
    fn drop(&mut self) {
        // A failure means that the port is closed.
        let _ = self.stop();
    }
}

/// As many shards as the program would have, and at most as many as the application allows threads.
fn placement(threads_max: usize) -> Result<Placement, Status> {
    let failed = |error: String| Status::internal(format!("cannot read the cores: {error}"));
    let cores = Cores::of_this_process().map_err(|error| failed(error.to_string()))?;
    let (placement, _) = cores.arrange(None, SpinFlags::default()).map_err(|error| failed(error.to_string()))?;
    let shards = placement.shards.len().min(threads_max).max(1);
    Ok(Placement { shards: vec![None; shards], ..Placement::unpinned() })
}

#[cfg(test)]
mod tests;
