//! Authorities and certificates for the tests of TLS, created with the openssl command for each test.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned};

use crate::paths;
use crate::server::PATIENCE;
use crate::skip::skip;

/// A directory with `authority.pem`, with `server.pem` and `client.pem`, which that authority has signed, with
/// `stranger.pem`, which another authority (`other.pem`) has signed, and with the `.key` of each.
pub struct Certificates {
    directory: PathBuf,
}

impl Certificates {
    /// None, after a visible skip, where there is no openssl.
    pub fn make() -> Option<Certificates> {
        if Command::new("openssl").arg("version").output().is_err() {
            skip("there is no openssl command");
            return None;
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("certificates-{}-{count}", std::process::id());
        let directory = paths::temporary().join(name);
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("the build's temporary directory can be written");
        let made = Certificates { directory };
        made.authority("authority");
        made.authority("other");
        made.leaf("server", "authority", "30");
        made.leaf("client", "authority", "30");
        made.leaf("stranger", "other", "30");
        Some(made)
    }

    /// Adds `<name>.pem` of X.509 version 1, signed by `authority.pem`: the result of the usual commands without
    /// extensions.
    pub fn version_1(&self, name: &str) -> &Certificates {
        // Older clients read the server's name from here, as version 1 has no other field for it.
        let (key, request, certificate) = (format!("{name}.key"), format!("{name}.csr"), format!("{name}.pem"));
        self.openssl(&["req", "-new", "-subj", "/CN=localhost", "-keyout", &key, "-out", &request]);
        let signing = ["-CA", "authority.pem", "-CAkey", "authority.key", "-CAcreateserial", "-out", &certificate];
        self.run(&[&["x509", "-req", "-days", "30", "-in", &request], &signing[..]].concat());
        let shown = Command::new("openssl").args(["x509", "-noout", "-text", "-in", &self.path(&certificate)]).output();
        let shown = shown.expect("run openssl");
        assert!(String::from_utf8_lossy(&shown.stdout).contains("Version: 1 "), "{shown:?}");
        self
    }

    /// Adds `expired.pem`, signed by `authority.pem`, whose time was over yesterday.
    pub fn expired(&self) -> &Certificates {
        self.leaf("expired", "authority", "-1");
        self
    }

    pub fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// `--<service>-server-cert` and `-key`.
    pub fn server_flags(&self, service: &str) -> Vec<String> {
        vec![
            format!("--{service}-use-ssl=true"),
            format!("--{service}-server-cert={}", self.path("server.pem")),
            format!("--{service}-server-key={}", self.path("server.key")),
        ]
    }

    /// The same, and the flags that require certificates of clients.
    pub fn mutual_flags(&self, service: &str) -> Vec<String> {
        let mut flags = self.server_flags(service);
        flags[0] = format!("--{service}-use-ssl-mutual=true");
        flags.push(format!("--{service}-root-cert={}", self.path("authority.pem")));
        flags
    }

    fn authority(&self, name: &str) {
        let subject = format!("/CN={name}");
        let (key, certificate) = (format!("{name}.key"), format!("{name}.pem"));
        self.openssl(&["req", "-x509", "-days", "30", "-subj", &subject, "-keyout", &key, "-out", &certificate]);
    }

    fn leaf(&self, name: &str, authority: &str, days: &str) {
        let subject = format!("/CN={name}");
        let (key, request) = (format!("{name}.key"), format!("{name}.csr"));
        self.openssl(&["req", "-new", "-subj", &subject, "-keyout", &key, "-out", &request]);
        let extensions = format!("{name}.ext");
        let text = "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=critical,CA:FALSE\n";
        fs::write(self.directory.join(&extensions), text).expect("write a file");
        let (by, by_key) = (format!("{authority}.pem"), format!("{authority}.key"));
        let certificate = format!("{name}.pem");
        self.run(&[
            "x509",
            "-req",
            "-days",
            days,
            "-in",
            &request,
            "-CA",
            &by,
            "-CAkey",
            &by_key,
            "-CAcreateserial",
            "-extfile",
            &extensions,
            "-out",
            &certificate,
        ]);
    }

    /// Uses a new elliptic-curve key, which is fast to create.
    fn openssl(&self, words: &[&str]) {
        let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
        self.run(&[words, &key].concat());
    }

    fn run(&self, words: &[&str]) {
        let output = Command::new("openssl").args(words).current_dir(&self.directory).stdin(Stdio::null()).output();
        let output = output.expect("run openssl");
        assert!(output.status.success(), "openssl {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// A TLS connection to `stream`'s other end. `identity`: the certificate of the client.
    pub fn client<S: std::io::Read + std::io::Write>(
        &self,
        stream: S,
        alpn: &[&str],
        identity: Option<&str>,
    ) -> StreamOwned<ClientConnection, S> {
        let name = ServerName::try_from("localhost").expect("a name");
        let session = ClientConnection::new(self.client_config(alpn, identity), name).expect("a session");
        StreamOwned::new(session, stream)
    }

    /// The TLS configuration of a server with `server.pem`.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        let certificate = CertificateDer::from_pem_file(self.path("server.pem")).expect("a certificate");
        let key = PrivateKeyDer::from_pem_file(self.path("server.key")).expect("a key");
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().expect("versions").with_no_client_auth();
        Arc::new(builder.with_single_cert(vec![certificate], key).expect("an identity"))
    }

    pub fn client_config(&self, alpn: &[&str], identity: Option<&str>) -> Arc<ClientConfig> {
        let read = |name: &str| CertificateDer::from_pem_file(self.path(name)).expect("a certificate");
        let mut roots = RootCertStore::empty();
        roots.add(read("authority.pem")).expect("an authority");
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().expect("versions").with_root_certificates(roots);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let key = PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key"))).expect("a key");
                builder.with_client_auth_cert(vec![read(&format!("{name}.pem"))], key).expect("an identity")
            }
        };
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }

    /// The same to a port.
    pub fn connect(
        &self,
        address: std::net::SocketAddr,
        alpn: &[&str],
    ) -> StreamOwned<ClientConnection, std::net::TcpStream> {
        let stream = std::net::TcpStream::connect(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        stream.set_nodelay(true).expect("TCP_NODELAY");
        stream.set_read_timeout(Some(PATIENCE)).expect("a read timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a write timeout");
        self.client(stream, alpn, None)
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}
