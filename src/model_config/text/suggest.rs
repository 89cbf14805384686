//! The valid names that a misspelt one was probably meant to be.

/// Names compared in full are at most this long; a longer one has no neighbour among a schema's names.
const LONGEST: usize = 64;
const MOST: usize = 3;

/// `; did you mean "a" or "b"?` with the nearest of `valid`, empty where none is near.
pub fn suggestion<'a>(unknown: &str, valid: impl Iterator<Item = &'a str>) -> String {
    // A third of the letters may be wrong: below that, names of a schema are mistaken for each other. One letter has to
    // be right.
    let bound = (unknown.len() / 3).max(2).min(unknown.len().saturating_sub(1));
    if unknown.len() > LONGEST {
        return String::new();
    }
    let mut near: Vec<(usize, &str)> =
        valid.map(|name| (distance(unknown, name), name)).filter(|(distance, _)| *distance <= bound).collect();
    near.sort_unstable();
    near.truncate(MOST);
    let names: Vec<String> = near.iter().map(|(_, name)| format!("\"{name}\"")).collect();
    if names.is_empty() { String::new() } else { format!("; did you mean {}?", names.join(" or ")) }
}

/// Levenshtein's distance in bytes, letters compared without case.
fn distance(a: &str, b: &str) -> usize {
    let [a, b] = [a, b].map(|text| text.to_ascii_lowercase().into_bytes());
    strsim::generic_levenshtein(&a, &b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        let cases = [("", "", 0), ("a", "", 1), ("", "ab", 2), ("kitten", "sitting", 3), ("NAME", "name", 0)];
        for (a, b, expected) in cases {
            assert_eq!(distance(a, b), expected, "{a} {b}");
            assert_eq!(distance(b, a), expected, "{b} {a}");
        }
    }

    #[test]
    fn suggests_only_near_names() {
        let valid = ["max_batch_size", "name", "input", "output"];
        assert_eq!(suggestion("max_batchsize", valid.into_iter()), "; did you mean \"max_batch_size\"?");
        assert_eq!(suggestion("inputs", valid.into_iter()), "; did you mean \"input\"?");
        assert_eq!(suggestion("zzzzzz", valid.into_iter()), "");
        assert_eq!(suggestion("a", ["b", "ab", "aa"].into_iter()), "", "no letter of so short a name would be left");
        assert_eq!(suggestion(&"input".repeat(20), valid.into_iter()), "");
        assert_eq!(
            suggestion("dims", ["dim", "dims_", "dime"].into_iter()),
            "; did you mean \"dim\" or \"dime\" or \"dims_\"?"
        );
    }
}
