//! Flags of backends, repository agents and caches.

use std::path::Path;

use super::{Flag, Group, Wish};

const BACKENDS: Group = Group("Backends");
const AGENTS: Group = Group("Repository agents");
const CACHES: Group = Group("Caches");

pub static FLAGS: &[Flag] = &[
    BACKENDS.set(
        "backend-directory",
        "path",
        "Directory of backend libraries. Default: /opt/tritonserver/backends.",
        |g, v| {
            g.options.backend_directory = v.path();
            Ok(())
        },
    ),
    BACKENDS.set(
        "backend-config",
        "[<backend>,]<setting>=<value>",
        "Setting of one backend or of all. May be given several times.",
        |g, v| v.backend_setting().map(|given| g.options.backend_settings.push(given)),
    ),
    AGENTS.later(
        "repoagent-directory",
        "path",
        "Directory of repository agents. Default: /opt/tritonserver/repoagents.",
        |_, v| Ok(Wish::more_if(v.path() != Path::new("/opt/tritonserver/repoagents"))),
    ),
    CACHES.idle(
        "cache-directory",
        "path",
        "Directory of cache libraries. Default: /opt/tritonserver/caches.",
        "the caches 'local' and 'redis' are built in, and others are not supported yet",
        |g, v| {
            g.options.cache_directory = v.path();
            Ok(())
        },
    ),
    CACHES.set(
        "cache-config",
        "<cache>,<setting>=<value>",
        "Setting of the response cache, which it switches on. May be given several times.",
        |g, v| {
            g.options.cache_settings.push(v.cache_setting()?);
            g.cache_config = true;
            Ok(())
        },
    ),
];
