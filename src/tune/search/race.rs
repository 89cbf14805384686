//! Racing: goes along one field after the other, from the best choice so far, as long as that is a gain.
//!
//! A candidate gets one burst, and further ones only while its interval overlaps that of the best choice. Passes over
//! all fields go on until one of them brings nothing new, because fields depend on each other: more instances need
//! other batches. Where several models have a field, all of them move together first: of two equal models in a row, a
//! better one alone is no gain.

use super::{Contest, Course, Phase, Stop};
use crate::space::Choice;

const PASSES_MAX: usize = 4;

pub fn run(course: &mut Course<'_>, baseline: &Choice) -> Result<(), Stop> {
    let mut best = baseline.clone();
    let axes = axes(course);
    for pass in 0..PASSES_MAX {
        let began = best.clone();
        for axis in &axes {
            climb(course, &mut best, axis)?;
        }
        if pass == 0 && course.may_go_on(Phase::Search) {
            course.remeasure(baseline)?;
        }
        if best == began || !course.may_go_on(Phase::Search) {
            break;
        }
    }
    Ok(())
}

enum Axis {
    /// One field, or the same one of several models.
    Fields(Vec<usize>),
    Load,
}

/// Fields of all models together, then each alone, then the load.
fn axes(course: &Course<'_>) -> Vec<Axis> {
    let fields = &course.space.fields;
    let mut axes = Vec::new();
    for (at, field) in fields.iter().enumerate() {
        let same: Vec<usize> = (0..fields.len())
            .filter(|other| fields.get(*other).is_some_and(|other| other.kind == field.kind))
            .collect();
        if same.len() > 1 && same.first() == Some(&at) {
            axes.push(Axis::Fields(same));
        }
    }
    axes.extend((0..fields.len()).map(|at| Axis::Fields(vec![at])));
    if course.space.loads.is_dimension && course.space.loads.wanted > 1 {
        axes.push(Axis::Load);
    }
    axes
}

/// Up along the axis, and down if that brought nothing. One tie is passed over: the value behind it may be better.
fn climb(course: &mut Course<'_>, best: &mut Choice, axis: &Axis) -> Result<(), Stop> {
    for up in [true, false] {
        let mut at = best.clone();
        let (mut has_won, mut ties) = (false, 0);
        while course.may_go_on(Phase::Search) {
            let Some(next) = step(course, &at, axis, up) else { break };
            let candidate = course.space.canonical(&next);
            at = next;
            if candidate == *best {
                continue;
            }
            if !course.space.allows(&candidate) {
                break;
            }
            // Lower loads are looked for by the evaluation, from the highest one on.
            let candidate = match course.space.loads.is_dimension {
                true => candidate,
                false => Choice { load: 0, ..candidate },
            };
            let (contest, trial) = course.contest(best, &candidate)?;
            match contest {
                Contest::Won => {
                    has_won = true;
                    ties = 0;
                    at = trial.choice.clone();
                    *best = trial.choice;
                }
                Contest::Tied if ties == 0 => ties += 1,
                Contest::Tied | Contest::Lost => break,
            }
        }
        if has_won {
            break;
        }
    }
    Ok(())
}

/// The next value of the axis. Fields that have none stay, unless none of them has one.
fn step(course: &Course<'_>, at: &Choice, axis: &Axis, up: bool) -> Option<Choice> {
    let moved = |value: usize, count: usize| match up {
        true => value.checked_add(1).filter(|value| *value < count),
        false => value.checked_sub(1),
    };
    let mut next = at.clone();
    let mut has_moved = false;
    match axis {
        Axis::Load => {
            next.load = moved(next.load, course.space.loads.wanted)?;
            has_moved = true;
        }
        Axis::Fields(fields) => {
            for field in fields {
                let count = course.space.fields.get(*field)?.values.len();
                let value = next.values.get_mut(*field)?;
                if let Some(other) = moved(*value, count) {
                    *value = other;
                    has_moved = true;
                }
            }
        }
    }
    has_moved.then_some(next)
}
