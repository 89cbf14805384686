//! Every choice of the space in turn: the reference for the other searches.

use super::{Course, Phase, Stop};
use crate::space::Choice;

pub fn run(course: &mut Course<'_>, baseline: &Choice) -> Result<(), Stop> {
    let space = course.space;
    let middle = space.size() / 2;
    let mut measured = 0;
    for choice in space.walk() {
        if !course.may_go_on(Phase::Search) {
            break;
        }
        let Some(choice) = choice else { continue };
        course.evaluate(&choice, 1)?;
        if measured == middle {
            course.remeasure(baseline)?;
        }
        measured += 1;
    }
    Ok(())
}
