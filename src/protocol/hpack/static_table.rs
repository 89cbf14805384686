//! The fields that every HPACK table begins with (RFC 7541 appendix A).

/// Entry `i` has index `i + 1`.
pub(super) const ENTRIES: [(&[u8], &[u8]); 61] = [
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
];

/// The first index whose name is `name`. Only names that a server or a gRPC client sends are worth the comparison;
/// any other name is written out.
pub(super) fn index_of_name(name: &[u8]) -> Option<usize> {
    Some(match name {
        b":authority" => 1,
        b":method" => 2,
        b":path" => 4,
        b":scheme" => 6,
        b":status" => 8,
        b"accept-encoding" => 16,
        b"accept" => 19,
        b"allow" => 22,
        b"authorization" => 23,
        b"cache-control" => 24,
        b"content-encoding" => 26,
        b"content-length" => 28,
        b"content-type" => 31,
        b"cookie" => 32,
        b"date" => 33,
        b"location" => 46,
        b"retry-after" => 53,
        b"server" => 54,
        b"set-cookie" => 55,
        b"user-agent" => 58,
        b"www-authenticate" => 61,
        _ => return None,
    })
}

/// The index of the field as a whole, where `name_index` is that of its name.
pub(super) fn index_of_field(name_index: usize, value: &[u8]) -> Option<usize> {
    let candidates = match name_index {
        2 => 2..=3,
        4 => 4..=5,
        6 => 6..=7,
        8 => 8..=14,
        16 => 16..=16,
        _ => return None,
    };
    candidates.into_iter().find(|index| ENTRIES[index - 1].1 == value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_agree_with_the_table() {
        for (at, (name, value)) in ENTRIES.iter().enumerate() {
            let Some(index) = index_of_name(name) else { continue };
            assert_eq!(ENTRIES[index - 1].0, *name);
            assert_eq!(ENTRIES.iter().position(|entry| entry.0 == *name), Some(index - 1));
            if !value.is_empty() {
                assert_eq!(index_of_field(index, value), Some(at + 1));
            }
        }
        assert_eq!(index_of_name(b"grpc-status"), None);
        // An index forgotten costs bytes in each header block, and no peer would say so.
        let sent: [&[u8]; 21] = [
            b":authority",
            b":method",
            b":path",
            b":scheme",
            b":status",
            b"accept-encoding",
            b"accept",
            b"allow",
            b"authorization",
            b"cache-control",
            b"content-encoding",
            b"content-length",
            b"content-type",
            b"cookie",
            b"date",
            b"location",
            b"retry-after",
            b"server",
            b"set-cookie",
            b"user-agent",
            b"www-authenticate",
        ];
        for name in sent {
            assert!(index_of_name(name).is_some(), "{}", name.escape_ascii());
        }
        assert_eq!(index_of_field(8, b"201"), None);
    }
}
