//! PEM files → what a port shows to its clients and requires of them (contract/grpc.md section 7).
//!
//! Read once, when the server starts. Triton takes a file that it cannot read for an empty one and then fails to listen
//! without a reason; here the start fails with the flag and the reason.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{Error, InconsistentKeys, RootCertStore, ServerConfig};

use super::version_1::{NamesVersion1, is_version_1};

/// What a port needs for TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Of the server: its own certificate first, then those that lead to its authority.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Authorities of clients.
    pub roots: PathBuf,
    /// Clients must show a certificate of one of those authorities.
    pub mutual: bool,
}

/// Why a port cannot use TLS. `what` is the part of the flag's name behind its service, such as `server-cert`.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("TLS needs a value for --{service}-{what}")]
    Missing { service: &'static str, what: &'static str },
    #[error("cannot read --{service}-{what} '{}': {reason}", path.display())]
    File { service: &'static str, what: &'static str, path: PathBuf, reason: String },
    #[error("--{service}-server-cert and --{service}-server-key cannot be used: {reason}")]
    Identity { service: &'static str, reason: rustls::Error },
    #[error("--{service}-root-cert cannot be used: {reason}")]
    Roots { service: &'static str, reason: String },
}

impl Credentials {
    /// Reads the files of `service` (`grpc` or `http`, as its flags begin), for `protocol` (ALPN).
    pub fn load(&self, service: &'static str, protocol: &[u8]) -> Result<Arc<ServerConfig>, CredentialsError> {
        let chain = certificates(&self.certificate, service, "server-cert")?;
        let key = read(&self.key, service, "server-key", || PrivateKeyDer::from_pem_file(&self.key))?;
        let provider = Arc::new(ring::default_provider());
        let unusable = |reason| CredentialsError::Identity { service, reason };
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().map_err(unusable)?;
        let builder = match self.mutual {
            false => builder.with_no_client_auth(),
            true => builder.with_client_cert_verifier(self.verifier(Arc::clone(&provider), service)?),
        };
        let key = provider.key_provider.load_private_key(key).map_err(unusable)?;
        let identity = CertifiedKey::new(chain, key);
        check_identity(&identity).map_err(unusable)?;
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(identity)));
        config.alpn_protocols = vec![protocol.to_vec()];
        // Without state of the server's: a client comes back to any shard.
        config.ticketer = ring::Ticketer::new().map_err(unusable)?;
        Ok(Arc::new(config))
    }

    fn verifier(
        &self,
        provider: Arc<CryptoProvider>,
        service: &'static str,
    ) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, CredentialsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.roots, service, "root-cert")? {
            let added = roots.add(certificate);
            added.map_err(|error| CredentialsError::Roots { service, reason: error.to_string() })?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let verifier = verifier.map_err(|error| CredentialsError::Roots { service, reason: error.to_string() })?;
        Ok(Arc::new(NamesVersion1(verifier)))
    }
}

/// The key must be that of the first certificate. One of X.509 version 1, which rustls does not read, is shown to
/// clients as it is: they judge it, and OpenSSL and gRPC take it.
fn check_identity(identity: &CertifiedKey) -> Result<(), Error> {
    match identity.keys_match() {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(()),
        Err(error) => {
            let certificate = identity.end_entity_cert()?;
            let Some(key) = identity.key.public_key().filter(|_| is_version_1(certificate)) else { return Err(error) };
            // It holds its key in the very form in which the private key's other half is written.
            let holds_key = memchr::memmem::find(certificate, key.as_ref()).is_some();
            holds_key.then_some(()).ok_or_else(|| InconsistentKeys::KeyMismatch.into())
        }
    }
}

/// At least one certificate.
fn certificates(
    path: &Path,
    service: &'static str,
    what: &'static str,
) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    let found = read(path, service, what, || {
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>)
    })?;
    match found.is_empty() {
        true => Err(file_error(path, service, what, pem::Error::NoItemsFound)),
        false => Ok(found),
    }
}

fn read<T>(
    path: &Path,
    service: &'static str,
    what: &'static str,
    read: impl FnOnce() -> Result<T, pem::Error>,
) -> Result<T, CredentialsError> {
    match path.as_os_str().is_empty() {
        true => Err(CredentialsError::Missing { service, what }),
        false => read().map_err(|error| file_error(path, service, what, error)),
    }
}

fn file_error(path: &Path, service: &'static str, what: &'static str, error: pem::Error) -> CredentialsError {
    let reason = match error {
        pem::Error::Io(error) => error.to_string(),
        pem::Error::NoItemsFound if what == "server-key" => "it holds no private key in PEM form".to_owned(),
        pem::Error::NoItemsFound => "it holds no certificate in PEM form".to_owned(),
        error => error.to_string(),
    };
    CredentialsError::File { service, what, path: path.to_owned(), reason }
}
