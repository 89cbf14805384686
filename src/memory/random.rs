//! Random bytes of the system, for names that nobody may guess and keys of hashes.

use std::io;

/// `N` random bytes. It does not wait once the system has started.
pub fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        // SAFETY: the system writes at most as many bytes as the rest has.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), libc::GRND_NONBLOCK) };
        match usize::try_from(got) {
            Ok(got) => filled += got,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_differ_each_time() {
        let many: std::collections::HashSet<[u8; 16]> = (0..100).map(|_| random_bytes().unwrap()).collect();
        assert_eq!(many.len(), 100);
        assert_eq!(random_bytes().unwrap(), []);
    }
}
