//! The wall clock jumps: back by up to a year, or forward.

use super::{Fault, meanwhile};
use crate::chaos::campaign::Campaign;
use crate::chaos::hamper::Number;

pub const SET_BACK: Fault = Fault { name: "wall clock set back", inject };

const OFFSETS_S: [i64; 4] = [-1, -3600, -31_536_000, 86_400];

fn inject(campaign: &mut Campaign) {
    let offset = OFFSETS_S[campaign.random.below(OFFSETS_S.len())];
    let before = campaign.site.hamper.get(Number::ClockReadings);
    campaign.site.hamper.set(Number::ClockOffsetS, offset);
    campaign.go_on_for(50, 200);
    meanwhile(campaign);
    // From the future this, too, is a step back.
    campaign.site.hamper.set(Number::ClockOffsetS, 0);
    campaign.go_on_for(50, 100);
    let readings = campaign.site.hamper.get(Number::ClockReadings) - before;
    campaign.injected(SET_BACK.name, u64::from(readings > 0));
}
