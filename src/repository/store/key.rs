//! Object keys as paths below a model's directory.
//!
//! A bucket accepts nearly any text as a key. A key that becomes a file of this host must stay within the model's
//! directory: no part may be empty, `.` or `..`, or a name that a file system refuses, and there may be no more parts
//! than a walk follows.

use object_store::path::Path as Key;

use super::tree;

/// The longest name that Linux file systems take.
const NAME_BYTES_MAX: usize = 255;

/// Why a key cannot become a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnusableKey {
    #[error("it does not lie in the model's directory")]
    Elsewhere,
    #[error("a part of it is empty, '.' or '..', or holds a control character")]
    Part,
    #[error("a part of it is longer than {NAME_BYTES_MAX} bytes")]
    LongName,
    #[error("it has more than {} parts", tree::BOUNDS.depth_max)]
    Deep,
}

/// The rest of `key` below `directory`; empty for the directory's own marker.
pub fn below<'a>(directory: &Key, key: &'a Key) -> Result<&'a str, UnusableKey> {
    let (directory, key) = (directory.as_ref(), key.as_ref());
    let rest = key.strip_prefix(directory).ok_or(UnusableKey::Elsewhere)?;
    if rest.is_empty() {
        return Ok("");
    }
    let rest = match rest.strip_prefix('/') {
        Some(rest) => rest,
        None if directory.is_empty() => rest,
        None => return Err(UnusableKey::Elsewhere),
    };
    let mut depth = 0;
    for part in rest.split('/') {
        if part.is_empty() || part == "." || part == ".." || part.contains(|c: char| c.is_control()) {
            return Err(UnusableKey::Part);
        }
        if part.len() > NAME_BYTES_MAX {
            return Err(UnusableKey::LongName);
        }
        depth += 1;
    }
    if depth > tree::BOUNDS.depth_max { Err(UnusableKey::Deep) } else { Ok(rest) }
}

/// The directories that lead to `path`, outermost first: of `a/b/c`, `a` and `a/b`.
pub fn parents(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| path.get(..at).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn what_lies_below_a_directory_is_a_path_and_nothing_else() {
        let long = "x".repeat(256);
        let deep = vec!["d"; 129].join("/");
        let table = [
            ("repo/model", "repo/model/config.pbtxt".to_owned(), Ok("config.pbtxt")),
            ("repo/model", "repo/model/1/model.onnx".to_owned(), Ok("1/model.onnx")),
            ("repo/model", "repo/model".to_owned(), Ok("")),
            ("", "model/1".to_owned(), Ok("model/1")),
            ("repo/model", "repo/model2/config.pbtxt".to_owned(), Err(UnusableKey::Elsewhere)),
            ("repo/model", "other/model/config.pbtxt".to_owned(), Err(UnusableKey::Elsewhere)),
            ("repo", format!("repo/{long}"), Err(UnusableKey::LongName)),
            ("repo", format!("repo/{deep}"), Err(UnusableKey::Deep)),
            ("repo", "repo/a b%20ü/c#d".to_owned(), Ok("a b%20ü/c#d")),
        ];
        for (directory, text, expected) in table {
            assert_eq!(below(&key(directory), &key(&text)), expected, "{directory} {text}");
        }
    }

    #[test]
    fn keys_that_lead_elsewhere_are_refused_before_they_are_keys() {
        for text in ["a/../b", "a//b", "./a", "a/..", "a/\n"] {
            assert!(Key::parse(text).is_err(), "{text:?}");
        }
        // One leading and one trailing delimiter are dropped: such a key stays below its bucket.
        assert_eq!(key("/etc/passwd").as_ref(), "etc/passwd");
        assert_eq!(key("a/b/").as_ref(), "a/b");
    }

    #[test]
    fn parents_come_outermost_first() {
        assert_eq!(parents("a/b/c").collect::<Vec<_>>(), ["a", "a/b"]);
        assert_eq!(parents("a").count(), 0);
    }
}
