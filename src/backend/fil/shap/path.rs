//! The features on the way from a tree's root to a node, with the weights of all subsets of them by their size.

/// A way through a tree. Each feature occurs once: one that decides again is taken out and put behind.
#[derive(Debug, Clone, Default)]
pub struct Path {
    steps: Vec<Step>,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    /// `None` for the root.
    feature: Option<usize>,
    /// The part of training rows that go this way if the feature is not known.
    zero: f64,
    /// 1 if the row goes this way, else 0.
    one: f64,
    /// Sum of the weights of subsets with as many features as there are steps before this one.
    weight: f64,
}

impl Path {
    /// Back to the root.
    pub fn begin(&mut self) {
        self.steps.clear();
        self.push(None, 1.0, 1.0);
    }

    pub fn extend(&mut self, feature: usize, zero: f64, one: f64) {
        self.push(Some(feature), zero, one);
    }

    fn push(&mut self, feature: Option<usize>, zero: f64, one: f64) {
        let weight = if self.steps.is_empty() { 1.0 } else { 0.0 };
        self.steps.push(Step { feature, zero, one, weight });
        let len = self.steps.len();
        for at in (1..len).rev() {
            let (before, behind) = self.steps.split_at_mut(at);
            if let (Some(from), Some(to)) = (before.last_mut(), behind.first_mut()) {
                to.weight += one * from.weight * at as f64 / len as f64;
                from.weight *= zero * (len - at) as f64 / len as f64;
            }
        }
    }

    /// Takes a feature out and returns its fractions; `None` if it is not on the way.
    pub fn remove(&mut self, feature: usize) -> Option<(f64, f64)> {
        let at = self.steps.iter().position(|step| step.feature == Some(feature))?;
        let removed = *self.steps.get(at)?;
        self.without(at, |step, weight| step.weight = weight);
        // Weights belong to places, not to features.
        for place in at..self.steps.len().saturating_sub(1) {
            if let Some(Step { feature, zero, one, .. }) = self.steps.get(place + 1).copied()
                && let Some(step) = self.steps.get_mut(place)
            {
                (step.feature, step.zero, step.one) = (feature, zero, one);
            }
        }
        self.steps.pop();
        Some((removed.zero, removed.one))
    }

    /// Each feature on the way and what a leaf's value is multiplied with for it.
    pub fn weights(&mut self) -> Vec<(usize, f64)> {
        let features = self.steps.iter().enumerate().filter_map(|(at, step)| Some((at, step.feature?, *step)));
        let features: Vec<(usize, usize, Step)> = features.collect();
        let weight = |(at, feature, step): (usize, usize, Step)| {
            let mut sum = 0.0;
            self.without(at, |_, weight| sum += weight);
            (feature, sum * (step.one - step.zero))
        };
        features.into_iter().map(weight).collect()
    }

    /// Calls `keep` with each place but the last and the weight that it has without the step at `at`.
    fn without(&mut self, at: usize, mut keep: impl FnMut(&mut Step, f64)) {
        let (Some(removed), Some(last)) = (self.steps.get(at).copied(), self.steps.last().copied()) else { return };
        let len = self.steps.len() as f64;
        let mut next = last.weight;
        let places = self.steps.len() - 1;
        for (place, step) in self.steps.iter_mut().enumerate().take(places).rev() {
            let (before, behind) = ((place + 1) as f64, len - (place + 1) as f64);
            let weight = if removed.one != 0.0 {
                let weight = next * len / (before * removed.one);
                next = step.weight - weight * removed.zero * behind / len;
                weight
            } else if removed.zero != 0.0 {
                step.weight * len / (removed.zero * behind)
            } else {
                0.0
            };
            keep(step, weight);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taking_a_feature_out_undoes_putting_it_in() {
        let mut path = Path::default();
        path.begin();
        path.extend(3, 0.25, 1.0);
        path.extend(5, 0.5, 0.0);
        let before = path.clone();
        for (zero, one) in [(0.75, 1.0), (0.75, 0.0)] {
            path.extend(7, zero, one);
            assert_eq!(path.remove(7), Some((zero, one)));
            for (step, expected) in path.steps.iter().zip(&before.steps) {
                assert!((step.weight - expected.weight).abs() < 1e-12, "{path:?}");
            }
        }
        assert_eq!(path.remove(9), None);
        // One from the middle moves the others forward.
        path.extend(7, 0.75, 1.0);
        assert_eq!(path.remove(3), Some((0.25, 1.0)));
        let features: Vec<_> = path.steps.iter().map(|step| step.feature).collect();
        assert_eq!(features, [None, Some(5), Some(7)]);
    }

    #[test]
    fn one_decision_moves_the_leaf_by_its_missing_part() {
        let mut path = Path::default();
        path.begin();
        path.extend(0, 0.25, 1.0);
        assert_eq!(path.weights(), [(0, 0.75)]);
        path.begin();
        path.extend(0, 0.25, 0.0);
        assert_eq!(path.weights(), [(0, -0.25)]);
    }
}
