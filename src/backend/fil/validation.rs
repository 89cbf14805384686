//! Validates model files before treelite reads them.
//!
//! treelite uses child numbers, offsets and counts of a file without a check: a damaged file can make it read foreign
//! memory, fill the memory or loop for ever. Each format has a validator that follows only what can do such harm.
//! Everything else, also a file that cannot be parsed, is left to treelite, whose texts users know.

mod checkpoint;
mod json;
mod legacy;
mod lightgbm;
mod trees;
mod ubjson;
mod xgboost;

use nereid_request::Status;

pub use trees::depth_of;

use crate::treelite::Format;

/// Most classes of a model: sums of all classes are kept for each row.
pub const CLASSES_MAX: i64 = 65_536;

/// Most features of a model: a row has a number for each.
pub const FEATURES_MAX: usize = 1 << 24;

/// Why a file is not given to treelite.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    #[error("the model file is damaged: {0}")]
    Damaged(String),
    #[error("the model file is damaged: tree {tree}: {reason}")]
    Tree { tree: usize, reason: String },
    #[error("the model file ends too early: {0}")]
    Truncated(String),
    #[error(
        "the LightGBM model was trained with zero_as_missing, which treelite does not support: it would predict other \
         values than LightGBM"
    )]
    ZeroIsMissing,
}

impl From<Invalid> for Status {
    fn from(error: Invalid) -> Status {
        match error {
            Invalid::ZeroIsMissing => Status::unsupported(error.to_string()),
            _ => Status::invalid(error.to_string()),
        }
    }
}

pub fn validate(format: Format, bytes: &[u8]) -> Result<(), Invalid> {
    match format {
        Format::XgboostJson => json::validate(bytes),
        Format::XgboostUbjson => ubjson::validate(bytes),
        Format::XgboostLegacy => legacy::validate(bytes),
        Format::LightGbm => lightgbm::validate(bytes),
        Format::Checkpoint => checkpoint::validate(bytes),
    }
}

#[cfg(test)]
mod tests;
