//! `io_uring_enter` fails for a while as the kernel lets it fail without memory, or when a signal comes; and no further
//! ring is set up.

use super::Fault;
use crate::chaos::campaign::Campaign;
use crate::chaos::hamper::Number;

pub const REFUSED: Fault = Fault { name: "io_uring refused", inject };

/// EINTR, EAGAIN, EBUSY.
const ERRORS: [i64; 3] = [4, 11, 16];
const EPERM: i64 = 1;

fn inject(campaign: &mut Campaign) {
    let times = 1 + campaign.random.below(500) as i64;
    let error = ERRORS[campaign.random.below(ERRORS.len())];
    let hamper = &campaign.site.hamper;
    let before = hamper.get(Number::EntersFailed);
    hamper.set(Number::SetupError, EPERM);
    hamper.set(Number::EnterError, error);
    hamper.set(Number::EntersToFail, times);
    campaign.go_on_for(100, 300);
    let hamper = &campaign.site.hamper;
    hamper.set(Number::EntersToFail, 0);
    hamper.set(Number::SetupError, 0);
    let failed = hamper.get(Number::EntersFailed) - before;
    campaign.injected(REFUSED.name, failed as u64);
}
