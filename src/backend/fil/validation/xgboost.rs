//! What XGBoost's JSON and UBJSON files have in common: the parts of the document that treelite trusts.
//!
//! A reader of the notation reports what it finds; keys are recognised by their names, wherever they are.

use super::{CLASSES_MAX, Invalid, depth_of};

/// The deepest nesting of a document: XGBoost's own have nine levels.
pub const NESTING_MAX: usize = 64;

/// Arrays of numbers that are kept until their object ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum List {
    LeftChildren,
    RightChildren,
    CategoryNodes,
    CategorySegments,
    CategorySizes,
    Categories,
    TreeInfo,
}

const LISTS: [(&[u8], List); 7] = [
    (b"left_children", List::LeftChildren),
    (b"right_children", List::RightChildren),
    (b"categories_nodes", List::CategoryNodes),
    (b"categories_segments", List::CategorySegments),
    (b"categories_sizes", List::CategorySizes),
    (b"categories", List::Categories),
    (b"tree_info", List::TreeInfo),
];

/// Collects the document's trees.
#[derive(Default)]
pub struct Document {
    nesting: Vec<Level>,
    key: Vec<u8>,
    trees: usize,
    tree_info: Option<usize>,
}

struct Level {
    is_array: bool,
    /// It is the array of this name.
    list: Option<List>,
    is_trees: bool,
    lists: [Option<Vec<i64>>; LISTS.len()],
}

impl Document {
    /// The key of the value that follows.
    pub fn key(&mut self, key: &[u8]) {
        self.key.clear();
        self.key.extend_from_slice(key);
    }

    pub fn begin(&mut self, is_array: bool) -> Result<(), Invalid> {
        if self.nesting.len() >= NESTING_MAX {
            return Err(Invalid::Damaged(format!("it is nested in more than {NESTING_MAX} levels")));
        }
        let is_member = self.nesting.last().is_some_and(|level| !level.is_array);
        let list = LISTS.iter().find(|(name, _)| is_array && is_member && *name == self.key).map(|(_, list)| *list);
        if let (Some(list), Some(level)) = (list, self.nesting.last_mut()) {
            let kept = &mut level.lists[list as usize];
            if kept.is_some() {
                return Err(Invalid::Damaged(format!("it has two of {list:?}")));
            }
            *kept = Some(Vec::new());
        }
        let is_trees = is_array && is_member && self.key == b"trees";
        self.nesting.push(Level { is_array, list, is_trees, lists: Default::default() });
        Ok(())
    }

    pub fn end(&mut self) -> Result<(), Invalid> {
        let Some(level) = self.nesting.pop() else { return Ok(()) };
        if level.is_array {
            return Ok(());
        }
        let list = |list: List| level.lists[list as usize].as_deref();
        if let Some(groups) = list(List::TreeInfo) {
            if groups.iter().any(|group| !(0..CLASSES_MAX).contains(group)) {
                return Err(Invalid::Damaged("tree_info has a value that is not a class".to_owned()));
            }
            self.tree_info = Some(groups.len());
        }
        let is_tree = self.nesting.last().is_some_and(|parent| parent.is_trees);
        if is_tree || list(List::LeftChildren).is_some() {
            let tree = self.trees;
            self.trees += 1;
            let fail = |reason: String| Invalid::Tree { tree, reason };
            let left = list(List::LeftChildren).unwrap_or_default();
            let right = list(List::RightChildren).unwrap_or_default();
            if left.len() != right.len() {
                return Err(fail(format!("{} nodes have a left child, {} a right one", left.len(), right.len())));
            }
            let pair = |node: usize| left.get(node).zip(right.get(node)).map(|(left, right)| (*left, *right));
            depth_of(left.len(), |node| Ok(pair(node).filter(|(left, _)| *left != -1))).map_err(fail)?;
            let names = [List::CategoryNodes, List::CategorySegments, List::CategorySizes, List::Categories];
            let [nodes, segments, sizes, categories] = names.map(|name| list(name).unwrap_or_default());
            validate_categories(nodes, segments, sizes, categories.len()).map_err(fail)?;
        }
        Ok(())
    }

    /// A number, if it is whole.
    pub fn number(&mut self, number: Option<i64>) {
        let list = self.nesting.last().and_then(|level| level.list);
        let above = self.nesting.len().checked_sub(2).and_then(|above| self.nesting.get_mut(above));
        if let (Some(list), Some(level)) = (list, above)
            && let Some(kept) = &mut level.lists[list as usize]
        {
            kept.push(number.unwrap_or(i64::MIN));
        }
    }

    /// XGBoost writes the parameters of a model as texts.
    pub fn text(&mut self, text: &[u8]) -> Result<(), Invalid> {
        if !matches!(&*self.key, b"num_class" | b"num_target") {
            return Ok(());
        }
        let number: Option<i64> = std::str::from_utf8(text).ok().and_then(|text| text.trim().parse().ok());
        match number {
            Some(number) if !(0..=CLASSES_MAX).contains(&number) => {
                let key = String::from_utf8_lossy(&self.key);
                Err(Invalid::Damaged(format!("{key} is {number}")))
            }
            // treelite refuses other texts.
            _ => Ok(()),
        }
    }

    /// There is no more of the document. treelite refuses one that is not complete.
    pub fn finish(self) -> Result<(), Invalid> {
        match (self.trees, self.tree_info) {
            _ if !self.nesting.is_empty() => Ok(()),
            (0, _) => Ok(()),
            (trees, Some(groups)) if trees == groups => Ok(()),
            (trees, Some(groups)) => Err(Invalid::Damaged(format!("tree_info has {groups} values for {trees} trees"))),
            (_, None) => Err(Invalid::Damaged("it has trees, but no tree_info".to_owned())),
        }
    }
}

/// The lists of categories are pieces of one array.
fn validate_categories(nodes: &[i64], segments: &[i64], sizes: &[i64], count: usize) -> Result<(), String> {
    if nodes.len() != segments.len() || nodes.len() != sizes.len() {
        return Err("its lists of categories differ in their number".to_owned());
    }
    let is_inside = |(from, size): (&i64, &i64)| {
        let end = from.checked_add(*size).and_then(|end| usize::try_from(end).ok());
        *from >= 0 && *size >= 0 && end.is_some_and(|end| end <= count)
    };
    match segments.iter().zip(sizes).all(is_inside) {
        true => Ok(()),
        false => Err(format!("a list of categories is outside the {count} that it has")),
    }
}
