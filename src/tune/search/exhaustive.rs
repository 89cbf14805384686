//! Every choice of the space in turn: the reference for the other searches.

use super::{Course, Phase, Stop};
use crate::space::Choice;

pub fn run(course: &mut Course<'_>, baseline: &Choice) -> Result<(), Stop> {
    let all = course.space.all();
    let middle = all.len() / 2;
    for (at, choice) in all.iter().enumerate() {
        if !course.may_go_on(Phase::Search) {
            break;
        }
        course.evaluate(choice, 1)?;
        if at == middle {
            course.remeasure(baseline)?;
        }
    }
    Ok(())
}
