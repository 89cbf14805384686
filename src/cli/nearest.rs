//! Suggests the nearest valid name for a mistyped one.

use strsim::osa_distance;

/// No name is longer than half of this.
const LETTERS_MAX: usize = 128;

/// The candidate with the fewest letters to change, if few enough: letters that are added, left out, replaced, or
/// swapped with their neighbour.
pub fn nearest<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given: String = given.chars().take(LETTERS_MAX).collect();
    let mistakes_max = given.chars().count() / 3 + 1;
    let named = candidates.into_iter().map(|name| (osa_distance(&given, name), name));
    let best = named.min_by_key(|(mistakes, _)| *mistakes);
    best.filter(|(mistakes, _)| *mistakes <= mistakes_max).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (one, other, expected) in
            [("", "", 0), ("", "abc", 3), ("abc", "", 3), ("serve", "sevre", 1), ("chek", "check", 1), ("a", "b", 1)]
        {
            assert_eq!(osa_distance(one, other), expected, "{one} {other}");
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
