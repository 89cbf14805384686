//! Binary files of XGBoost before 2.1: counts lie inside the file, and the nodes of each tree form one.

use super::{CLASSES_MAX, Invalid, depth_of};

const MODEL_PARAMETERS_LEN: usize = 136;
const BOOSTER_PARAMETERS_LEN: usize = 160;
const TREE_PARAMETERS_LEN: usize = 148;
const NODE_LEN: usize = 20;
const STATISTICS_LEN: usize = 16;

pub fn validate(bytes: &[u8]) -> Result<(), Invalid> {
    let mut reader = Reader { rest: bytes.strip_prefix(b"binf").unwrap_or(bytes) };
    // treelite refuses what ends within its headers, and other boosters.
    let Ok(parameters) = reader.take(MODEL_PARAMETERS_LEN) else { return Ok(()) };
    let (_objective, booster) = (reader.text()?, reader.text()?);
    if !matches!(booster, b"gbtree" | b"dart") {
        return Ok(());
    }
    let number = |at: usize| i64::from(integer(parameters, at));
    let (classes, major, targets) = (number(8), number(20), number(28));
    if classes > CLASSES_MAX || !(0..=CLASSES_MAX).contains(&targets) {
        return Err(Invalid::Damaged(format!("it has {classes} classes and {targets} targets")));
    }
    let trees = count(integer(reader.take(BOOSTER_PARAMETERS_LEN)?, 0), "trees")?;
    for tree in 0..trees {
        let parameters = reader.take(TREE_PARAMETERS_LEN)?;
        let node_count = count(integer(parameters, 4), "nodes")?;
        let nodes = reader.items(node_count, NODE_LEN)?;
        reader.items(node_count, STATISTICS_LEN)?;
        let children = |node: usize| {
            let at = node * NODE_LEN;
            let (left, right) = (integer(nodes, at + 4), integer(nodes, at + 8));
            Ok((left != -1).then_some((left.into(), right.into())))
        };
        depth_of(node_count, children).map_err(|reason| Invalid::Tree { tree, reason })?;
        if integer(parameters, 20) != 0 && major < 2 {
            let len = reader.length()?;
            reader.items(len, 4)?;
        }
    }
    let groups = reader.items(trees, 4)?;
    let last = classes.max(targets).max(1) - 1;
    let outside = (0..trees).map(|tree| i64::from(integer(groups, tree * 4))).find(|group| !(0..=last).contains(group));
    match outside {
        Some(group) => Err(Invalid::Damaged(format!("a tree is of group {group}, but the last one is {last}"))),
        None => Ok(()),
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Invalid> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or_else(|| {
            let left = self.rest.len();
            Invalid::Truncated(format!("{len} bytes are needed where {left} are left of the XGBoost file"))
        })?;
        self.rest = rest;
        Ok(taken)
    }

    fn items(&mut self, count: usize, size: usize) -> Result<&'a [u8], Invalid> {
        self.take(count.checked_mul(size).ok_or_else(|| Invalid::Damaged(format!("an array has {count} items")))?)
    }

    fn length(&mut self) -> Result<usize, Invalid> {
        let bytes = self.take(8)?;
        let number = bytes.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
        usize::try_from(number).map_err(|_| Invalid::Damaged(format!("an array has {number} items")))
    }

    fn text(&mut self) -> Result<&'a [u8], Invalid> {
        let len = self.length()?;
        self.take(len)
    }
}

/// The number at that byte; 0 outside.
fn integer(bytes: &[u8], at: usize) -> i32 {
    let four = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    four.map_or(0, |four| i32::from_le_bytes(*four))
}

fn count(number: i32, of: &str) -> Result<usize, Invalid> {
    usize::try_from(number).map_err(|_| Invalid::Damaged(format!("it has {number} {of}")))
}
