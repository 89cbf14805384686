//! Shapley values of a prediction: how much each feature moves the sum of a class away from its mean.
//!
//! The algorithm is TreeSHAP with the distribution along the paths of a tree (Lundberg, Erion, Lee: "Consistent
//! Individualized Feature Attribution for Tree Ensembles", 2018, algorithm 2). It needs to know how many training rows
//! went through each node, so the columns of the trees are copied when a model is loaded.

mod path;

use std::ffi::CStr;

use self::path::Path;
use crate::forest::{ForestError, Header};
use crate::treelite::{Handle, TreeliteError};
use nereid_request::Status;

/// Deeper trees are refused: the sums along their paths lose their accuracy.
const DEPTH_MAX: usize = 31;

const CATEGORICAL: i8 = 2;

/// The largest category that a float names exactly.
const CATEGORY_MAX: f32 = 16_777_216.0;

/// The copied trees of a forest.
pub struct Explainer {
    trees: Vec<Tree>,
    features: usize,
    classes: usize,
    /// Mean of each class, without the base scores of the forest.
    means: Vec<f64>,
    base_scores: Vec<f64>,
    /// What the sum of each class is divided by.
    divisors: Vec<f64>,
}

struct Tree {
    nodes: Vec<Node>,
    /// The class that leaves add to; `None`: they have a value for each.
    class: Option<usize>,
    /// Values of a leaf.
    leaf_len: usize,
    /// Values of leaves.
    values: Vec<f64>,
    categories: Vec<u32>,
}

struct Node {
    /// Its share of the training rows, in the unit of the file.
    cover: f64,
    kind: NodeKind,
}

enum NodeKind {
    /// The first of its values.
    Leaf(usize),
    Split(Split),
}

struct Split {
    children: [usize; 2],
    feature: usize,
    is_default_left: bool,
    test: Test,
}

enum Test {
    /// Code of the comparison and its right side.
    Number(i8, f64),
    /// The listed categories go right, or left.
    Categories { from: usize, to: usize, go_right: bool },
}

/// Why a forest has no Shapley values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShapError {
    #[error("Model does not have node statistics.")]
    NoStatistics,
    #[error("Tree depths above 32 not supported. Shap cannot be considered accurate at this depth.")]
    TooDeep,
    #[error(transparent)]
    Treelite(#[from] TreeliteError),
}

impl From<ShapError> for Status {
    fn from(error: ShapError) -> Status {
        match error {
            ShapError::Treelite(error) => ForestError::Treelite(error).into(),
            other => Status::unsupported(other.to_string()),
        }
    }
}

impl Explainer {
    /// `header` is that of the validated forest.
    pub fn new(handle: &Handle, header: &Header) -> Result<Explainer, ShapError> {
        if header.depth > DEPTH_MAX {
            return Err(ShapError::TooDeep);
        }
        let classes = header.classes;
        let trees = header.class_of_tree.iter().enumerate();
        let trees: Vec<Tree> =
            trees.map(|(index, class)| Tree::of(handle, index, *class, classes)).collect::<Result<_, _>>()?;
        let of_class = |class: usize| trees.iter().filter(move |tree| tree.class.is_none_or(|own| own == class));
        let divisor = |class: usize| if header.is_average { of_class(class).count().max(1) as f64 } else { 1.0 };
        let divisors: Vec<f64> = (0..classes).map(divisor).collect();
        let mut means = vec![0.0; classes];
        for tree in &trees {
            tree.add_mean(0, 1.0, &mut means);
        }
        Ok(Explainer {
            features: header.features,
            classes,
            means,
            base_scores: header.base_scores.clone(),
            divisors,
            trees,
        })
    }

    /// Values of the features of `row` for each class, the class's mean behind them.
    pub fn explain(&self, row: &[f32]) -> Vec<f32> {
        let columns = self.features + 1;
        let mut values = vec![0.0; self.classes * columns];
        let mut path = Path::default();
        for tree in &self.trees {
            path.begin();
            tree.explain(0, row, &mut path, columns, &mut values);
        }
        let classes =
            values.chunks_exact_mut(columns).zip(&self.means).zip(self.base_scores.iter().zip(&self.divisors));
        for ((values, mean), (base_score, divisor)) in classes {
            values.iter_mut().for_each(|value| *value /= divisor);
            if let Some(last) = values.last_mut() {
                *last += mean / divisor + base_score;
            }
        }
        #[expect(clippy::cast_possible_truncation, reason = "the output is FP32")]
        values.into_iter().map(|value| value as f32).collect()
    }
}

/// A column of floats, whatever their type.
fn floats(handle: &Handle, tree: usize, name: &'static CStr) -> Result<Vec<f64>, TreeliteError> {
    match handle.tree::<f32>(tree, name) {
        Ok(values) => Ok(values.iter().copied().map(f64::from).collect()),
        Err(_) => Ok(handle.tree::<f64>(tree, name)?.to_vec()),
    }
}

/// The training rows of each node: sums of their second derivatives where the model has them, else counts.
fn covers(handle: &Handle, tree: usize, nodes: usize) -> Result<Vec<f64>, ShapError> {
    let is_complete = |present: &[u8]| present.len() == nodes && present.iter().all(|present| *present == 1);
    if is_complete(handle.tree(tree, c"sum_hess_present")?) {
        let sums = handle.tree::<f64>(tree, c"sum_hess")?;
        if sums.len() == nodes {
            return Ok(sums.to_vec());
        }
    }
    if is_complete(handle.tree(tree, c"data_count_present")?) {
        let counts = handle.tree::<u64>(tree, c"data_count")?;
        if counts.len() == nodes {
            return Ok(counts.iter().map(|count| *count as f64).collect());
        }
    }
    Err(ShapError::NoStatistics)
}

impl Tree {
    fn of(handle: &Handle, tree: usize, class: Option<usize>, classes: usize) -> Result<Tree, ShapError> {
        let kinds = handle.tree::<i8>(tree, c"node_type")?;
        let (left, right) = (handle.tree::<i32>(tree, c"cleft")?, handle.tree::<i32>(tree, c"cright")?);
        let features = handle.tree::<i32>(tree, c"split_index")?;
        let comparisons = handle.tree::<i8>(tree, c"cmp")?;
        let defaults = handle.tree::<u8>(tree, c"default_left")?;
        let go_right = handle.tree::<u8>(tree, c"category_list_right_child")?;
        let thresholds = floats(handle, tree, c"threshold")?;
        let vectors = handle.tree::<u64>(tree, c"leaf_vector_begin")?;
        let bounds =
            (handle.tree::<u64>(tree, c"category_list_begin")?, handle.tree::<u64>(tree, c"category_list_end")?);
        let covers = covers(handle, tree, kinds.len())?;
        let values = floats(handle, tree, if class.is_none() { c"leaf_vector" } else { c"leaf_value" })?;
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let index = |column: &[i32], node: usize| column.get(node).and_then(|number| usize::try_from(*number).ok());
        let flag = |column: &[u8], node: usize| column.get(node) == Some(&1);
        let node = |(at, cover): (usize, &f64)| {
            let kind = match (index(left, at), index(right, at), index(features, at)) {
                (Some(left), Some(right), Some(feature)) => {
                    let test = match kinds.get(at) {
                        Some(&CATEGORICAL) => Test::Categories {
                            from: bounds.0.get(at).copied().map_or(0, number),
                            to: bounds.1.get(at).copied().map_or(0, number),
                            go_right: flag(go_right, at),
                        },
                        _ => Test::Number(
                            comparisons.get(at).copied().unwrap_or(0),
                            thresholds.get(at).copied().unwrap_or(f64::NAN),
                        ),
                    };
                    let is_default_left = flag(defaults, at);
                    NodeKind::Split(Split { children: [left, right], feature, is_default_left, test })
                }
                _ if class.is_none() => NodeKind::Leaf(vectors.get(at).copied().map_or(usize::MAX, number)),
                _ => NodeKind::Leaf(at),
            };
            Node { cover: *cover, kind }
        };
        let nodes = covers.iter().enumerate().map(node).collect();
        let leaf_len = if class.is_none() { classes } else { 1 };
        let categories = handle.tree::<u32>(tree, c"category_list")?.to_vec();
        Ok(Tree { nodes, class, leaf_len, values, categories })
    }

    /// The child that the row goes to is the first of both.
    fn children(&self, split: &Split, row: &[f32]) -> [usize; 2] {
        let value = row.get(split.feature).copied().unwrap_or(f32::NAN);
        let goes_left = match split.test {
            _ if value.is_nan() => split.is_default_left,
            Test::Number(comparison, threshold) => {
                let value = f64::from(value);
                match comparison {
                    1 => value == threshold,
                    2 => value < threshold,
                    3 => value <= threshold,
                    4 => value > threshold,
                    _ => value >= threshold,
                }
            }
            Test::Categories { from, to, go_right } => {
                let listed = self.categories.get(from..to).unwrap_or_default();
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in range")]
                let is_listed = (0.0..=CATEGORY_MAX).contains(&value) && listed.contains(&(value as u32));
                is_listed != go_right
            }
        };
        let [left, right] = split.children;
        if goes_left { [left, right] } else { [right, left] }
    }

    /// The classes that a leaf adds to, with what it adds.
    fn values_of(&self, first: usize) -> impl Iterator<Item = (usize, f64)> + '_ {
        let values = self.values.get(first..first.saturating_add(self.leaf_len)).unwrap_or_default();
        values.iter().enumerate().map(|(index, value)| (self.class.unwrap_or(index), *value))
    }

    /// Adds the mean of the leaves below `node` to their classes, weighted by `share`. Depths are bounded by the
    /// forest's, which is [`DEPTH_MAX`] at most.
    fn add_mean(&self, node: usize, share: f64, means: &mut [f64]) {
        match self.nodes.get(node) {
            Some(Node { kind: NodeKind::Leaf(first), .. }) => {
                for (class, value) in self.values_of(*first) {
                    if let Some(mean) = means.get_mut(class) {
                        *mean += share * value;
                    }
                }
            }
            Some(Node { kind: NodeKind::Split(split), cover }) => {
                for child in split.children {
                    self.add_mean(child, share * self.fraction(child, *cover), means);
                }
            }
            None => {}
        }
    }

    /// The part of the parent's training rows that went to `child`.
    fn fraction(&self, child: usize, cover_of_parent: f64) -> f64 {
        let cover = self.nodes.get(child).map_or(0.0, |node| node.cover);
        if cover_of_parent > 0.0 { cover / cover_of_parent } else { 0.0 }
    }

    fn explain(&self, node: usize, row: &[f32], path: &mut Path, columns: usize, values: &mut [f64]) {
        match self.nodes.get(node) {
            Some(Node { kind: NodeKind::Leaf(first), .. }) => {
                for (feature, weight) in path.weights() {
                    for (class, value) in self.values_of(*first) {
                        if let Some(sum) = values.get_mut(class * columns + feature) {
                            *sum += weight * value;
                        }
                    }
                }
            }
            Some(Node { kind: NodeKind::Split(split), cover }) => {
                let [hot, cold] = self.children(split, row);
                let (earlier_zero, earlier_one) = path.remove(split.feature).unwrap_or((1.0, 1.0));
                for (child, one) in [(hot, earlier_one), (cold, 0.0)] {
                    let mut longer = path.clone();
                    longer.extend(split.feature, self.fraction(child, *cover) * earlier_zero, one);
                    self.explain(child, row, &mut longer, columns, values);
                }
            }
            None => {}
        }
    }
}
