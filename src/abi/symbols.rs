//! The table that keeps Triton's functions in the program.
//!
//! The program itself does not call most of them; plug-ins do, by name. Without a reference the linker would drop them,
//! and a plug-in would fail to open or would bind to another copy of the server. The build script finds them in the
//! sources of this module.

include!(concat!(env!("OUT_DIR"), "/symbols.rs"));

/// A use of the table that no optimisation removes.
pub fn keep() {
    std::hint::black_box(SYMBOLS);
}
