//! Text files of LightGBM: each tree is whole, has as many numbers as it has leaves, and its nodes form a tree.
//!
//! treelite repeats the last number of a list that is too short, and reads a file that was cut off between two trees
//! as a smaller model. A model for which zeros are missing values is refused, because treelite takes its zeros for
//! numbers and would predict other values than LightGBM.

use std::collections::HashMap;

use super::{CLASSES_MAX, Invalid, depth_of};

type Entries<'a> = HashMap<&'a str, &'a str>;

pub fn validate(bytes: &[u8]) -> Result<(), Invalid> {
    let text = String::from_utf8_lossy(bytes);
    let mut header = Entries::new();
    let mut trees: Vec<Entries<'_>> = Vec::new();
    let mut has_end = false;
    for line in text.lines() {
        let line = line.trim_end();
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        match trees.last_mut() {
            _ if key == "Tree" => trees.push(Entries::new()),
            Some(tree) => {
                has_end |= matches!(key, "end of trees" | "feature importances:" | "feature_importances:");
                tree.insert(key, value);
            }
            None => {
                header.insert(key, value);
            }
        }
    }
    if let Some(sizes) = header.get("tree_sizes") {
        let (announced, found) = (sizes.split_ascii_whitespace().count(), trees.len());
        if announced != found || (found > 0 && !has_end) {
            let text = format!("it has {announced} trees, of which {found} begin, and no end after the last one");
            return Err(Invalid::Truncated(text));
        }
    }
    // Without this entry treelite refuses the file, with a text that users know.
    if trees.is_empty() && header.contains_key("max_feature_idx") && !header.contains_key("tree_sizes") {
        return Err(Invalid::Truncated("it has neither trees nor their number".to_owned()));
    }
    if let Some(classes) = header.get("num_class") {
        let number = number(classes);
        if !number.is_some_and(|number| (1..=CLASSES_MAX).contains(&number)) {
            return Err(Invalid::Damaged(format!("num_class is '{classes}'")));
        }
    }
    for (index, tree) in trees.iter().enumerate() {
        validate_tree(tree).map_err(|reason| Invalid::Tree { tree: index, reason })?;
        // The first bit: categories; the third and fourth: what is missing, 1 for zeros.
        let is_zero = |decision: &str| number(decision).is_some_and(|bits| bits & 0b1101 == 0b0100);
        if tree.get("decision_type").is_some_and(|decisions| decisions.split(' ').any(is_zero)) {
            return Err(Invalid::ZeroIsMissing);
        }
    }
    Ok(())
}

fn validate_tree(tree: &Entries<'_>) -> Result<(), String> {
    // treelite names a missing entry.
    let (Some(leaves), Some(categorical)) = (tree.get("num_leaves"), tree.get("num_cat")) else { return Ok(()) };
    let count = |text: &str| number(text).and_then(|number| usize::try_from(number).ok());
    let leaves = count(leaves).filter(|count| *count > 0).ok_or_else(|| format!("num_leaves is '{leaves}'"))?;
    let categorical = count(categorical).ok_or_else(|| format!("num_cat is '{categorical}'"))?;
    demand_count(tree, "leaf_value", leaves)?;
    demand_count(tree, "leaf_count", leaves)?;
    if categorical > 0 {
        validate_categories(tree, categorical)?;
    }
    let nodes = leaves - 1;
    if nodes == 0 {
        return Ok(());
    }
    for key in ["split_feature", "threshold", "split_gain", "internal_count", "decision_type"] {
        demand_count(tree, key, nodes)?;
    }
    if let (Some(decisions), Some(thresholds)) = (tree.get("decision_type"), tree.get("threshold")) {
        let categories = decisions.split(' ').zip(thresholds.split(' ')).take(nodes);
        for (decision, threshold) in
            categories.filter(|(decision, _)| number(decision).is_none_or(|bits| bits & 1 == 1))
        {
            let list = count(threshold).filter(|list| *list < categorical);
            list.ok_or_else(|| format!("decision '{decision}' has list '{threshold}' of {categorical} categories"))?;
        }
    }
    let (Some(left), Some(right)) = (tree.get("left_child"), tree.get("right_child")) else { return Ok(()) };
    let (left, right) = (numbers("left_child", left, nodes)?, numbers("right_child", right, nodes)?);
    // A leaf is the complement of its number; here leaves follow the nodes.
    let child = |number: i64| if number < 0 { -1 - number + nodes as i64 } else { number };
    depth_of(nodes + leaves, |node| Ok(left.get(node).zip(right.get(node)).map(|(l, r)| (child(*l), child(*r)))))?;
    // A node number in the range of the leaves would be taken for a leaf here, but not by treelite.
    match left.iter().chain(&right).find(|number| **number >= nodes as i64) {
        Some(number) => Err(format!("there is no node {number}")),
        None => Ok(()),
    }
}

/// Lists of categories are pieces of one array of bits.
fn validate_categories(tree: &Entries<'_>, lists: usize) -> Result<(), String> {
    let (Some(bounds), Some(bits)) = (tree.get("cat_boundaries"), tree.get("cat_threshold")) else { return Ok(()) };
    let bounds = numbers("cat_boundaries", bounds, lists.saturating_add(1))?;
    let words = bits.split(' ').count() as i64;
    let ascends = bounds.is_sorted() && bounds.first().is_some_and(|first| *first >= 0);
    match bounds.last() {
        Some(last) if ascends && *last <= words => Ok(()),
        _ => Err("cat_boundaries are not those of cat_threshold".to_owned()),
    }
}

fn demand_count(tree: &Entries<'_>, key: &str, count: usize) -> Result<(), String> {
    let Some(value) = tree.get(key).filter(|value| !value.is_empty()) else { return Ok(()) };
    let found = value.split(' ').take(count).filter(|token| !token.is_empty()).count();
    if found == count { Ok(()) } else { Err(format!("{key} has {found} values instead of {count}")) }
}

/// The first `count` numbers of a list.
fn numbers(key: &str, value: &str, count: usize) -> Result<Vec<i64>, String> {
    let parsed = value.split(' ').take(count).map(number);
    let numbers: Option<Vec<i64>> = parsed.collect();
    match numbers {
        Some(numbers) if numbers.len() == count => Ok(numbers),
        Some(numbers) => Err(format!("{key} has {} values instead of {count}", numbers.len())),
        None => Err(format!("{key} has a value that is not a number")),
    }
}

fn number(text: &str) -> Option<i64> {
    let number: f64 = text.parse().ok()?;
    // Thresholds of categories are written as numbers with a fraction.
    let is_whole = number.fract() == 0.0 && number.abs() < 1e15;
    #[expect(clippy::cast_possible_truncation, reason = "it is whole and below 2^53")]
    is_whole.then_some(number as i64)
}
