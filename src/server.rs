//! Assembly: options, start-up order, readiness, drain. What opens libraries is given to it (`libraries`).
//!
//! The order is Triton's (contract/cli.md section 7): models first, so that no port answers before every start-up model
//! has settled; then gRPC, HTTP, the ports of the clouds and metrics; and back in the same order when a signal ends the
//! server.

pub mod access;
mod budget;
pub mod build_facts;
mod clouds;
mod control;
mod core;
mod devices;
mod drain;
pub mod embedded;
mod environment;
pub mod frontend;
pub mod inherited;
mod inproc_executor;
pub mod inspect;
mod ipc;
mod key_files;
mod libraries;
mod listeners;
mod load;
mod metrics;
mod model_control;
mod openai;
pub mod options;
mod process_limits;
mod residency;
mod shards;
mod submission;
mod supervisor;
mod tables;
mod takeover;
pub mod trial;
mod watchdog;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use tracing::{error, info, warn};

pub use self::core::host_policies;
use self::core::{Core, Guard};
use crate::api::Records;
use control::RepositoryPoller;
use inherited::InheritedSockets;
use inspect::{FlagValue, Inspect};
use key_files::{KeyFiles, KeyWatch};
pub use libraries::Libraries;
use nereid_observe::audit::AuditLog;
use nereid_observe::log::Logger;
use nereid_observe::panics;
use nereid_recording::Recorder;
use nereid_request::Status;
use nereid_shard::Host;
use nereid_shard::listener::SocketFile;
use options::{ModelControl, Options};
pub use process_limits::bound_allocator;
use shards::Shards;
pub use shards::is_shard;
use takeover::Takeover;
use watchdog::Watchdog;

/// Runs the server until a signal ends it.
pub fn run(
    options: &Options,
    libraries: &Libraries,
    inherited: InheritedSockets,
    announcement: &str,
    flags: Vec<FlagValue>,
) -> ExitCode {
    match serve(options, libraries, inherited, announcement, flags) {
        Ok(code) => code,
        Err(failure) => {
            report(&failure, options);
            ExitCode::FAILURE
        }
    }
}

/// Reports a failure once to each reader: as a record of the log, or as a plain line where the log does not take it,
/// and in both forms where the log is a file. As in Triton, an error that keeps a server from being created is no log
/// record on stderr.
fn report(failure: &Failure, options: &Options) {
    let is_record = options.log.error && !(options.log.file.is_none() && matches!(failure, Failure::Creating(_)));
    let next_step = match failure {
        Failure::Port { next_step: Some(step), .. } => format!("next step: {step}"),
        Failure::Limit(error) => format!("next step: {}", error.next_step()),
        _ => String::new(),
    };
    if is_record {
        error!("{failure}");
        if !next_step.is_empty() {
            error!("{next_step}");
        }
    }
    if !is_record || options.log.file.is_some() {
        print(std::io::stderr(), format!("{failure}\n{next_step}").trim_end_matches('\n'));
        print(std::io::stderr(), "\n");
    }
}

/// What a recording names as its server.
const PROGRAM: &str = concat!("nereid ", env!("CARGO_PKG_VERSION"));

/// Why the server does not start, or does not end in time.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("error: creating server: {} - {}", .0.code.name(), .0.message)]
    Creating(Status),
    #[error("{0}")]
    Start(String),
    #[error("failed to start {service} service: {} - {}", .status.code.name(), .status.message)]
    Port { service: &'static str, status: Status, next_step: Option<String> },
    #[error("failed to stop server: {} - {}", .0.code.name(), .0.message)]
    Stop(Status),
    #[error(transparent)]
    Limit(process_limits::TooSmall),
}

fn serve(
    options: &Options,
    libraries: &Libraries,
    mut inherited: InheritedSockets,
    announcement: &str,
    flags: Vec<FlagValue>,
) -> Result<ExitCode, Failure> {
    options.check().map_err(Failure::Creating)?;
    let probe = shards::try_engine(options, Host::Glommio);
    // Loading may take minutes, so errors of the ports are found before. They do not answer until they listen.
    let mut tls = listeners::load_tls(options)?;
    let takeover = options.take_over.as_deref().map(|path| {
        let (takeover, sockets) = Takeover::begin(path)
            .map_err(|error| Failure::Start(format!("--take-over={}: {error}", path.display())))?;
        inherited.extend(sockets);
        Ok(takeover)
    });
    let takeover = takeover.transpose()?;
    let mut ports = listeners::reserve(options, &mut inherited)?;
    let key_files = KeyFiles::open(options).map_err(Failure::Start)?;
    let audit = options.audit_log.as_deref().map(AuditLog::start).transpose();
    let audit = audit.map_err(|error| Failure::Start(format!("--audit-log: {error}")))?.map(Arc::new);
    let recorder = options.record.settings().map(|settings| Recorder::start(settings, PROGRAM)).transpose();
    let requests = recorder.map_err(|error| Failure::Start(format!("--record: {error}")))?.map(Arc::new);
    let records = Records { audit, requests };
    let core = Core::start(options, libraries, Guard { access: key_files.access(), records })?;
    let Core { lifecycle, facts, options, .. } = &*core;
    if core.openai_is_on_by_model {
        let opened = listeners::load_tls(options)
            .and_then(|tls| Ok((tls, listeners::reserve_rest(options, ports, &mut inherited)?)))
            .inspect_err(|_| drain::unload(lifecycle, options.exit_timeout_secs))?;
        (tls, ports) = opened;
    }
    // Before any port answers, so that a signal is then handled; during loading it kills at once.
    let ends = drain::EndReceiver::install()
        .map_err(|error| Failure::Start(format!("failed to register signal handler: Internal - {error}")))?;
    // The models are loaded before a port opens, so the ports never report another state, however early a client
    // connects.
    facts.set_state(core.state_after_start());
    let mut shards = match Shards::start(shards::Parts {
        options,
        placement: &core.placement,
        pool: core.pool.clone(),
        owns_heap: true,
        facts: Arc::clone(facts),
        lifecycle: Arc::clone(lifecycle),
        render_metrics: {
            let core = Arc::clone(&core);
            Arc::new(move |format| core.render_metrics(format))
        },
        inspect: Some(Inspect::new(Arc::clone(&core), &flags)),
        metrics: Arc::clone(&core.metrics),
        ipc_counts: core.ipc_counts.clone(),
        load: load::monitor(options, lifecycle, &core.metrics),
        thread_name: "shard",
        host: Host::Glommio,
        ends: ends.sender(),
        probe,
        tls,
        ports,
        inherited: &mut inherited,
        takeover: takeover.as_ref(),
    }) {
        Ok(shards) => shards,
        Err(failure) => {
            drain::unload(lifecycle, options.exit_timeout_secs);
            return Err(failure);
        }
    };
    shards.log_endpoints();
    inherited.warn_of_unused();
    drop(inherited);
    let (takeover_file, has_replaced) = match takeover {
        Some(takeover) => take_over(takeover, &mut shards, &ends)?,
        None => (None, false),
    };
    let watchdog = Watchdog::start(shards.job_posts(), Arc::clone(facts), supervisor::watchdog_interval(has_replaced));
    let _watchdog = watchdog.map_err(|error| Failure::Start(format!("cannot start a thread: {error}")))?;
    supervisor::notify(supervisor::READY);
    print(std::io::stdout(), announcement);
    let poller = match options.model_control {
        ModelControl::Poll { period_secs } if !core.has_failed => Some(RepositoryPoller::start(lifecycle, period_secs)),
        _ => None,
    };
    let _poller = poller.transpose().map_err(|error| Failure::Start(format!("cannot start a thread: {error}")))?;
    let publish = shards.access_publisher();
    let key_watch = KeyWatch::start(key_files, publish);
    let key_watch = key_watch.map_err(|error| Failure::Start(format!("cannot start a thread: {error}")))?;
    let mut taken_over = None;
    match ends.wait() {
        Ok(drain::EndReason::Signal(signal)) => print(std::io::stdout(), &format!("Signal ({signal}) received.\n")),
        Ok(drain::EndReason::TakenOver(taken)) => {
            // The other server listens there now.
            if let Some(file) = takeover_file {
                file.keep();
            }
            taken_over = Some(taken);
        }
        // An end with an error is better than connections that get no answers.
        Ok(drain::EndReason::Shard(shard)) => return Err(Failure::Start(format!("shard {shard} ended by itself"))),
        Err(error) => return Err(Failure::Start(format!("cannot wait for signals: {error}"))),
    }
    if taken_over.is_none() {
        supervisor::notify(supervisor::STOPPING);
    }
    drop(key_watch);
    let outcome = drain::run(options, &ends, facts, shards, lifecycle, taken_over.as_ref());
    core.finish_records();
    (libraries.report_handles)();
    outcome
}

/// Reports to the running server that this one answers, and offers the sockets to the next one.
/// Returns the file at the path, which is removed with it, and whether a server was replaced.
fn take_over(
    takeover: Takeover,
    shards: &mut Shards,
    ends: &drain::EndReceiver,
) -> Result<(Option<SocketFile>, bool), Failure> {
    let (listener, has_replaced) = takeover.finish(shards.taken_over());
    if has_replaced {
        shards.own_files();
        // The service's process is this one from now on.
        supervisor::notify(&format!("MAINPID={}", std::process::id()));
    }
    let Some(offered) = shards.offered() else { return Ok((None, has_replaced)) };
    let started = listener.start(offered, ends.sender());
    let file = started.map_err(|error| Failure::Start(format!("cannot start a thread: {error}")))?;
    Ok((file, has_replaced))
}

/// Prints; the reader may be gone, in which case `println!` would panic.
fn print(mut stream: impl Write, text: &str) {
    let _ = stream.write_all(text.as_bytes()).and_then(|()| stream.flush());
}

/// Starts the log of the process.
pub fn start_log(options: &Options) -> Result<Logger, String> {
    let logger = Logger::start(&options.log, options.escape_log_messages).map_err(|error| error.to_string())?;
    logger.install().map_err(|error| error.to_string())?;
    panics::install();
    info!("Nereid {} answers as Triton {}", env!("CARGO_PKG_VERSION"), crate::api::SERVER_VERSION);
    logger.check_file().map_err(|error| error.to_string())?;
    environment::warnings(std::env::vars_os()).iter().for_each(|warning| warn!("{warning}"));
    Ok(logger)
}
