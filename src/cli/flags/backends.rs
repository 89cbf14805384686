//! Flags of backends, repository agents and caches.

use super::{Flag, Group};

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
    AGENTS.set(
        "repoagent-directory",
        "path",
        "Directory of repository agents. Default: /opt/tritonserver/repoagents.",
        |g, v| {
            g.options.agent_directory = v.path();
            Ok(())
        },
    ),
    CACHES.set(
        "cache-directory",
        "path",
        "Directory of cache libraries. Default: /opt/tritonserver/caches.",
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
