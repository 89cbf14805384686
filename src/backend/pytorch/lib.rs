//! `pytorch`: models of PyTorch, run by the library of a PyTorch that is located when the first of them is loaded
//! (contract/frameworks.md section 1).

pub mod torch;

/// Its name in configurations.
pub const NAME: &str = "pytorch";
