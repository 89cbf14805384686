//! What the models of the suite must compute, repeated here from the formulas in tests/python/frameworks, and the
//! numbers that tests send.

use super::forests;

/// A result may differ by this: formats round in different orders, but none may compute with fewer bits than FP32.
/// BF16 would be off by some thousandths.
pub const TOLERANCE: f32 = 1e-5;

/// The function of a model that maps each row of FP32 numbers by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Function {
    /// 16 numbers, 8 hidden ones behind a ReLU, 4 results.
    Network,
    /// 4 numbers, and the probabilities of 3 classes.
    Forest,
    /// 16 numbers, which come back.
    Copy,
}

impl Function {
    pub fn inputs(self) -> usize {
        match self {
            Function::Network | Function::Copy => 16,
            Function::Forest => forests::FEATURES,
        }
    }

    pub fn outputs(self) -> usize {
        match self {
            Function::Network => 4,
            Function::Forest => forests::CLASSES,
            Function::Copy => 16,
        }
    }

    /// The results of rows that lie one behind the other.
    pub fn of(self, numbers: &[f32]) -> Vec<f32> {
        numbers.chunks(self.inputs()).flat_map(|row| self.of_row(row)).collect()
    }

    fn of_row(self, row: &[f32]) -> Vec<f32> {
        match self {
            Function::Network => network(row),
            Function::Forest => forests::probabilities(row),
            Function::Copy => row.to_vec(),
        }
    }
}

/// `count` quarters between -1.5 and 1.5, others for each `seed`.
pub fn quarters(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|at| ((5 * at + 3 * seed + at * seed) % 13) as f32 / 4. - 1.5).collect()
}

#[track_caller]
pub fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    let is_close = |(found, expected): (&f32, &f32)| (found - expected).abs() <= TOLERANCE;
    let are_close = found.len() == expected.len() && found.iter().zip(expected).all(is_close);
    assert!(are_close, "{what}: got {found:?}, expected {expected:?}");
}

/// Computed in FP64, so that the error is that of the model alone.
fn network(row: &[f32]) -> Vec<f32> {
    const HIDDEN: usize = 8;
    let rounded = |number: f64| f64::from(number as f32);
    let first = |i: usize, j: usize| rounded((((7 * i + 3 * j) % 11) as f64 - 5.) / 10.);
    let bias = |j: usize| (j as f64 - 3.) / 4.;
    let second = |j: usize, k: usize| rounded((((5 * j + 2 * k) % 7) as f64 - 3.) / 10.);
    let hidden = |j: usize| {
        let sum: f64 = row.iter().enumerate().map(|(i, number)| f64::from(*number) * first(i, j)).sum();
        (sum + bias(j)).max(0.)
    };
    let hidden: Vec<f64> = (0..HIDDEN).map(hidden).collect();
    (0..4).map(|k| hidden.iter().enumerate().map(|(j, number)| number * second(j, k)).sum::<f64>() as f32).collect()
}
