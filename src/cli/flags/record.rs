//! Flags about the recording of requests (docs/record-and-replay.md).

use super::own::GROUP;
use super::{Flag, Group};
use crate::cli::values::ValueError;

const NEREID: Group = Group(GROUP);

pub static FLAGS: &[Flag] = &[
    NEREID.set(
        "record",
        "path",
        "A new file in which unary inference requests are recorded, for nereid replay: by default models, shapes, \
         sizes and times, without contents. The server does not start if the file exists.",
        |g, v| {
            g.options.record.file = Some(v.path()).filter(|path| !path.as_os_str().is_empty());
            Ok(())
        },
    ),
    NEREID.set("record-rate", "integer", "One of so many requests is recorded. Default: 1, all of them.", |g, v| {
        let rate = Some(v.natural()?).filter(|rate| *rate > 0).ok_or_else(|| ValueError::OutOfBound(v.text()))?;
        g.options.record.rate = rate;
        Ok(())
    }),
    NEREID.set(
        "record-data",
        "boolean",
        "Whether headers and bodies of requests and answers are recorded too. Default: false.",
        |g, v| v.boolean().map(|given| g.options.record.data = given),
    ),
    NEREID.set(
        "record-byte-size",
        "integer",
        "Bytes of the file, behind which recording ends. Default: 1073741824.",
        |g, v| v.bytes().map(|given| g.options.record.byte_size = given),
    ),
    NEREID.set(
        "record-redact",
        "name",
        "The name of a header or parameter whose value is not recorded, beside those that never are: authorization, \
         cookies, keys, tokens, passwords. May be given several times.",
        |g, v| {
            let name = v.text();
            if name.is_empty() {
                return Err(ValueError::OutOfBound(name));
            }
            g.options.record.redact.push(name);
            Ok(())
        },
    ),
];
