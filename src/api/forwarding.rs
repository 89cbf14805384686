//! Headers and metadata that become parameters of the request (contract/http.md section 5, contract/grpc.md section 7).

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use regex::{Regex, RegexBuilder};

use nereid_protocol::http1;
use nereid_protocol::http2::Headers;
use nereid_protocol::service::Kept;
use nereid_request::{Request, Status, Text, Value};

/// Bytes that a compiled pattern may take, and that it may keep while it searches.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// `--http-header-forward-pattern` and its sister: which names are forwarded.
#[derive(Debug, Clone)]
pub struct HeaderPattern(Regex);

impl HeaderPattern {
    /// Reads RE2's syntax, in which case does not matter unless the pattern sets it. Linear in what it searches,
    /// whatever the pattern.
    pub fn new(pattern: &str) -> Result<HeaderPattern, String> {
        let built = RegexBuilder::new(&format!("(?i){}", unquoted(pattern)))
            .size_limit(PATTERN_BYTES_MAX)
            .dfa_size_limit(PATTERN_BYTES_MAX)
            .build();
        // The text of an error shows the pattern first; its last line states the error.
        let reason = |text: String| text.lines().last().map(|line| line.trim_start_matches("error: ").to_owned());
        built.map(HeaderPattern).map_err(|error| reason(error.to_string()).unwrap_or_default())
    }

    fn matches(&self, name: &str) -> bool {
        self.0.is_match(name)
    }

    /// The headers of an HTTP request that match, as they are spelt.
    pub fn of_http(&self, head: &http1::Head) -> Forwarded {
        let matching = head.headers().filter(|(name, _)| self.matches(name));
        Forwarded(matching.map(|(name, value)| (Text::from(name), Text::new(value))).collect())
    }

    /// The metadata of a call that matches, without what belongs to gRPC itself.
    pub fn of_metadata(&self, headers: &Headers) -> Kept {
        let mut kept = Kept::new();
        for (name, value) in headers.iter() {
            let Ok(text) = std::str::from_utf8(name) else { continue };
            if !TRANSPORT.contains(&text) && self.matches(text) {
                keep(name, value, &mut kept);
            }
        }
        kept
    }
}

/// Metadata of gRPC itself, which applications do not get.
const TRANSPORT: [&str; 8] = [
    "te",
    "content-type",
    "content-length",
    "grpc-timeout",
    "grpc-encoding",
    "grpc-accept-encoding",
    "grpc-message-type",
    "connection",
];

/// Binary values travel in base64, with or without padding, several perhaps in one field ("ASCII-Value" and
/// "Binary-Header" of gRPC over HTTP/2); what an application sees are their bytes.
fn keep(name: &[u8], value: &[u8], kept: &mut Kept) {
    const BASE64: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new()
            .with_decode_padding_mode(DecodePaddingMode::Indifferent)
            .with_decode_allow_trailing_bits(true),
    );
    if name.ends_with(b"-bin") {
        let decoded: Result<Vec<_>, _> = value.split(|byte| *byte == b',').map(|one| BASE64.decode(one)).collect();
        if let Ok(decoded) = decoded {
            return kept.extend(decoded.into_iter().map(|bytes| (name.into(), bytes.into())));
        }
    }
    kept.push((name.into(), value.into()));
}

/// Headers on their way to the request that they belong to. Nothing is allocated for none.
#[derive(Debug, Default)]
pub struct Forwarded(Vec<(Text, Text)>);

impl Forwarded {
    /// Makes them parameters.
    pub fn put(self, request: &mut Request) -> Result<(), Status> {
        for (name, value) in self.0 {
            check_name(name.as_bytes())?;
            request.parameters.push(name, Value::String(value));
        }
        Ok(())
    }
}

/// Makes parameters of the metadata of a call.
pub fn put_metadata(kept: &Kept, request: &mut Request) -> Result<(), Status> {
    for (name, value) in kept {
        check_name(name)?;
        request.parameters.push(Text::new(name), Value::String(Text::new(value)));
    }
    Ok(())
}

/// Names of parameters that mean something to the server.
const RESERVED: [&str; 7] =
    ["sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"];

fn check_name(name: &[u8]) -> Result<(), Status> {
    if name.starts_with(b"triton_") || RESERVED.iter().any(|reserved| reserved.as_bytes() == name) {
        let name = String::from_utf8_lossy(name);
        return Err(Status::invalid(format!("Header '{name}' is reserved for Triton usage and cannot be forwarded.")));
    }
    Ok(())
}

/// The pattern with what stands between `\Q` and `\E` escaped: the one form of RE2 that the engine here does not
/// support and that a name with dots in it may need.
fn unquoted(pattern: &str) -> String {
    let (mut plain, mut rest) = (String::with_capacity(pattern.len()), pattern);
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        plain.push_str(before);
        if let Some(quoted) = escape.strip_prefix("\\Q") {
            let (literal, behind) = quoted.split_once("\\E").unwrap_or((quoted, ""));
            plain.push_str(&regex::escape(literal));
            rest = behind;
        } else {
            // Two characters that belong together, the second perhaps another backslash.
            let len = escape.chars().take(2).map(char::len_utf8).sum();
            let (pair, behind) = escape.split_at(len);
            plain.push_str(pair);
            rest = behind;
        }
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_anywhere_in_any_case() {
        for (pattern, name, matches) in [
            ("my-key", "x-my-key-y", true),
            ("my-key", "X-MY-KEY", true),
            ("^my-key$", "My-Key", true),
            ("^my-key$", "my-key2", false),
            ("(?-i)my-key", "my-key", true),
            ("(?-i)my-key", "My-Key", false),
            ("a|b-c", "B-C", true),
            ("(?-i)a|B-C", "b-c", false),
            ("", "anything", true),
            ("X-.*", "x-", true),
            (r"\Qx.y\E-[0-9]+$", "X.Y-12", true),
            (r"\Qx.y\E-[0-9]+$", "xzy-12", false),
            (r"\Qa.b", "a.b", true),
            (r"\\Qa", r"\Qa", true),
            (r"\x2d", "-", true),
            ("[[:alpha:]]{3}", "abc", true),
            (r"(?P<x>\pL)-\d", "y-1", true),
        ] {
            assert_eq!(HeaderPattern::new(pattern).unwrap().matches(name), matches, "{pattern} in {name}");
        }
    }

    #[test]
    fn patterns_that_are_none_are_refused() {
        for pattern in ["(unclosed", "[a", "*", "a{2,1}", r"\", "(?=a)", r"(a)\1", "((a{1000}){1000}){1000}"] {
            assert!(HeaderPattern::new(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn reserved_names_cannot_be_forwarded() {
        for name in RESERVED.into_iter().chain(["triton_", "triton_enable_empty_final_response"]) {
            let text = format!("Header '{name}' is reserved for Triton usage and cannot be forwarded.");
            assert_eq!(check_name(name.as_bytes()).unwrap_err().message, text);
        }
        for name in ["Sequence_id", "PRIORITY", "xtriton_", "Triton_x", "timeouts", "binary_data", ""] {
            assert!(check_name(name.as_bytes()).is_ok(), "{name}");
        }
    }

    #[test]
    fn binary_metadata_is_what_was_sent() {
        let kept = |name: &[u8], value: &[u8]| {
            let mut kept = Kept::new();
            keep(name, value, &mut kept);
            kept.into_iter().map(|(_, value)| value.to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(kept(b"a-bin", b"AAEC/w=="), [b"\0\x01\x02\xff"]);
        assert_eq!(kept(b"a-bin", b"AAEC/w"), [b"\0\x01\x02\xff"]);
        assert_eq!(kept(b"a-bin", b"YQ,Yg=="), [b"a", b"b"]);
        assert_eq!(kept(b"a-bin", b"not base64!"), [b"not base64!"]);
        assert_eq!(kept(b"a", b"AAEC/w=="), [b"AAEC/w=="]);
    }
}
