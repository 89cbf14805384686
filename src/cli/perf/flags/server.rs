//! Flags of the server, the protocol and the model.

use super::{Action, Flag};
use crate::cli::perf::given::{Given, Wire};
use crate::cli::perf::mistake::Mistake;
use crate::cli::perf::openai::ServiceKind;
use crate::cli::perf::value::Value;

pub static FLAGS: &[Flag] = &[
    Flag::set("model", "name", "The model to measure. Required.", |g, v| {
        g.model = v.name()?;
        Ok(())
    })
    .or('m')
    .own(),
    Flag::set("model-version", "version", "Its version. Default: the server chooses.", |g, v| {
        g.version = v.number(1..=i64::MAX)?.to_string();
        Ok(())
    })
    .or('x')
    .own(),
    Flag::set(
        "url",
        "address",
        "The server: host, host:port, http://…, https://… or unix:<path>. Default: localhost:8000, localhost:8001 for \
         gRPC, localhost:9000 for openai, whose URL may have a path such as /v1. With -i ipc a path.",
        |g, v| {
            g.url = Some(v.name()?);
            Ok(())
        },
    )
    .or('u')
    .own(),
    Flag::set(
        "protocol",
        "http|grpc|ipc",
        "How it is spoken to; ipc: through shared-memory rings, with -u as the path of the server's --ipc-path. \
         Default: http.",
        |g, v| {
            g.wire = v.one_of(&[("http", Wire::Http), ("grpc", Wire::Grpc), ("ipc", Wire::Ipc)])?;
            Ok(())
        },
    )
    .or('i')
    .own(),
    Flag::switch(
        "streaming",
        "One gRPC stream for each connection, instead of a call for each request; answers as events from openai.",
        |g| g.streaming = true,
    ),
    Flag::switch("async", "Accepted: this client never waits for one answer before it reads others.", |g| {
        g.asks_async = true;
    })
    .or('a'),
    Flag::switch(
        "sync",
        "Accepted: the load sets how much is in flight, and never needs a thread for each request.",
        |g| g.asks_sync = true,
    ),
    Flag::set(
        "service-kind",
        "kind",
        "The kind of server: triton, which any KServe v2 server passes for, or openai. Default: triton.",
        |g, v| {
            g.service = match v.text()? {
                "triton" => ServiceKind::Triton,
                "openai" => ServiceKind::OpenAi,
                _ => {
                    let expected = "triton or openai: other kinds of servers speak protocols that nereid perf does not";
                    return Err(v.wrong(expected));
                }
            };
            Ok(())
        },
    ),
    Flag::set(
        "bls-composing-models",
        "name,…",
        "Models that the model calls: their share of the server's time is reported too.",
        composing,
    ),
    Flag::set("ssl-grpc-use-ssl", "bool", "gRPC over TLS. Default: false.", |g, v| {
        g.tls.grpc = Some(v.boolean()?);
        Ok(())
    }),
    Flag::set(
        "ssl-grpc-root-certifications-file",
        "path",
        "Authorities that the server is checked against.",
        |g, v| {
            g.tls.grpc_files.ca = Some(v.path()?);
            Ok(())
        },
    ),
    Flag::set("ssl-grpc-private-key-file", "path", "Key of the certificate that the client shows.", |g, v| {
        g.tls.grpc_files.key = Some(v.path()?);
        Ok(())
    }),
    Flag::set("ssl-grpc-certificate-chain-file", "path", "Certificate that the client shows.", |g, v| {
        g.tls.grpc_files.certificate = Some(v.path()?);
        Ok(())
    }),
    Flag::set(
        "ssl-https-verify-peer",
        "0|1",
        "With https://: whether its certificate is checked. Default: 1.",
        |g, v| {
            g.tls.verify_peer = Some(v.number(0..=1)? == 1);
            Ok(())
        },
    ),
    Flag::set("ssl-https-verify-host", "0|1|2", "Whether its name is checked, 1 and 2 alike. Default: 2.", |g, v| {
        g.tls.verify_host = Some(v.number(0..=2)? > 0);
        Ok(())
    }),
    Flag::set("ssl-https-ca-certificates-file", "path", "Authorities that the server is checked against.", |g, v| {
        g.tls.https_files.ca = Some(v.path()?);
        Ok(())
    }),
    Flag::set("ssl-https-client-certificate-file", "path", "Certificate that the client shows.", |g, v| {
        g.tls.https_files.certificate = Some(v.path()?);
        Ok(())
    }),
    Flag::set("ssl-https-client-certificate-type", "PEM", "Its form; DER is not read.", only_pem),
    Flag::set("ssl-https-private-key-file", "path", "Key of the certificate that the client shows.", |g, v| {
        g.tls.https_files.key = Some(v.path()?);
        Ok(())
    }),
    Flag::set("ssl-https-private-key-type", "PEM", "Its form; DER is not read.", only_pem),
    Flag { action: Action::Help, ..Flag::switch("help", "This text.", |_| ()).own() }.or('h'),
    Flag { action: Action::Version, ..Flag::switch("version", "The program's version.", |_| ()) },
];

fn composing(given: &mut Given, value: &Value<'_>) -> Result<(), Mistake> {
    for name in value.text()?.split(',') {
        if name.is_empty() {
            return Err(value.wrong("names of models with commas between them"));
        }
        if name.contains(':') {
            return Err(value.wrong("names alone: the time in all versions of a composing model is reported as one"));
        }
        given.composing.push(name.to_owned());
    }
    Ok(())
}

fn only_pem(_: &mut Given, value: &Value<'_>) -> Result<(), Mistake> {
    match value.text()? {
        "PEM" => Ok(()),
        _ => Err(value.wrong("PEM, the only form that is read; `openssl x509 -inform der` and `openssl pkey` make it")),
    }
}
