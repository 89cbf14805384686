//! TLS to Redis: the trusted authorities and the client's certificate.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

pub struct Security {
    config: Arc<ClientConfig>,
    /// The name in the server's certificate.
    name: ServerName<'static>,
}

impl Security {
    /// From the settings `cert`, `key`, `cacert`, `cacert_dir` and `sni`. Without an authority of its own, those of the
    /// system count.
    pub fn new(host: &str, settings: &BTreeMap<&str, &str>) -> Result<Security, String> {
        let mut roots = RootCertStore::empty();
        let (file, directory) = (settings.get("cacert"), settings.get("cacert_dir"));
        if let Some(file) = file {
            roots.add_parsable_certificates(certificates(Path::new(file))?);
        }
        if let Some(directory) = directory {
            let entries = std::fs::read_dir(directory).map_err(|error| format!("'cacert_dir' {directory}: {error}"))?;
            // Such directories hold other files too.
            for certificates in entries.flatten().filter_map(|entry| certificates(&entry.path()).ok()) {
                roots.add_parsable_certificates(certificates);
            }
        }
        if file.is_none() && directory.is_none() {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        if roots.is_empty() {
            return Err("there is no certificate authority to trust".to_owned());
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots);
        let config = match (settings.get("cert"), settings.get("key")) {
            (None, None) => builder.with_no_client_auth(),
            (Some(cert), Some(key)) => {
                let chain = certificates(Path::new(cert))?;
                let key = PrivateKeyDer::from_pem_file(key).map_err(|error| format!("'key' {key}: {error}"))?;
                builder.with_client_auth_cert(chain, key).map_err(|error| error.to_string())?
            }
            _ => return Err("'cert' and 'key' belong together".to_owned()),
        };
        let name = settings.get("sni").copied().unwrap_or(host);
        let name = ServerName::try_from(name.to_owned()).map_err(|_| format!("'{name}' is no name of a server"))?;
        Ok(Security { config: Arc::new(config), name })
    }

    pub fn session(&self) -> Result<ClientConnection, rustls::Error> {
        ClientConnection::new(Arc::clone(&self.config), self.name.clone())
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    read.map_err(|error| format!("certificates of {}: {error}", path.display()))
}
