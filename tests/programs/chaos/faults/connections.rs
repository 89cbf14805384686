//! A client process is killed: its connections end wherever they are. The clients cut single ones themselves.

use super::Fault;
use crate::chaos::campaign::Campaign;

pub const KILLED_CLIENT: Fault = Fault { name: "client killed", inject };

fn inject(campaign: &mut Campaign) {
    campaign.replace_victim();
    campaign.injected(KILLED_CLIENT.name, 1);
}
