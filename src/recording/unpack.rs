//! Unpacks bodies and messages, which a recording keeps plain.

use std::io::{self, Read};

use flate2::read::{MultiGzDecoder, ZlibDecoder};

/// Bytes of a body when it is unpacked. Its client needs a thousandth of them to make it.
const UNPACKED_BYTES_MAX: u64 = 64 << 20;

/// The first bytes of gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The bytes say how they are packed.
pub fn unpack(packed: &[u8]) -> io::Result<Vec<u8>> {
    let mut plain = Vec::new();
    let most = UNPACKED_BYTES_MAX + 1;
    let read = match packed.starts_with(&GZIP) {
        true => MultiGzDecoder::new(packed).take(most).read_to_end(&mut plain)?,
        false => ZlibDecoder::new(packed).take(most).read_to_end(&mut plain)?,
    };
    match read as u64 > UNPACKED_BYTES_MAX {
        true => Err(io::Error::other("a body that is too long when it is unpacked")),
        false => Ok(plain),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};

    use super::*;

    #[test]
    fn both_forms_are_unpacked() {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(b"plain").unwrap();
        assert_eq!(unpack(&gzip.finish().unwrap()).unwrap(), b"plain");
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
        zlib.write_all(b"plain").unwrap();
        assert_eq!(unpack(&zlib.finish().unwrap()).unwrap(), b"plain");
        assert!(unpack(b"plain").is_err());
    }
}
