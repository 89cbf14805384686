//! Response caches and repository agents as shared libraries, driven by the server (contract/c_api.md sections 6 and
//! 7).

mod support {
    pub mod backend;
    pub mod http;
    pub mod library;
    pub mod original;
    pub mod ports;
    pub mod repository;
    pub mod server;
    pub mod skip;
    pub mod steadily;
    pub mod variant;
}

mod native_programs {
    #[allow(dead_code)] // What a library checks is told as programs tell it.
    pub mod program;
}

mod shared_libraries {
    mod agents;
    mod caches;
    mod checksum;
    mod official;
}
