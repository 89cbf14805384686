//! Facts about the build of this program, which `build.rs` writes: for `nereid --version` and the metrics page.

/// The commit of the sources, or `unknown`.
pub const REVISION: &str = env!("NEREID_REVISION");
/// The platform that the program was built for.
pub const TARGET: &str = env!("NEREID_TARGET");
/// Cargo's profile.
pub const PROFILE: &str = env!("NEREID_PROFILE");
/// The release of Triton whose contract it keeps.
pub const TRITON_VERSION: &str = crate::api::SERVER_VERSION;
