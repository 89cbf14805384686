//! Model Analyzer's quick search (contract/tune.md section 2), for comparison: climbs in the plane of largest batch and
//! instances of each model, in the direction in which the measured neighbours are better.
//!
//! Dynamic batching is on wherever it may be, without a delay; all other fields stay. The neighbourhood has a radius of
//! 3, and at least 3 measured neighbours before a step. Differences from the original: the order of neighbours is fixed
//! instead of random, and the sweep of loads of the best ones is left out.

use super::{Course, Phase, Stop};
use crate::space::{Choice, FieldKind, Value};

const RADIUS: i64 = 3;
const NEIGHBOURS_MIN: usize = 3;
/// Neighbours that are looked at.
const NEIGHBOURS_MAX: usize = 4096;
/// Steps of the climb.
const STEPS_MAX: usize = 64;

pub fn run(course: &mut Course<'_>, baseline: &Choice) -> Result<(), Stop> {
    let space = course.space;
    let axes: Vec<usize> = (0..space.fields.len())
        .filter(|at| {
            let kind = space.fields.get(*at).map(|field| &field.kind);
            matches!(kind, Some(FieldKind::MaxBatch | FieldKind::Instances))
        })
        .collect();
    if axes.is_empty() {
        return Ok(());
    }
    let mut home = baseline.clone();
    for (field, value) in space.fields.iter().zip(&mut home.values) {
        match field.kind {
            FieldKind::Delay => {
                *value = field.values.iter().position(|value| *value == Value::Number(0)).unwrap_or(*value);
            }
            FieldKind::MaxBatch | FieldKind::Instances => *value = 0,
            _ => {}
        }
    }
    for _ in 0..STEPS_MAX {
        let here = course.evaluate(&space.canonical(&home), 1)?;
        let mut measured = Vec::new();
        for neighbour in neighbours(&home, &axes, space) {
            let candidate = space.canonical(&neighbour);
            let is_known = course.tried.contains_key(&candidate);
            if (!is_known && measured.len() >= NEIGHBOURS_MIN) || !space.allows(&candidate) {
                continue;
            }
            if !course.may_go_on(Phase::Search) {
                return Ok(());
            }
            let trial = course.evaluate(&candidate, 1)?;
            measured.push((neighbour, trial));
        }
        // The weighted sum of the directions, each with its gain.
        let own = here.interval().mean.max(1e-9);
        let mut direction = vec![0.0; axes.len()];
        for (neighbour, trial) in &measured {
            let gain = if trial.fits() { trial.interval().mean / own - 1.0 } else { -1.0 };
            for (sum, axis) in direction.iter_mut().zip(&axes) {
                let (to, from) = (neighbour.values.get(*axis), home.values.get(*axis));
                *sum += gain * (to.copied().unwrap_or(0) as f64 - from.copied().unwrap_or(0) as f64);
            }
        }
        let length = direction.iter().map(|part| part * part).sum::<f64>().sqrt();
        let mut next = home.clone();
        for (part, axis) in direction.iter().zip(&axes) {
            let most = space.fields.get(*axis).map_or(0, |field| field.values.len().saturating_sub(1)) as f64;
            if let Some(value) = next.values.get_mut(*axis) {
                let moved = *value as f64 + (part / length.max(1e-9) * RADIUS as f64).round();
                *value = moved.clamp(0.0, most) as usize;
            }
        }
        // Back to a place that was measured: from the best neighbour on, or over.
        if course.tried.contains_key(&space.canonical(&next)) {
            let best = measured.iter().filter(|(_, trial)| trial.is_better_than(&here));
            let best = best.max_by(|(_, one), (_, other)| one.interval().mean.total_cmp(&other.interval().mean));
            match best {
                Some((neighbour, _)) => next = neighbour.clone(),
                None => return Ok(()),
            }
        }
        if !space.allows(&space.canonical(&next)) {
            return Ok(());
        }
        home = next;
    }
    Ok(())
}

/// Those within the radius, the nearest first: a step along one axis, or along two at a time.
fn neighbours(home: &Choice, axes: &[usize], space: &crate::space::Space) -> Vec<Choice> {
    let moved = |choice: &Choice, axis: usize, offset: i64| -> Option<Choice> {
        let count = space.fields.get(axis)?.values.len();
        let mut moved = choice.clone();
        let value = moved.values.get_mut(axis)?;
        *value = usize::try_from(*value as i64 + offset).ok().filter(|value| *value < count)?;
        Some(moved)
    };
    let offsets = || (-RADIUS..=RADIUS).filter(|offset| *offset != 0);
    let mut found = Vec::new();
    for distance in 1..=RADIUS * RADIUS {
        let mut ring = Vec::new();
        for (at, axis) in axes.iter().enumerate() {
            for offset in offsets() {
                let left = distance - offset * offset;
                let Some(one) = moved(home, *axis, offset).filter(|_| left >= 0) else { continue };
                if left == 0 {
                    ring.push(one);
                    continue;
                }
                let others = axes.get(at + 1..).unwrap_or_default();
                for (other, second) in others.iter().flat_map(|other| offsets().map(move |second| (*other, second))) {
                    if found.len() + ring.len() >= NEIGHBOURS_MAX {
                        break;
                    }
                    if second * second == left {
                        ring.extend(moved(&one, other, second));
                    }
                }
            }
        }
        ring.sort();
        found.extend(ring);
        if found.len() >= NEIGHBOURS_MAX {
            break;
        }
    }
    found
}
