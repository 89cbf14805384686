//! /dev/shm is full: clients get no pages for their objects, and the server none where it writes outputs.

use super::disk::fill;
use super::{Fault, meanwhile};
use crate::chaos::campaign::Campaign;

pub const FULL: Fault = Fault { name: "shared memory full", inject };

fn inject(campaign: &mut Campaign) {
    let filler = campaign.site.shm().join("filler");
    let is_full = fill(&filler);
    campaign.go_on_for(100, 300);
    meanwhile(campaign);
    std::fs::remove_file(&filler).expect("free the shared memory");
    if is_full {
        campaign.injected(FULL.name, 1);
    }
}
