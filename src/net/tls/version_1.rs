//! Certificates of X.509 version 1: what `openssl x509 -req` makes without extensions.
//!
//! The server shows its own, as Triton does. From clients none is accepted: without extensions nothing states whether
//! it may sign others, so any client could issue certificates. Clients that show one are turned away with the reason in
//! the log.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use tracing::debug;

const SEQUENCE: u8 = 0x30;
/// Tag of the version, which version 1 alone leaves out (RFC 5280 section 4.1).
const VERSION: u8 = 0xa0;

/// True of a certificate that names no version, and so is of the first.
pub(super) fn is_version_1(certificate: &[u8]) -> bool {
    let signed = sequence(certificate).and_then(sequence);
    signed.and_then(<[u8]>::first).is_some_and(|tag| *tag != VERSION)
}

/// What the DER sequence at the beginning of `der` holds.
fn sequence(der: &[u8]) -> Option<&[u8]> {
    let (&[tag, first], rest) = der.split_first_chunk()?;
    if tag != SEQUENCE {
        return None;
    }
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |len, digit| len << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    rest.get(..len)
}

/// Judges clients as the verifier within, and logs why a certificate of version 1 is refused.
#[derive(Debug)]
pub(super) struct NamesVersion1(pub Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for NamesVersion1 {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.0.verify_client_cert(end_entity, intermediates, now);
        if verified.is_err() && is_version_1(end_entity) {
            debug!(
                "a client's certificate is refused: it is of X.509 version 1; sign it with extensions, as by `openssl \
                 x509 -req -extfile <file>`"
            );
        }
        verified
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_certificates_without_a_version_are_of_the_first() {
        // Certificate { TBSCertificate { serial 1 } }, and the same with a version.
        assert!(is_version_1(&[0x30, 5, 0x30, 3, 2, 1, 1]));
        assert!(is_version_1(&[0x30, 0x81, 6, 0x30, 0x81, 3, 2, 1, 1]));
        assert!(!is_version_1(&[0x30, 10, 0x30, 8, 0xa0, 3, 2, 1, 2, 2, 1, 1]));
        for broken in
            [&[][..], &[0x30], &[0x30, 5, 0x30, 3, 2, 1], &[0x30, 0x80], &[0x30, 0x85, 0], &[0x31, 0], &[0x30, 0]]
        {
            assert!(!is_version_1(broken), "{broken:02x?}");
        }
        let endless = [[0x30, 0x84].as_slice(), &[0xff; 4], &[0x30; 9]].concat();
        assert!(!is_version_1(&endless));
    }
}
