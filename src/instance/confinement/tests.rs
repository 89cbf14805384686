//! Host policies on a pretended host.
