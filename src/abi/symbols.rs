//! The table that keeps Triton's functions in the program.
//!
//! Nothing in the program calls most of them; plug-ins do, by name. Without a reference the linker would drop them,
//! and a plug-in would fail to open or bind to another copy of the server. The build finds them in the sources of this
//! module.

include!(concat!(env!("OUT_DIR"), "/symbols.rs"));

/// A use of the table that no optimisation removes.
pub fn keep() {
    std::hint::black_box(SYMBOLS);
}
