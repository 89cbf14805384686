//! The name that somebody meant who wrote another.

/// The candidate with the fewest letters to change, if few enough.
pub fn nearest<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let mistakes_max = given.chars().take(LETTERS_MAX).count() / 3 + 1;
    let best = candidates.into_iter().map(|name| (distance(given, name), name)).min_by_key(|(mistakes, _)| *mistakes);
    best.filter(|(mistakes, _)| *mistakes <= mistakes_max).map(|(_, name)| name)
}

/// Letters that are added, left out, replaced, or swapped with their neighbour (optimal string alignment).
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().take(LETTERS_MAX).collect(), other.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.iter().enumerate() {
        let mut row = vec![at + 1];
        for (column, candidate) in other.iter().enumerate() {
            let replaced = last[column] + usize::from(letter != candidate);
            let mut least = replaced.min(last[column + 1] + 1).min(row[column] + 1);
            let is_swapped = at > 0 && column > 0 && one[at - 1] == *candidate && other[column - 1] == *letter;
            if is_swapped && let Some(swapped) = before.get(column - 1) {
                least = least.min(swapped + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[other.len()]
}

/// No name is longer than half of this.
const LETTERS_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (one, other, expected) in
            [("", "", 0), ("", "abc", 3), ("abc", "", 3), ("serve", "sevre", 1), ("chek", "check", 1), ("a", "b", 1)]
        {
            assert_eq!(distance(one, other), expected, "{one} {other}");
        }
    }

    #[test]
    fn what_is_far_away_is_not_meant() {
        let names = ["serve", "quickstart", "check"];
        assert_eq!(nearest("quikstart", names), Some("quickstart"));
        assert_eq!(nearest("sevre", names), Some("serve"));
        assert_eq!(nearest("Check", names), Some("check"));
        assert_eq!(nearest("nonsense", names), None);
        assert_eq!(nearest(&"x".repeat(100_000), names), None);
        assert_eq!(nearest("serve", []), None);
    }
}
