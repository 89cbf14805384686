//! Flags of rate limiting, memory and the host.

use super::{Flag, Group};
use crate::cli::values::{Value, ValueError};
use crate::server::options::{NO_COPYING_THREADS, NO_GROWING};

const RATE: Group = Group("Rate limiting");
const MEMORY: Group = Group("Memory and host");

pub static FLAGS: &[Flag] = &[
    RATE.set(
        "rate-limit",
        "execution_count|off",
        "Whether resources limit how many models execute at a time. Default: off.",
        |g, v| rate_limit(v).map(|given| g.options.rate_limit = given),
    ),
    RATE.set(
        "rate-limit-resource",
        "<name>:<count>[:<device>]",
        "How much there is of a resource. May be given several times.",
        |g, v| v.rate_limit_resource().map(|given| g.options.rate_limit_resources.push(given)),
    ),
    MEMORY.for_gpus(
        "pinned-memory-pool-byte-size",
        "integer",
        "Bytes of pinned host memory for copies to and from GPUs. Default: 268435456.",
        |g, v| v.int64().map(|given| g.options.pinned_memory_pool_byte_size = given.max(0).unsigned_abs()),
    ),
    MEMORY.for_gpus(
        "cuda-memory-pool-byte-size",
        "<device>:<integer>",
        "Bytes of a GPU's memory kept for requests. Default: 67108864. May be given several times.",
        |g, v| {
            let (device, bytes) = v.per_device(|bytes| bytes.bytes())?;
            g.options.cuda_memory_pools.insert(device, bytes);
            Ok(())
        },
    ),
    MEMORY.idle(
        "cuda-virtual-address-size",
        "<device>:<integer>",
        "Bytes of a GPU's addresses kept for growing states. Default: 1073741824. May be given several times.",
        NO_GROWING,
        |_, v| v.per_device(|bytes| bytes.bytes()).map(|_| ()),
    ),
    MEMORY.for_gpus(
        "min-supported-compute-capability",
        "float",
        "GPUs of a lower compute capability are not used. Default: 0.0.",
        |g, v| v.float().map(|given| g.options.min_compute_capability = given),
    ),
    MEMORY.idle(
        "buffer-manager-thread-count",
        "integer",
        "Threads that copy tensors. Default: 0.",
        NO_COPYING_THREADS,
        |_, v| v.int().map(|_| ()),
    ),
    MEMORY.set(
        "host-policy",
        "<policy>,<setting>=<value>",
        "Setting of a host policy that instance groups may name. May be given several times.",
        |g, v| v.host_policy().map(|given| g.options.host_policies.push(given)),
    ),
    MEMORY.set("allow-client-shm", "boolean", "Whether clients may register shared memory. Default: false.", |g, v| {
        v.boolean().map(|given| g.options.allow_client_shm = given)
    }),
];

fn rate_limit(value: Value<'_>) -> Result<bool, ValueError> {
    match value.lower_case().as_str() {
        "off" => Ok(false),
        "execution_count" => Ok(true),
        _ => Err(value.unknown_word()),
    }
}
