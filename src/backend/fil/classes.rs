//! What a classifier answers for the scores of its classes (contract/frameworks.md section 4, "Tensors and results").

/// The class of one row as a number: with one score, whether it is above `threshold`.
pub fn class_of(scores: &[f32], threshold: f32) -> f32 {
    match scores {
        [score] => f32::from(u8::from(*score > threshold)),
        _ => index_of_largest(scores),
    }
}

/// The first of the largest scores above 0.0; without one, the first class.
#[expect(clippy::cast_precision_loss, reason = "the protocol returns the class as a float")]
fn index_of_largest(scores: &[f32]) -> f32 {
    let (mut best, mut largest) = (0, 0.0);
    for (index, score) in scores.iter().enumerate() {
        if *score > largest {
            (best, largest) = (index, *score);
        }
    }
    best as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_score_must_be_above_the_threshold() {
        for (score, threshold, class) in
            [(0.5, 0.5, 0.0), (0.500_1, 0.5, 1.0), (0.1, 0.0, 1.0), (0.0, 0.0, 0.0), (-1.0, -2.0, 1.0)]
        {
            assert_eq!(class_of(&[score], threshold), class, "{score} {threshold}");
        }
        assert_eq!(class_of(&[f32::NAN], 0.5), 0.0);
    }

    #[test]
    fn the_first_of_the_largest_positive_scores_wins() {
        for (scores, class) in [
            ([0.2, 0.5, 0.3], 1.0),
            ([0.4, 0.4, 0.2], 0.0),
            ([0.2, 0.4, 0.4], 1.0),
            ([-3.0, -1.0, -2.0], 0.0),
            ([-3.0, 0.0, -2.0], 0.0),
            ([-3.0, f32::NAN, 1e-30], 2.0),
        ] {
            assert_eq!(class_of(&scores, 0.9), class, "{scores:?}");
        }
    }
}
