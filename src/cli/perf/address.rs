//! The server that a URL names, and whether its connections use TLS.

use super::given::{Given, TlsFiles, Wire};
use super::mistake::Mistake;
use super::openai::ServiceKind;
use nereid_perf::{Endpoint, MetricsSource, Protocol, Target, Tls};

const HTTP_PORT: u16 = 8000;
/// Of Triton's OpenAI frontend, and of Nereid's own.
const OPENAI_PORT: u16 = 9000;
const GRPC_PORT: u16 = 8001;
const METRICS_PORT: u16 = 8002;

impl Given {
    pub fn target(&self) -> Result<Target, Mistake> {
        if self.wire == Wire::Ipc {
            return self.ring_target();
        }
        let (port, protocol) = match (self.wire, self.streaming) {
            (Wire::Http, _) if self.service == ServiceKind::OpenAi => (OPENAI_PORT, Protocol::Http),
            (Wire::Http, _) => (HTTP_PORT, Protocol::Http),
            (Wire::Grpc, false) => (GRPC_PORT, Protocol::GrpcUnary),
            (Wire::Grpc, true) => (GRPC_PORT, Protocol::GrpcStream),
            (Wire::Ipc, _) => (GRPC_PORT, Protocol::Ipc),
        };
        let url = self.url.as_deref().unwrap_or("localhost");
        let server = match self.service {
            ServiceKind::Triton => url,
            ServiceKind::OpenAi => Given::split_base(url).0,
        };
        let (scheme, endpoint) = Endpoint::parse(server, port).ok_or_else(|| wrong("-u", url))?;
        let is_tls = match (self.wire, scheme) {
            (Wire::Http, "https") => true,
            (Wire::Http, "" | "http" | "unix") => false,
            (Wire::Grpc, "" | "grpc" | "unix") => self.tls.grpc == Some(true),
            _ => return Err(wrong("-u", url)),
        };
        let tls = is_tls.then(|| {
            let files = if self.wire == Wire::Grpc { &self.tls.grpc_files } else { &self.tls.https_files };
            let TlsFiles { ca, certificate, key } = files.clone();
            let any_certificate = self.tls.verify_peer == Some(false);
            let any_name = self.tls.verify_host == Some(false);
            Tls { ca, certificate, key, accept_any_certificate: any_certificate, accept_any_name: any_name }
        });
        Ok(Target { endpoint, tls, protocol })
    }

    /// The Unix socket that leads to rings: `unix:<path>`, or the path alone.
    fn ring_target(&self) -> Result<Target, Mistake> {
        let url = self.url.as_deref().unwrap_or_default();
        let is_path = url.contains('/') && !url.contains("://") && !url.starts_with("unix:");
        let given = if is_path { format!("unix:{url}") } else { url.to_owned() };
        match Endpoint::parse(&given, GRPC_PORT) {
            Some((_, endpoint @ Endpoint::Unix(_))) => Ok(Target { endpoint, tls: None, protocol: Protocol::Ipc }),
            _ => Err(Mistake::Value {
                flag: "-u".to_owned(),
                given: url.to_owned(),
                expected: "the path of the server's --ipc-path, such as /run/nereid/ipc, with at most 107 bytes"
                    .to_owned(),
            }),
        }
    }

    pub fn metrics_source(&self, target: &Target) -> Result<Option<MetricsSource>, Mistake> {
        if self.metrics.wanted { self.metrics_page(target) } else { Ok(None) }
    }

    /// The page that may name the program behind the server: that of `--collect-metrics`, else the usual port beside
    /// the usual ports. Beside another port it may be another server's.
    pub fn build_source(&self, target: &Target) -> Option<MetricsSource> {
        let is_usual = match &target.endpoint {
            Endpoint::Tcp { port, .. } => [HTTP_PORT, GRPC_PORT].contains(port) && self.service == ServiceKind::Triton,
            Endpoint::Unix(_) => false,
        };
        if self.metrics.wanted || is_usual { self.metrics_page(target).ok().flatten() } else { None }
    }

    fn metrics_page(&self, target: &Target) -> Result<Option<MetricsSource>, Mistake> {
        let interval = std::time::Duration::from_millis(self.metrics.interval_ms.unwrap_or(1000));
        let host = match &target.endpoint {
            Endpoint::Tcp { host, .. } => host.clone(),
            Endpoint::Unix(_) => "localhost".to_owned(),
        };
        // Such servers have their metrics beside their other routes.
        let own_port = match &target.endpoint {
            Endpoint::Tcp { port, .. } if self.service == ServiceKind::OpenAi => Some(*port),
            _ => None,
        };
        if self.metrics.url.is_none() && own_port.is_some() && target.tls.is_some() {
            let needs = "--metrics-url: metrics are not read over TLS";
            return Err(Mistake::Without { flag: "--collect-metrics", needs });
        }
        let Some(url) = self.metrics.url.as_deref() else {
            let endpoint = Endpoint::Tcp { host, port: own_port.unwrap_or(METRICS_PORT) };
            return Ok(Some(MetricsSource { endpoint, path: "/metrics".into(), interval }));
        };
        let rest = url.strip_prefix("http://").unwrap_or(url);
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/metrics"),
        };
        let is_plain = path.bytes().all(|byte| byte.is_ascii_graphic());
        match Endpoint::parse(authority, METRICS_PORT) {
            Some(("", endpoint @ Endpoint::Tcp { .. })) if is_plain => {
                Ok(Some(MetricsSource { endpoint, path: path.to_owned(), interval }))
            }
            _ => Err(wrong("--metrics-url", url)),
        }
    }
}

fn wrong(flag: &str, given: &str) -> Mistake {
    let expected = match flag {
        "-u" => "host, host:port, http://host:port, https://host:port (with -i http), grpc://host:port or unix:<path>",
        _ => "host:port/path",
    };
    Mistake::Value { flag: flag.to_owned(), given: given.to_owned(), expected: expected.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(wire: Wire, url: &str) -> Result<Target, Mistake> {
        Given { wire, url: Some(url.into()), ..Given::default() }.target()
    }

    #[test]
    fn urls() {
        for (wire, url, expected) in [
            (Wire::Http, "localhost", "localhost:8000"),
            (Wire::Grpc, "localhost", "localhost:8001"),
            (Wire::Grpc, "10.0.0.1:9", "10.0.0.1:9"),
            (Wire::Http, "http://a-b.c:80/", "a-b.c:80"),
            (Wire::Http, "[::1]:80", "[::1]:80"),
            (Wire::Http, "[::1]", "[::1]:8000"),
            (Wire::Grpc, "grpc://h:1", "h:1"),
            (Wire::Http, "unix:/run/x", "unix:/run/x"),
            (Wire::Grpc, "unix:///run/x", "unix:/run/x"),
        ] {
            let found = target(wire, url).unwrap_or_else(|error| panic!("{url}: {error}"));
            assert_eq!((found.endpoint.to_string(), found.tls), (expected.to_owned(), None), "{url}");
        }
        let secure = target(Wire::Http, "https://h").expect("a URL");
        assert_eq!((secure.endpoint.to_string(), secure.tls), ("h:443".to_owned(), Some(Tls::default())));
        for (wire, url) in [
            (Wire::Http, ""),
            (Wire::Http, ":80"),
            (Wire::Http, "h:0"),
            (Wire::Http, "h:65536"),
            (Wire::Http, "h:x"),
            (Wire::Http, "h:1:2"),
            (Wire::Http, "[::1"),
            (Wire::Http, "[x]:1"),
            (Wire::Http, "h/path"),
            (Wire::Http, "ftp://h"),
            (Wire::Http, "a b"),
            (Wire::Grpc, "https://h"),
            (Wire::Http, "grpc://h"),
            (Wire::Http, "unix:"),
        ] {
            assert!(target(wire, url).is_err(), "{url}");
        }
        for (url, expected) in [
            ("/run/x", Some("unix:/run/x")),
            ("./x", Some("unix:./x")),
            ("unix:/run/x", Some("unix:/run/x")),
            ("unix:///run/x", Some("unix:/run/x")),
            ("x", None),
            ("localhost:8001", None),
            ("grpc://h:1/", None),
            ("https://h/x", None),
            ("unix:", None),
            ("", None),
        ] {
            let found = target(Wire::Ipc, url).ok().map(|found| (found.endpoint.to_string(), found.protocol));
            assert_eq!(found, expected.map(|path| (path.to_owned(), Protocol::Ipc)), "{url}");
        }
        let long = format!("unix:/{}", "x".repeat(107));
        assert!(target(Wire::Http, &long).is_err());
    }

    #[test]
    fn metrics() {
        let source = |url: Option<&str>| {
            let mut given = Given { url: Some("h:1".into()), ..Given::default() };
            given.metrics.wanted = true;
            given.metrics.url = url.map(str::to_owned);
            let target = given.target().expect("a target");
            let source = given.metrics_source(&target).ok().flatten();
            source.map(|source| (source.endpoint.to_string(), source.path))
        };
        let at = |endpoint: &str, path: &str| Some((endpoint.to_owned(), path.to_owned()));
        assert_eq!(source(None), at("h:8002", "/metrics"));
        assert_eq!(source(Some("m")), at("m:8002", "/metrics"));
        assert_eq!(source(Some("m:3/x?y")), at("m:3", "/x?y"));
        assert_eq!(source(Some("http://m:3/metrics")), at("m:3", "/metrics"));
        for wrong in ["https://m", "unix:/x", "m:3/a b", ""] {
            assert_eq!(source(Some(wrong)), None, "{wrong}");
        }
    }
}
