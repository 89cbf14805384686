//! A forest that is safe to predict with: what treelite read from a file, held against what its predictor trusts.
//!
//! The predictor follows children, features, classes and lists of categories without a check. Files of XGBoost and
//! LightGBM were validated before treelite read them, but some of their numbers become the forest's own only later;
//! arrays of checkpoints are not looked at before this.

use crate::settings::Task;
use crate::treelite::{Handle, Predictor, TreeliteError};
use crate::validation::{CLASSES_MAX, FEATURES_MAX, depth_of};
use nereid_request::Status;

/// `TaskType::kMultiClf`.
const MULTI_CLASS: u8 = 2;

/// `TreeNodeType::kCategoricalTestNode`.
const CATEGORICAL: i8 = 2;

/// Codes of the comparisons that a node can have: `==`, `<`, `<=`, `>`, `>=`.
const COMPARISONS: std::ops::RangeInclusive<i8> = 1..=5;

/// What a forest's header says.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    pub features: usize,
    /// Sums that are computed for a row; 1 for regression and for two classes.
    pub classes: usize,
    pub is_multi_class: bool,
    /// Leaves hold a value for each class.
    pub has_leaf_vectors: bool,
    pub is_average: bool,
    pub base_scores: Vec<f64>,
    /// The class of each tree; `None`: its leaves hold values for all.
    pub class_of_tree: Vec<Option<usize>>,
    /// The longest path of all trees.
    pub depth: usize,
}

/// Why a forest is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForestError {
    #[error("Multi-target model not supported")]
    MultiTarget,
    #[error("the model file is damaged: {0}")]
    Damaged(String),
    #[error("the model file is damaged: tree {tree}: {reason}")]
    Tree { tree: usize, reason: String },
    #[error(transparent)]
    Treelite(#[from] TreeliteError),
}

impl From<ForestError> for Status {
    fn from(error: ForestError) -> Status {
        match error {
            ForestError::MultiTarget => Status::unsupported(error.to_string()),
            ForestError::Treelite(error) => error.into(),
            error => Status::invalid(error.to_string()),
        }
    }
}

/// Reads and validates what `handle` holds.
pub fn validate(handle: &mut Handle) -> Result<Header, ForestError> {
    let mut header = header_of(handle)?;
    let single = header.base_scores.first().copied().filter(|_| header.base_scores.len() == 1);
    if let (Some(score), true) = (single, header.classes > 1) {
        // treelite 3.9 has one score for all classes.
        header.base_scores = vec![score; header.classes];
        handle.set_base_scores(header.base_scores.clone())?;
    }
    if header.base_scores.len() != header.classes {
        let (found, classes) = (header.base_scores.len(), header.classes);
        return Err(ForestError::Damaged(format!("it has {found} base scores for {classes} classes")));
    }
    for (tree, class) in header.class_of_tree.iter().enumerate() {
        let vector_len = if class.is_none() { header.classes } else { 0 };
        let depth = Tree::of(handle, tree)?
            .validate(header.features, vector_len)
            .map_err(|reason| ForestError::Tree { tree, reason })?;
        header.depth = header.depth.max(depth);
    }
    Ok(header)
}

fn header_of(handle: &Handle) -> Result<Header, ForestError> {
    let damaged = |text: String| Err(ForestError::Damaged(text));
    let features = handle.feature_count()?;
    let features = match usize::try_from(features) {
        Ok(features) if features <= FEATURES_MAX => features,
        _ => return damaged(format!("it has {features} features")),
    };
    let classes = handle.header::<i32>(c"num_class")?;
    if handle.header::<i32>(c"num_target")? != [1] {
        return Err(ForestError::MultiTarget);
    }
    let classes = match classes {
        [classes] if (1..=CLASSES_MAX).contains(&i64::from(*classes)) => usize::try_from(*classes).unwrap_or(1),
        other => return damaged(format!("it has {other:?} classes")),
    };
    let trees = handle.tree_count()?;
    let targets = handle.header::<i32>(c"target_id")?;
    let groups = handle.header::<i32>(c"class_id")?;
    if targets.len() != trees || groups.len() != trees {
        return damaged(format!("it has {} targets and {} classes of {trees} trees", targets.len(), groups.len()));
    }
    let shape = handle.header::<i32>(c"leaf_vector_shape")?;
    let has_leaf_vectors = match shape {
        [1, 1] => classes == 1 && groups.iter().any(|group| *group < 0),
        [1, len] if usize::try_from(*len) == Ok(classes) => true,
        other => return damaged(format!("its leaves have the shape {other:?} for {classes} classes")),
    };
    let class_of_tree = targets.iter().zip(groups).map(|(target, group)| match usize::try_from(*group) {
        Ok(group) if group < classes && *target == 0 && !has_leaf_vectors => Ok(Some(group)),
        Err(_) if has_leaf_vectors && *group == -1 && matches!(target, -1 | 0) => Ok(None),
        _ => Err(ForestError::Damaged(format!("a tree has the target {target} and the class {group}"))),
    });
    let flag = |values: &[u8]| values == [1];
    Ok(Header {
        features,
        classes,
        is_multi_class: handle.header::<u8>(c"task_type")? == [MULTI_CLASS],
        has_leaf_vectors,
        is_average: flag(handle.header(c"average_tree_output")?),
        base_scores: handle.header::<f64>(c"base_scores")?.to_vec(),
        class_of_tree: class_of_tree.collect::<Result<_, _>>()?,
        depth: 0,
    })
}

/// The columns of one tree that a prediction follows.
struct Tree<'a> {
    kinds: &'a [i8],
    left: &'a [i32],
    right: &'a [i32],
    features: &'a [i32],
    comparisons: &'a [i8],
    has_categories: bool,
    /// Number of items of columns that are only indexed by nodes.
    column_lens: Vec<usize>,
    vectors: Bounds<'a>,
    categories: Bounds<'a>,
}

/// The pieces of one array that belong to nodes.
struct Bounds<'a> {
    begins: &'a [u64],
    ends: &'a [u64],
    len: usize,
}

impl Bounds<'_> {
    /// Items of a node; `None` if they are outside.
    fn count(&self, node: usize) -> Option<usize> {
        let (begin, end) = (*self.begins.get(node)?, *self.ends.get(node)?);
        let is_inside = begin <= end && usize::try_from(end).is_ok_and(|end| end <= self.len);
        if is_inside { usize::try_from(end - begin).ok() } else { None }
    }
}

/// The number of items of a column of floats, whatever their type.
fn float_count(handle: &Handle, tree: usize, name: &'static std::ffi::CStr) -> Result<usize, TreeliteError> {
    handle.tree::<f32>(tree, name).map(<[f32]>::len).or_else(|_| Ok(handle.tree::<f64>(tree, name)?.len()))
}

impl<'a> Tree<'a> {
    fn of(handle: &'a Handle, tree: usize) -> Result<Tree<'a>, TreeliteError> {
        let flags = |name| handle.tree::<u8>(tree, name).map(<[u8]>::len);
        let bounds = |begins, ends, len| {
            Ok::<_, TreeliteError>(Bounds { begins: handle.tree(tree, begins)?, ends: handle.tree(tree, ends)?, len })
        };
        let column_lens = vec![
            flags(c"default_left")?,
            flags(c"category_list_right_child")?,
            float_count(handle, tree, c"leaf_value")?,
            float_count(handle, tree, c"threshold")?,
        ];
        let vectors = float_count(handle, tree, c"leaf_vector")?;
        let categories = handle.tree::<u32>(tree, c"category_list")?.len();
        Ok(Tree {
            kinds: handle.tree(tree, c"node_type")?,
            left: handle.tree(tree, c"cleft")?,
            right: handle.tree(tree, c"cright")?,
            features: handle.tree(tree, c"split_index")?,
            comparisons: handle.tree(tree, c"cmp")?,
            has_categories: handle.tree::<u8>(tree, c"has_categorical_split")? == [1],
            column_lens,
            vectors: bounds(c"leaf_vector_begin", c"leaf_vector_end", vectors)?,
            categories: bounds(c"category_list_begin", c"category_list_end", categories)?,
        })
    }

    /// The tree's depth. Leaves have vectors of `vector_len` values; 0: single values.
    fn validate(&self, features: usize, vector_len: usize) -> Result<usize, String> {
        let nodes = self.kinds.len();
        let lens = [self.left.len(), self.right.len(), self.features.len(), self.comparisons.len()];
        let bounds = [&self.vectors, &self.categories].map(|bounds| [bounds.begins.len(), bounds.ends.len()]);
        let all = lens.into_iter().chain(bounds.concat()).chain(self.column_lens.iter().copied());
        if let Some(len) = all.into_iter().find(|len| *len != nodes) {
            return Err(format!("it has {nodes} nodes, but a column of {len}"));
        }
        depth_of(nodes, |node| {
            let at = |column: &[i32]| column.get(node).copied().unwrap_or(-1);
            let vector = self.vectors.count(node).ok_or_else(|| format!("the vector of node {node} is outside"))?;
            self.categories.count(node).ok_or_else(|| format!("the categories of node {node} are outside"))?;
            let (left, right) = (at(self.left), at(self.right));
            if left == -1 {
                return match (vector_len, vector) {
                    (0, 0 | 1) => Ok(None),
                    (wanted, found) if wanted == found => Ok(None),
                    (wanted, found) => Err(format!("leaf {node} has {found} values instead of {wanted}")),
                };
            }
            let feature = at(self.features);
            if !usize::try_from(feature).is_ok_and(|feature| feature < features) {
                return Err(format!("node {node} splits feature {feature} of {features}"));
            }
            let is_categorical = self.kinds.get(node) == Some(&CATEGORICAL);
            let comparison = self.comparisons.get(node).copied().unwrap_or(0);
            match is_categorical {
                true if !self.has_categories => Err(format!("node {node} has categories, but the tree has none")),
                false if !COMPARISONS.contains(&comparison) => Err(format!("node {node} compares by {comparison}")),
                _ => Ok(Some((left.into(), right.into()))),
            }
        })
    }
}

/// The postprocessor that probabilities of several classes need, if they need another than the model's
/// (contract/frameworks.md section 4, "Tensors and results").
pub fn forced_postprocessor(header: &Header, task: Task) -> Option<&'static str> {
    match task {
        Task::Probabilities if header.is_multi_class && header.classes > 1 => {
            Some(if header.has_leaf_vectors { "identity_multiclass" } else { "softmax" })
        }
        _ => None,
    }
}

/// Makes the forest of a handle that [`validate`] accepted, and computes a row of missing values: a postprocessor or a
/// number of threads that treelite refuses is an error of the load, not of every request.
pub fn predictor(handle: Handle, header: &Header, threads: usize) -> Result<Predictor, TreeliteError> {
    let predictor = Predictor::new(handle, header.features, header.classes, threads)?;
    let row = vec![f32::NAN; header.features];
    let mut scores = vec![0.0f32; header.classes];
    predictor.predict(1, &row, &mut scores)?;
    Ok(predictor)
}
