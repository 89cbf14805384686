//! The engine stops to work for good while the server runs. Nothing can be served then, so the process ends and says
//! why, and a supervisor starts another one.

use super::hamper::Number;
use super::site::Site;
use nereid_test_support::variant::{self, each};

const EPERM: i64 = 1;

#[test]
fn a_server_whose_engine_is_taken_away_ends_with_its_reason() {
    let of_io_uring: Vec<_> = variant::ALL.into_iter().filter(|variant| variant.io_engine == "io_uring").collect();
    each(&of_io_uring, |variant| {
        let Some(site) = Site::start(variant, &[]) else { return };
        site.hamper.set(Number::EnterError, EPERM);
        site.hamper.set(Number::EntersToFail, i64::MAX);
        let disk = site.disk();
        let Site { server, .. } = site;
        let log = || std::fs::read_to_string(disk.join("log")).unwrap_or_default();
        server.wait_until("the log says why", || log().contains("io_uring"));
        let (status, _) = server.wait();
        assert_ne!(status.code(), Some(0), "{status}");
    });
}
