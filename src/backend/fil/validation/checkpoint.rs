//! Checkpoints of treelite 4 and 3.9: every array lies inside the file. What the arrays contain is validated in the
//! forest that treelite makes of them (`crate::forest`).

use super::{CLASSES_MAX, Invalid};

/// Codes of `TypeInfo`, and the bytes of a value.
const TYPES: [(u8, u64); 3] = [(1, 4), (2, 4), (3, 8)];

pub fn validate(bytes: &[u8]) -> Result<(), Invalid> {
    let mut reader = Reader { rest: bytes };
    let (major, minor) = (reader.number(4)?, reader.number(4)?);
    reader.skip(4)?;
    match (major, minor) {
        (4, _) => current(&mut reader),
        (3, 9) => old(&mut reader),
        // treelite refuses other versions.
        _ => Ok(()),
    }
}

fn current(reader: &mut Reader<'_>) -> Result<(), Invalid> {
    let (threshold, leaf) = (reader.type_size()?, reader.type_size()?);
    let trees = reader.tree_count()?;
    // Features, task.
    reader.skip(4 + 1)?;
    reader.boolean("average_tree_output")?;
    reader.skip(4)?;
    // Classes, leaf vector's shape, targets and classes of the trees; the postprocessor.
    for _ in 0..4 {
        reader.array(4)?;
    }
    reader.array(1)?;
    reader.skip(4 + 4)?;
    // Base scores, attributes.
    reader.array(8)?;
    reader.array(1)?;
    reader.optional_fields()?;
    for _ in 0..trees {
        reader.skip(4)?;
        reader.boolean("has_categorical_split")?;
        // Node types, children, features, default directions, leaves, thresholds, operators, lists of categories and
        // leaf vectors with their bounds, then the statistics of nodes: each with a column that says where they are.
        for size in [1, 4, 4, 4, 1, leaf, threshold, 1, 1, leaf, 8, 8, 4, 8, 8, 8, 1, 8, 1, 8, 1] {
            reader.array(size)?;
        }
        reader.optional_fields()?;
        reader.optional_fields()?;
    }
    Ok(())
}

fn old(reader: &mut Reader<'_>) -> Result<(), Invalid> {
    let (threshold, leaf) = (reader.type_size()?, reader.type_size()?);
    let trees = reader.tree_count()?;
    // Features, task.
    reader.skip(4 + 1)?;
    reader.boolean("average_tree_output")?;
    // Kind of output, "grove per class", padding.
    reader.skip(4)?;
    let classes = reader.number(4)?;
    if !(1..=CLASSES_MAX).contains(&i64::try_from(classes).unwrap_or(i64::MAX)) {
        return Err(Invalid::Damaged(format!("it has {classes} classes")));
    }
    reader.skip(4)?;
    if !reader.take(256)?.contains(&0) {
        return Err(Invalid::Damaged("the name of its prediction transform has no end".to_owned()));
    }
    reader.skip(3 * 4 + 4)?;
    // A node with its value, three statistics and flags.
    let node = if threshold.max(leaf) == 8 { 56 } else { 48 };
    for _ in 0..trees {
        reader.skip(4)?;
        reader.boolean("has_categorical_split")?;
        for size in [node, leaf, 8, 8, 4, 8] {
            reader.array(size)?;
        }
        reader.skip(4 + 4)?;
    }
    Ok(())
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: u64) -> Result<&'a [u8], Invalid> {
        let split = usize::try_from(len).ok().and_then(|len| self.rest.split_at_checked(len));
        let (taken, rest) = split.ok_or_else(|| {
            let left = self.rest.len();
            Invalid::Truncated(format!("{len} bytes are needed where {left} are left of the checkpoint"))
        })?;
        self.rest = rest;
        Ok(taken)
    }

    fn skip(&mut self, len: u64) -> Result<(), Invalid> {
        self.take(len).map(drop)
    }

    /// An unsigned number of up to 8 bytes.
    fn number(&mut self, len: u64) -> Result<u64, Invalid> {
        let bytes = self.take(len)?;
        Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// Skips an array with its count.
    fn array(&mut self, item_size: u64) -> Result<(), Invalid> {
        let count = self.number(8)?;
        let len = count.checked_mul(item_size);
        self.skip(len.ok_or_else(|| Invalid::Damaged(format!("an array has {count} items")))?)
    }

    fn boolean(&mut self, name: &str) -> Result<(), Invalid> {
        match self.number(1)? {
            0 | 1 => Ok(()),
            other => Err(Invalid::Damaged(format!("{name} is {other}"))),
        }
    }

    fn type_size(&mut self) -> Result<u64, Invalid> {
        let code = self.number(1)?;
        let size = TYPES.iter().find(|(known, _)| u64::from(*known) == code).map(|(_, size)| *size);
        size.ok_or_else(|| Invalid::Damaged(format!("the type of its numbers is {code}")))
    }

    /// A tree has many bytes, so this bounds what treelite allocates before it reads them.
    fn tree_count(&mut self) -> Result<u64, Invalid> {
        let count = self.number(8)?;
        match usize::try_from(count).is_ok_and(|count| count <= self.rest.len()) {
            true => Ok(count),
            false => Err(Invalid::Truncated(format!("it cannot contain {count} trees"))),
        }
    }

    /// Fields of later versions: a name, the size of an item, and the items.
    fn optional_fields(&mut self) -> Result<(), Invalid> {
        let count = self.number(4)?;
        if count > self.rest.len() as u64 {
            return Err(Invalid::Damaged(format!("it has {count} optional fields")));
        }
        for _ in 0..count {
            self.array(1)?;
            let item_size = self.number(8)?;
            self.array(item_size)?;
        }
        Ok(())
    }
}
