//! The differences between 2.51 and what we promise that are known and wanted; docs/differences.md has their reasons.

use super::comparison::Known;

pub const KNOWN: [Known; 0] = [];
