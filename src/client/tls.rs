//! TLS to the server: trusted roots and the client's certificate.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore};
use rustls::{SignatureScheme, crypto};

use super::Endpoint;

/// Files are PEM.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tls {
    /// Authorities that the server is checked against; the system's own where there is none.
    pub ca: Option<PathBuf>,
    /// What the client shows of itself; both or neither.
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// Takes any certificate.
    pub accept_any_certificate: bool,
    /// Takes a good certificate of any name.
    pub accept_any_name: bool,
}

/// The protocol that a session offers (ALPN).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alpn {
    Http1,
    Http2,
}

/// Makes sessions for connections to one server.
#[derive(Debug, Clone)]
pub struct Security {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Security {
    /// For connections to `endpoint`. The error names the file or the name that is of no use.
    pub fn new(tls: &Tls, endpoint: &Endpoint, alpn: Alpn) -> Result<Security, String> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier(tls, provider)?);
        let mut config = match (&tls.certificate, &tls.key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(certificate), Some(key)) => {
                let chain = certificates(certificate)?;
                let key = PrivateKeyDer::from_pem_file(key).map_err(|error| format!("{}: {error}", key.display()))?;
                builder.with_client_auth_cert(chain, key).map_err(|error| error.to_string())?
            }
            _ => return Err("a client's certificate and its key belong together".to_owned()),
        };
        config.alpn_protocols = match alpn {
            Alpn::Http1 => vec![b"http/1.1".to_vec()],
            Alpn::Http2 => vec![b"h2".to_vec()],
        };
        let name = match endpoint {
            Endpoint::Tcp { host, .. } => host.clone(),
            Endpoint::Unix(_) => "localhost".to_owned(),
        };
        let name = ServerName::try_from(name.clone()).map_err(|_| format!("'{name}' is no name of a server"))?;
        Ok(Security { config: Arc::new(config), name })
    }

    pub fn session(&self) -> Result<ClientConnection, String> {
        ClientConnection::new(Arc::clone(&self.config), self.name.clone()).map_err(|error| error.to_string())
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    read.map_err(|error| format!("certificates of {}: {error}", path.display()))
}

fn verifier(tls: &Tls, provider: Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>, String> {
    if tls.accept_any_certificate {
        return Ok(Arc::new(AnyCertificate(provider)));
    }
    let mut roots = RootCertStore::empty();
    match &tls.ca {
        Some(file) => drop(roots.add_parsable_certificates(certificates(file)?)),
        None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| format!("there is no certificate authority to trust: {error}"))?;
    match tls.accept_any_name {
        true => Ok(Arc::new(AnyName(inner))),
        false => Ok(inner),
    }
}

/// Takes whatever certificate the server shows, as long as it has its key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        crypto::verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        crypto::verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Checks everything about a certificate but whose it is.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is what is looked at last.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            outcome => outcome,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
