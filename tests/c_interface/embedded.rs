//! The server inside a Rust application that links it: it does not change the application's own state.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use nereid_observe::log;
use nereid_test_support::own_process::is_own_process;
use nereid_test_support::repository::{Pair, Repository};
use tritonserver::abi::LIBRARIES;
use tritonserver::abi::server::log::{LogSetting, apply};
use tritonserver::server::access::Access;
use tritonserver::server::options::Options;

/// The application's own log: it counts.
struct Counting(Arc<AtomicUsize>);

impl<S: Subscriber> Layer<S> for Counting {
    fn on_event(&self, _event: &Event<'_>, _context: Context<'_, S>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// One test for the process: its log is one.
#[test]
fn the_log_of_an_application_is_left_alone() {
    if !is_own_process("embedded::the_log_of_an_application_is_left_alone") {
        return;
    }
    let count = Arc::new(AtomicUsize::new(0));
    let own = tracing_subscriber::registry().with(Counting(Arc::clone(&count)));
    tracing::subscriber::set_global_default(own).expect("the first subscriber");
    let repository = Repository::new();
    repository.identity("echo", 0, &[Pair::new("INT8", "1")]);

    // What options say of the log is not for the application's.
    let file = repository.path().with_extension("log");
    let path = file.to_str().expect("a path that is UTF-8");
    for wish in [
        LogSetting::Info(false),
        LogSetting::Error(false),
        LogSetting::Verbose(3),
        LogSetting::Format(1),
        LogSetting::File(path),
    ] {
        assert_eq!(apply(&wish), Ok(()), "{wish:?}");
    }
    assert!(apply(&LogSetting::Format(7)).is_err());
    assert!(log::installed().is_none() && !Path::new(path).exists());

    let options = Options { model_repositories: vec![repository.path().into()], ..Options::without_ports() };
    let server = Access::embed(&options, &LIBRARIES).expect("a server");
    assert_eq!(server.is_ready(), Ok(true));
    assert!(server.model("echo", None).is_ok());
    assert!(count.load(Ordering::Relaxed) > 0, "the server's messages go to the application's log");
    assert_eq!(server.end(), Ok(()));
    // It is gone, and with it the right to end it.
    assert!(server.end().is_err() && server.is_live().is_err());
}
