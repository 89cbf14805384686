//! The engine stops to work for good while the server runs. Nothing can be served then, so the process ends and says
//! why, and a supervisor starts another one.

use std::fs::File;
use std::io::Read;

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
        // Its private disk ends with the process; this descriptor keeps the file.
        let mut log = File::open(site.disk().join("log")).expect("the log");
        let Site { server, folder: _folder, repository: _repository, .. } = site;
        let (status, said) = server.wait();
        let mut text = String::new();
        log.read_to_string(&mut text).expect("the log");
        let text = format!("{text}{said}");
        assert_eq!(status.code(), Some(1), "{status}: {text}");
        for said in ["io_uring has failed: Operation not permitted", "ended by itself"] {
            assert!(text.contains(said), "{said:?}: {text}");
        }
    });
}
