//! Flags about models that are loaded and unloaded by use (docs/many-models.md).

use super::own::GROUP;
use super::{Flag, Group};
use crate::cli::values::{Value, ValueError};
use crate::repository::Prewarm;

const NEREID: Group = Group(GROUP);

/// About 11 days.
const SECS_MAX: u32 = 1_000_000;
/// Each load of a model makes one, and each is a copy of its files.
const GENERATIONS_MAX: u32 = 100;
/// More models than any repository has.
const COUNT_MAX: u32 = 1 << 24;

pub static FLAGS: &[Flag] = &[
    NEREID.set(
        "model-load-on-demand",
        "boolean",
        "Whether a request for a model that is in a repository and not loaded has it loaded, and waits; in mode none \
         only pinned models are then loaded at the start. Not in mode poll. Default: false.",
        |g, v| v.boolean().map(|given| g.options.residency.on_demand = given),
    ),
    NEREID.set(
        "model-load-wait-secs",
        "integer",
        "Seconds that a request waits for such a load before it is refused, at least 1. Default: 30.",
        |g, v| natural(v, 1, SECS_MAX).map(|given| g.options.residency.wait_secs = given),
    ),
    NEREID.set(
        "model-idle-secs",
        "integer",
        "Seconds after its last request after which a model is unloaded until the next one; 0: never. Needs \
         --model-load-on-demand. Default: 0.",
        |g, v| natural(v, 0, SECS_MAX).map(|given| g.options.residency.idle_secs = given),
    ),
    NEREID.set(
        "model-count-max",
        "integer",
        "Models that are loaded at a time: for one more, the one whose last request is longest ago is unloaded; 0: any \
         number. Needs --model-load-on-demand. Default: 0.",
        |g, v| natural(v, 0, COUNT_MAX).map(|given| g.options.residency.count_max = given),
    ),
    NEREID.set(
        "model-memory-byte-size",
        "integer",
        "Bytes on the host that loaded models hold in all, as measured around their loads, with the processes of \
         Python models: for more, the model whose last request is longest ago is unloaded; 0: any number. Needs \
         --model-load-on-demand. Default: 0.",
        |g, v| v.bytes().map(|given| g.options.residency.host_bytes = given),
    ),
    NEREID.for_gpus(
        "model-device-memory-byte-size",
        "<device>:<integer>",
        "The same for the memory of one GPU. May be given several times.",
        |g, v| {
            let (device, bytes) = v.per_device(|bytes| bytes.bytes())?;
            g.options.residency.device_bytes.insert(device, bytes);
            Ok(())
        },
    ),
    NEREID.set(
        "model-pin",
        "string",
        "A model that is never unloaded by these rules, and that mode none loads at the start; the parameter \
         nereid.pinned of its configuration does the same. May be given several times.",
        |g, v| {
            g.options.residency.pinned.insert(v.text());
            Ok(())
        },
    ),
    NEREID.set(
        "model-prewarm",
        "<name>@<HH:MM>[-<HH:MM>]",
        "A model that is loaded each day at a time of the host's time zone, and pinned until another. May be given \
         several times.",
        |g, v| prewarm(v).map(|given| g.options.residency.prewarm.push(given)),
    ),
    NEREID.set(
        "keep-generations",
        "integer",
        "Earlier generations of each model whose files are kept in the directory for temporary files (TMPDIR), so that \
         POST /v2/models/<m>/generations/<id>/activate can bring them back; at most 100. Default: 0.",
        |g, v| natural(v, 0, GENERATIONS_MAX).map(|given| g.options.keep_generations = given as usize),
    ),
];

fn natural(value: Value<'_>, least: u32, most: u32) -> Result<u32, ValueError> {
    let given = Some(value.natural()?).filter(|given| (least..=most).contains(given));
    given.ok_or_else(|| ValueError::OutOfBound(value.text()))
}

fn prewarm(value: Value<'_>) -> Result<Prewarm, ValueError> {
    let form = "<name>@<HH:MM>[-<HH:MM>]";
    value.text().parse().map_err(|_| ValueError::Form { flag: "model-prewarm", form, given: value.text() })
}
