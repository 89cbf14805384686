//! Makes a package's library check the tensors that it gets.
//!
//! The code of a package contains checks of types and shapes that only run if the environment variable
//! `AOTI_RUNTIME_CHECK_INPUTS` is set at its first run; without them a tensor of another shape is read past its end
//! (contract/frameworks.md section 11, trap 1). A process with threads must not change its environment. So the library
//! is changed instead, in the copy in memory, before it is opened: it looks for a variable that is set.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The variable, with the byte that ends it.
const VARIABLE: &[u8] = b"AOTI_RUNTIME_CHECK_INPUTS\0";
const PIECE_BYTES: usize = 1 << 20;

/// What became of the checks.
#[derive(Debug, PartialEq, Eq)]
pub enum Checks {
    /// The library checks its inputs.
    On,
    /// The person who started the server decided it.
    AsSet,
    /// No variable could take the place.
    NoVariable,
    /// The library contains no checks.
    None,
}

/// Turns the checks of `library` on.
pub fn enable(library: &File) -> io::Result<Checks> {
    if std::env::var_os("AOTI_RUNTIME_CHECK_INPUTS").is_some() {
        return Ok(Checks::AsSet);
    }
    let environment = std::env::vars_os().map(|(name, value)| (name.into_encoded_bytes(), value.into_encoded_bytes()));
    let Some(name) = stand_in(environment) else { return Ok(Checks::NoVariable) };
    replace(library, &name)
}

/// A variable whose value the library takes for "on": it is set and does not begin with `0`.
fn stand_in(environment: impl Iterator<Item = (Vec<u8>, Vec<u8>)>) -> Option<Vec<u8>> {
    let is_fit = |(name, value): &(Vec<u8>, Vec<u8>)| {
        let is_name = !name.is_empty() && name.len() < VARIABLE.len() && !name.contains(&0);
        is_name && value.first().is_some_and(|first| *first != b'0')
    };
    // PATH is set in every usual environment, and no program unsets it.
    let fit = environment.filter(is_fit).map(|(name, _)| name);
    fit.min_by_key(|name| (name != b"PATH", name.clone()))
}

/// Puts `name` where the library has the variable's name.
fn replace(library: &File, name: &[u8]) -> io::Result<Checks> {
    let length = library.metadata()?.len();
    let mut piece = vec![0; PIECE_BYTES];
    let (mut at, mut found) = (0, Checks::None);
    while at < length {
        let count = usize::try_from(length - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        let Some(bytes) = piece.get_mut(..count) else { break };
        library.read_exact_at(bytes, at)?;
        for place in memchr::memmem::find_iter(bytes, VARIABLE) {
            let mut text = VARIABLE.to_vec();
            text.fill(0);
            text.splice(..name.len(), name.iter().copied());
            library.write_all_at(&text, at + place as u64)?;
            found = Checks::On;
        }
        // A name may lie across two pieces.
        let overlap = if count == PIECE_BYTES { VARIABLE.len() - 1 } else { 0 };
        at += (count - overlap) as u64;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_backend::scratch::Scratch;

    fn pair(name: &str, value: &str) -> (Vec<u8>, Vec<u8>) {
        (name.as_bytes().to_vec(), value.as_bytes().to_vec())
    }

    fn replaced(name: &str, bytes: &[u8], variable: &[u8]) -> (Checks, Vec<u8>) {
        let scratch = Scratch::new(&format!("aoti-checks-{name}"));
        let path = scratch.write("library", bytes);
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let checks = replace(&file, variable).unwrap();
        (checks, std::fs::read(path).unwrap())
    }

    #[test]
    fn path_takes_the_place_or_else_another_variable() {
        let chosen = |pairs: &[(&str, &str)]| stand_in(pairs.iter().map(|(name, value)| pair(name, value)));
        assert_eq!(chosen(&[("HOME", "/root"), ("PATH", "/bin"), ("A", "1")]), Some(b"PATH".to_vec()));
        assert_eq!(chosen(&[("HOME", "/root"), ("LANG", "C")]), Some(b"HOME".to_vec()));
        let long = "X".repeat(VARIABLE.len());
        assert_eq!(chosen(&[("ZERO", "0"), ("EMPTY", ""), (&long, "1")]), None);
        assert_eq!(chosen(&[("X".repeat(VARIABLE.len() - 1).as_str(), "1")]).map(|name| name.len()), Some(25));
    }

    #[test]
    fn the_variable_is_replaced_wherever_it_is() {
        let around = [&b"abc\0"[..], VARIABLE, b"def"].concat();
        let (checks, bytes) = replaced("one", &around, b"PATH");
        assert_eq!(checks, Checks::On);
        assert_eq!(bytes, [&b"abc\0PATH"[..], &[0; 22], b"def"].concat());
        // Twice, one of them across two pieces.
        let mut long = vec![b'x'; PIECE_BYTES - 7];
        long.extend_from_slice(VARIABLE);
        long.extend_from_slice(&vec![b'y'; 3 * PIECE_BYTES]);
        long.extend_from_slice(VARIABLE);
        let (checks, bytes) = replaced("long", &long, b"LANG");
        assert_eq!((checks, bytes.len()), (Checks::On, long.len()));
        assert!(memchr::memmem::find(&bytes, VARIABLE).is_none());
        assert_eq!(memchr::memmem::find_iter(&bytes, b"LANG\0").count(), 2);
    }

    #[test]
    fn a_library_without_checks_stays_as_it_is() {
        for (name, bytes) in
            [("none", &b"nothing of it"[..]), ("empty", b""), ("longer", b"AOTI_RUNTIME_CHECK_INPUTS2\0")]
        {
            assert_eq!(replaced(name, bytes, b"PATH"), (Checks::None, bytes.to_vec()), "{name}");
        }
    }
}
