//! Response caches and repository agents as shared libraries, driven by the server (contract/c_api.md sections 6 and
//! 7).

mod agents;
mod caches;
mod checksum;
mod official;
