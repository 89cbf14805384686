//! Flags of the requests: their data and their form.

use super::Flag;
use crate::cli::perf::given::{Memory, Source};
use nereid_perf::{Compression, Form};

const BATCH_MAX: u32 = 1 << 20;
const STRING_LENGTH_MAX: usize = 1 << 30;
const OUTPUT_BYTES_MAX: usize = 1 << 36;
const PACKINGS: [(&str, Compression); 3] =
    [("none", Compression::None), ("gzip", Compression::Gzip), ("deflate", Compression::Deflate)];
const FORMS: [(&str, Form); 2] = [("binary", Form::Binary), ("json", Form::Json)];

pub static FLAGS: &[Flag] = &[
    Flag::set("batch-size", "count", "Size of the batch in each request. Default: 1.", |g, v| {
        g.batch = v.number(1..=BATCH_MAX)?;
        Ok(())
    })
    .or('b')
    .own(),
    Flag::set(
        "input-data",
        "zero|random|path",
        "Contents of the inputs: zeros, seeded random values, a directory with a file for each input, or a JSON file, \
         which may be given several times. Default: random.",
        |g, v| {
            let source = match v.text() {
                Ok("zero") => Source::Zero,
                Ok("random") => Source::Random,
                _ => Source::At(v.path()?),
            };
            g.sources.push(source);
            Ok(())
        },
    ),
    Flag::set(
        "input-recording",
        "path",
        "The requests of a recording (`nereid serve --record=<file>`) for the model, in turn, at their times unless a \
         flag sets the load. --input-data=zero|random makes the contents that were not recorded; the default is then \
         zero.",
        |g, v| {
            g.recording = Some(v.path()?);
            Ok(())
        },
    )
    .own(),
    Flag::switch("zero-input", "The old form of --input-data=zero.", |g| g.sources.push(Source::Zero)).or('z').own(),
    Flag::set("data-directory", "path", "The old form of --input-data=<directory>.", |g, v| {
        g.sources.push(Source::At(v.path()?));
        Ok(())
    }),
    Flag::set(
        "shape",
        "input:sizes",
        "Sizes of an input without those of the batch, like INPUT0:3,224,224; once for each input. Needed where the \
         model says -1.",
        |g, v| {
            g.shapes.push(v.shape()?);
            Ok(())
        },
    ),
    Flag::set("string-length", "bytes", "Length of random strings. Default: 128.", |g, v| {
        g.string_length = v.number(0..=STRING_LENGTH_MAX)?;
        Ok(())
    }),
    Flag::set("string-data", "text", "The one string of which string inputs are made.", |g, v| {
        g.string = Some(v.text()?.to_owned());
        Ok(())
    }),
    Flag::set("seed", "number", "Of random values, Poisson spacing and lengths of sequences. Default: 1.", |g, v| {
        g.rules.seed = v.number(0..=u64::MAX)?;
        Ok(())
    })
    .own(),
    Flag::set(
        "shared-memory",
        "none|system|arena",
        "Where tensors lie. With system, the client makes and registers regions, and removes them; with arena, in that \
         of each ring of -i ipc. Default: none.",
        |g, v| {
            g.memory = match v.text()? {
                "none" => Memory::None,
                "system" => Memory::System,
                "arena" => Memory::Arena,
                "cuda" => return Err(v.wrong("none, system or arena: tensors in GPU memory are not sent yet")),
                _ => return Err(v.wrong("one of none, system, arena")),
            };
            Ok(())
        },
    ),
    Flag::set(
        "output-shared-memory-size",
        "bytes",
        "Bytes for an output whose size the model does not define. Default: 102400.",
        |g, v| {
            g.output_bytes = v.number(1..=OUTPUT_BYTES_MAX)?;
            Ok(())
        },
    ),
    Flag::set("input-tensor-format", "binary|json", "Form of tensors in HTTP requests. Default: binary.", |g, v| {
        g.input_form = Some(v.one_of(&FORMS)?);
        Ok(())
    }),
    Flag::set("output-tensor-format", "binary|json", "Form of tensors in HTTP answers. Default: binary.", |g, v| {
        g.output_form = Some(v.one_of(&FORMS)?);
        Ok(())
    }),
    Flag::set(
        "grpc-compression-algorithm",
        "none|gzip|deflate",
        "How gRPC requests are packed. Default: none.",
        |g, v| {
            g.grpc_compression = Some(v.one_of(&PACKINGS)?);
            Ok(())
        },
    ),
    Flag::set(
        "http-compression-algorithm",
        "none|gzip|deflate",
        "How HTTP requests are packed. Default: none.",
        |g, v| {
            g.http_compression = Some(v.one_of(&PACKINGS)?);
            Ok(())
        },
    )
    .own(),
    Flag::set("header", "name:value", "A field of every request: of HTTP's head, of gRPC's metadata.", |g, v| {
        g.headers.push(v.header()?);
        Ok(())
    })
    .or('H')
    .own(),
    Flag::set(
        "request-parameter",
        "name:value:type",
        "A parameter of every request; the type is bool, int, uint, double or string.",
        |g, v| {
            g.parameters.push(v.parameter()?);
            Ok(())
        },
    ),
    Flag::set("request-priority", "number", "The priority of every request; 0 is the model's default.", |g, v| {
        g.priority = v.number(0..=u64::MAX)?;
        Ok(())
    })
    .own(),
    Flag::set("queue-timeout", "us", "How long a request may wait in the server's queue.", |g, v| {
        g.queue_timeout_us = Some(v.number(0..=u64::MAX)?);
        Ok(())
    })
    .own(),
];
