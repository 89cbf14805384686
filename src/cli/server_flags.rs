//! The flags of `nereid top`, `nereid status` and `nereid replay`: the server, its metrics, TLS as `nereid perf` has
//! it.

use std::ffi::OsString;
use std::time::Duration;

use nereid_client::{Endpoint, Tls};
use nereid_monitor::{MetricsAddress, ServerAddress, Source};

const HTTP_PORT: u16 = 8000;
const METRICS_PORT: u16 = 8002;

const USAGE: &str = "
Server:
  --url=<address>      (also -u <address>) The HTTP port: host, host:port, http://…, https://… or unix:<path>.
                       Default: localhost:8000.
  --metrics-url=<url>  The page of metrics: host:port/path, http://… or https://…. Default: /metrics at the HTTP port,
                       where the server has --http-metrics, or else at port 8002 of its host.
  --header=<name:value>
                       (also -H <name:value>) A header of the requests to the HTTP port, such as a key. Can be repeated.
  --timeout-secs=<n>   The longest time in which an answer makes no progress. Default: 5.
";

/// The lines of a usage text that explain the flags of TLS.
pub const TLS_USAGE: &str = "  --ssl-https-verify-peer=<0|1>
                       With https://: whether its certificate is checked. Default: 1.
  --ssl-https-verify-host=<0|1|2>
                       Whether its name is checked, 1 and 2 alike. Default: 2.
  --ssl-https-ca-certificates-file=<path>
                       Authorities that the server is checked against. Default: those of the system.
  --ssl-https-client-certificate-file=<path>
                       Certificate that the client shows.
  --ssl-https-private-key-file=<path>
                       Its key.
";

/// The lines of a usage text that explain these flags.
pub fn usage() -> String {
    format!("{USAGE}{TLS_USAGE}")
}

/// The words of a command line, one after the other.
pub struct Words<'a> {
    rest: std::slice::Iter<'a, OsString>,
    name: String,
    /// Behind the equals sign of the word.
    value: Option<String>,
}

impl<'a> Words<'a> {
    pub fn new(words: &'a [OsString]) -> Words<'a> {
        Words { rest: words.iter(), name: String::new(), value: None }
    }

    fn word(&mut self) -> Result<Option<String>, String> {
        let Some(word) = self.rest.next() else { return Ok(None) };
        let text = word.to_str().ok_or_else(|| format!("'{}' is not UTF-8", word.display()))?;
        Ok(Some(text.to_owned()))
    }

    /// The name of the next flag, with its dashes. A value that the last flag has no use for is an error.
    pub fn next_flag(&mut self) -> Result<Option<String>, String> {
        if self.value.is_some() {
            return Err(format!("{} takes no value", self.name));
        }
        let Some(word) = self.word()? else { return Ok(None) };
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            // A letter may carry its value.
            None if word.starts_with('-') && !word.starts_with("--") && word.len() > 2 => {
                let (name, value) = word.split_at_checked(2).unwrap_or((&word, ""));
                (name.to_owned(), Some(value.to_owned()))
            }
            None => (word, None),
        };
        (self.name, self.value) = (name, value);
        Ok(Some(self.name.clone()))
    }

    /// The value of the flag: behind its equals sign, or the next word.
    pub fn value(&mut self) -> Result<String, String> {
        let value = match self.value.take() {
            Some(value) => Some(value),
            None => self.word()?,
        };
        value.filter(|value| !value.is_empty()).ok_or_else(|| format!("{} needs a value", self.name))
    }

    /// A number from `least` to `most`.
    pub fn number(&mut self, least: f64, most: f64) -> Result<f64, String> {
        let value = self.value()?;
        let number = value.parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("{}: '{value}' is not a number from {least} to {most}", self.name))
    }

    /// The error for a flag that there is not.
    pub fn unknown(&self) -> String {
        match self.name.starts_with('-') {
            true => format!("there is no {}", self.name),
            false => format!("'{}' is neither a flag nor the value of one", self.name),
        }
    }
}

/// What is given of a server.
#[derive(Debug, Default)]
pub struct ServerFlags {
    url: Option<String>,
    metrics_url: Option<String>,
    headers: Vec<(String, String)>,
    timeout: Option<Duration>,
    tls: Tls,
}

impl ServerFlags {
    /// Reads the value of the flag `name`. False: it is none of these.
    pub fn take(&mut self, name: &str, words: &mut Words<'_>) -> Result<bool, String> {
        match name {
            "--url" | "-u" => self.url = Some(words.value()?),
            "--metrics-url" => self.metrics_url = Some(words.value()?),
            "--header" | "-H" => self.headers.push(header(&words.value()?)?),
            "--timeout-secs" => self.timeout = Some(Duration::from_secs_f64(words.number(0.1, 3600.0)?)),
            "--ssl-https-verify-peer" => self.tls.accept_any_certificate = words.number(0.0, 1.0)? == 0.0,
            "--ssl-https-verify-host" => self.tls.accept_any_name = words.number(0.0, 2.0)? == 0.0,
            "--ssl-https-ca-certificates-file" => self.tls.ca = Some(words.value()?.into()),
            "--ssl-https-client-certificate-file" => self.tls.certificate = Some(words.value()?.into()),
            "--ssl-https-private-key-file" => self.tls.key = Some(words.value()?.into()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The server's HTTP port.
    pub fn address(&self) -> Result<ServerAddress, String> {
        let url = self.url.as_deref().unwrap_or("localhost");
        let wrong = || format!("--url: '{url}' is not host, host:port, http://…, https://… or unix:<path>");
        let (scheme, endpoint) = Endpoint::parse(url, HTTP_PORT).ok_or_else(wrong)?;
        let has_tls = match scheme {
            "" | "http" | "unix" => false,
            "https" => true,
            _ => return Err(wrong()),
        };
        Ok(ServerAddress { endpoint, has_tls, tls: self.tls.clone(), headers: self.headers.clone() })
    }

    /// Whether a server is named.
    pub fn has_url(&self) -> bool {
        self.url.is_some()
    }

    /// The longest time in which an answer makes no progress, if it is given.
    pub fn patience(&self) -> Option<Duration> {
        self.timeout
    }

    /// The server; nothing is sent yet.
    pub fn source(&self) -> Result<Source, String> {
        let server = self.address()?;
        let metrics = self.metrics_url.as_deref().map_or(Ok(MetricsAddress::Usual), metrics_address)?;
        Source::new(server, metrics, self.timeout.unwrap_or(Duration::from_secs(5)))
    }
}

fn header(text: &str) -> Result<(String, String), String> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let is_plain = |byte: u8| byte == b'\t' || (b' '..=b'~').contains(&byte);
    let parts = text.split_once(':').map(|(name, value)| (name, value.trim_matches([' ', '\t'])));
    let fits =
        |(name, value): &(&str, &str)| !name.is_empty() && name.bytes().all(is_token) && value.bytes().all(is_plain);
    let parts = parts.filter(fits).map(|(name, value)| (name.to_owned(), value.to_owned()));
    parts.ok_or_else(|| "--header: it has the form name:value".to_owned())
}

fn metrics_address(url: &str) -> Result<MetricsAddress, String> {
    let wrong = || format!("--metrics-url: '{url}' is not host:port/path, http://… or https://…");
    let start = url.find("://").map_or(0, |at| at + 3);
    let (server, path) = match url.get(start..).and_then(|rest| rest.find('/')) {
        Some(at) => url.split_at_checked(start + at).ok_or_else(wrong)?,
        None => (url, "/metrics"),
    };
    let (scheme, endpoint) = Endpoint::parse(server, METRICS_PORT).ok_or_else(wrong)?;
    let is_plain = path.bytes().all(|byte| byte.is_ascii_graphic());
    match (scheme, &endpoint) {
        ("" | "http" | "https", Endpoint::Tcp { .. }) if is_plain => {
            Ok(MetricsAddress::At { endpoint, path: path.to_owned(), has_tls: scheme == "https" })
        }
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(line: &str) -> Result<ServerFlags, String> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let (mut words, mut flags) = (Words::new(&words), ServerFlags::default());
        while let Some(name) = words.next_flag()? {
            if !flags.take(&name, &mut words)? {
                return Err(words.unknown());
            }
        }
        Ok(flags)
    }

    #[test]
    fn servers_are_named_as_for_perf() {
        for (line, address) in [
            ("", "localhost:8000"),
            ("-u h", "h:8000"),
            ("-uh:1", "h:1"),
            ("--url=https://h", "h:443"),
            ("--url unix:/run/x", "unix:/run/x"),
            ("-u [::1]:5 -H key:value --timeout-secs=0.5", "[::1]:5"),
        ] {
            let source = flags(line).and_then(|flags| flags.source());
            assert_eq!(source.map(|source| source.address()), Ok(address.to_owned()), "{line}");
        }
        for (line, part) in [
            ("-u", "-u needs a value"),
            ("--url=", "--url needs a value"),
            ("-u ftp://h", "'ftp://h' is not host"),
            ("-u grpc://h", "'grpc://h' is not host"),
            ("-H nonsense", "name:value"),
            ("--timeout-secs=0", "'0' is not a number from 0.1 to 3600"),
            ("--nonsense", "there is no --nonsense"),
            ("host", "'host' is neither a flag nor the value of one"),
            ("--metrics-url=unix:/x", "--metrics-url: 'unix:/x' is not"),
            ("--url=https://h --ssl-https-ca-certificates-file=/nonsense", "certificates of /nonsense"),
        ] {
            let Err(error) = flags(line).and_then(|flags| flags.source()) else { panic!("{line}") };
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn pages_of_metrics_have_a_path() {
        let at = |url: &str| match metrics_address(url) {
            Ok(MetricsAddress::At { endpoint, path, has_tls }) => Some((endpoint.to_string(), path, has_tls)),
            _ => None,
        };
        let found = |endpoint: &str, path: &str, has_tls| Some((endpoint.to_owned(), path.to_owned(), has_tls));
        assert_eq!(at("m"), found("m:8002", "/metrics", false));
        assert_eq!(at("m:3/x?y"), found("m:3", "/x?y", false));
        assert_eq!(at("http://m:3"), found("m:3", "/metrics", false));
        assert_eq!(at("https://m/p"), found("m:443", "/p", true));
        assert_eq!([at("m:3/a b"), at(""), at("ftp://m")], [None, None, None]);
    }
}
