//! TLS on both ports (contract/grpc.md section 7 and our own flags for HTTP): the official clients, curl, openssl, and
//! peers without TLS or a valid certificate.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nereid_wire::inference::{ServerLiveRequest, ServerLiveResponse};
use prost::Message;

use nereid_test_support::certificates::Certificates;
use nereid_test_support::grpc::SERVICE;
use nereid_test_support::http::Peer;
use nereid_test_support::http2::{PREFACE, RawPeer, kind, settings};
use nereid_test_support::python::Python;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server, run_to_end};
use nereid_test_support::skip::skip;
use nereid_test_support::variant::{self, Variant, each, usual};

fn repository() -> Repository {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    repository
}

/// With TLS on gRPC only, so that readiness is asked over plain HTTP.
fn start_grpc(variant: Variant, repository: &Repository, flags: &[String]) -> Server {
    let mut words: Vec<&str> = flags.iter().map(String::as_str).collect();
    words.push("--log-verbose=1");
    Server::start(variant, repository.path(), &words)
}

/// With TLS on HTTP.
fn start_http(variant: Variant, repository: &Repository, flags: &[String]) -> Server {
    let mut words: Vec<&str> = flags.iter().map(String::as_str).collect();
    words.push("--log-verbose=1");
    Server::start_saying(variant, repository.path(), &words, "Started HTTPService at ")
}

fn curl(words: &[&str]) -> Option<std::process::Output> {
    let output = Command::new("curl").args(["-sS", "--max-time", "60"]).args(words).stdin(Stdio::null()).output();
    match output {
        Ok(output) => Some(output),
        Err(error) => {
            skip(&format!("curl: {error}"));
            None
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_official_grpc_client_over_tls() {
    let (Some(python), Some(files)) = (Python::get(), Certificates::make()) else { return };
    each(&variant::ALL, |variant| {
        let repository = repository();
        let server = start_grpc(variant, &repository, &files.server_flags("grpc"));
        let url = format!("localhost:{}", server.grpc.port());
        python.run("secure.py", &["grpc", "--url", &url, "--roots", &files.path("authority.pem")]);
        python.run("secure.py", &["grpc-refused", "--url", &url, "--roots", &files.path("other.pem")]);
        python.run("secure.py", &["grpc-refused", "--url", &url, "--plain"]);
        server.stop();
    });
}

#[test]
fn grpc_clients_without_a_certificate_are_turned_away() {
    let (Some(python), Some(files)) = (Python::get(), Certificates::make()) else { return };
    let repository = repository();
    // The flag implies TLS.
    let server = start_grpc(usual(), &repository, &files.mutual_flags("grpc"));
    let url = format!("localhost:{}", server.grpc.port());
    let roots = files.path("authority.pem");
    let words = |what, name: &str| {
        let mut words = vec![what, "--url".to_owned(), url.clone(), "--roots".to_owned(), roots.clone()];
        if !name.is_empty() {
            let (certificate, key) = (files.path(&format!("{name}.pem")), files.path(&format!("{name}.key")));
            words.extend(["--certificate".to_owned(), certificate, "--key".to_owned(), key]);
        }
        words
    };
    for (what, name) in [("grpc", "client"), ("grpc-refused", ""), ("grpc-refused", "stranger"), ("grpc", "client")] {
        let words = words(what.to_owned(), name);
        python.run("secure.py", &words.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let log = server.stop();
    assert!(log.contains("TLS: peer sent no certificates"), "{log}");
    assert!(log.contains("TLS: invalid peer certificate: UnknownIssuer"), "{log}");
}

#[test]
fn the_official_http_client_over_tls() {
    let (Some(python), Some(files)) = (Python::get(), Certificates::make()) else { return };
    each(&variant::ALL, |variant| {
        let repository = repository();
        let server = start_http(variant, &repository, &files.mutual_flags("http"));
        let url = format!("localhost:{}", server.http.port());
        let (roots, certificate, key) =
            (files.path("authority.pem"), files.path("client.pem"), files.path("client.key"));
        let identity = ["--certificate", &certificate, "--key", &key];
        python.run("secure.py", &[&["http", "--url", &url, "--roots", &roots], &identity[..]].concat());
        server.stop();
    });
}

/// The flags of both ports with that certificate and key.
fn identity_flags(files: &Certificates, service: &str, certificate: &str, key: &str) -> Vec<String> {
    vec![
        format!("--{service}-use-ssl=true"),
        format!("--{service}-server-cert={}", files.path(certificate)),
        format!("--{service}-server-key={}", files.path(key)),
    ]
}

/// What the usual commands of openssl make serves, also those who check it.
#[test]
fn a_certificate_of_version_1_serves() {
    let Some(files) = Certificates::make() else { return };
    files.version_1("first");
    let repository = repository();
    let flags = identity_flags(&files, "http", "first.pem", "first.key");
    let server = start_http(usual(), &repository, &flags);
    let ready = format!("https://localhost:{}/v2/health/ready", server.http.port());
    let roots = files.path("authority.pem");
    for version in ["1.2", "1.3"] {
        let (least, most) = (format!("--tlsv{version}"), version);
        let words = [&least, "--tls-max", most, "--cacert", &roots, "-w", "%{http_code}", &ready];
        let Some(output) = curl(&words) else { return };
        assert_eq!(text(&output.stdout), "200", "TLS {version}: {}", text(&output.stderr));
    }
    let other = files.path("other.pem");
    assert!(!curl(&["--cacert", &other, &ready]).expect("curl").status.success(), "an authority that did not sign it");
    server.stop();

    if let Some(python) = Python::get() {
        let server = start_grpc(usual(), &repository, &identity_flags(&files, "grpc", "first.pem", "first.key"));
        let url = format!("localhost:{}", server.grpc.port());
        python.run("secure.py", &["grpc", "--url", &url, "--roots", &roots]);
        server.stop();
    }
}

/// From a client no such certificate is taken, and the log says what to do about it.
#[test]
fn a_client_with_a_certificate_of_version_1_is_turned_away() {
    let Some(files) = Certificates::make() else { return };
    files.version_1("first");
    let repository = repository();
    let server = start_http(usual(), &repository, &files.mutual_flags("http"));
    let ready = format!("https://localhost:{}/v2/health/ready", server.http.port());
    let (roots, certificate, key) = (files.path("authority.pem"), files.path("first.pem"), files.path("first.key"));
    let words = ["--cacert", &roots, "--cert", &certificate, "--key", &key, "-w", "%{http_code}", &ready];
    let Some(output) = curl(&words) else { return };
    assert_eq!((output.status.success(), text(&output.stdout).as_str()), (false, "000"), "{}", text(&output.stderr));
    let log = server.stop();
    let reason = "a client's certificate is refused: it is of X.509 version 1; sign it with extensions";
    assert!(log.contains(reason), "{log}");
}

#[test]
fn curl_over_tls() {
    let Some(files) = Certificates::make() else { return };
    let repository = repository();
    let roots = files.path("authority.pem");
    let server = start_http(usual(), &repository, &files.server_flags("http"));
    let ready = format!("https://localhost:{}/v2/health/ready", server.http.port());
    let model = format!("https://localhost:{}/v2/models/plain", server.http.port());
    let Some(output) =
        curl(&["--cacert", &roots, "-w", "%{http_code} %{num_connects} %{http_version} ", &ready, &model])
    else {
        return;
    };
    let said = text(&output.stdout);
    assert!(said.starts_with("200 1 1.1 {\"name\":\"plain\""), "{said} {}", text(&output.stderr));
    assert!(said.ends_with("}200 0 1.1 "), "one connection for both: {said}");
    for version in ["--tlsv1.2", "--tlsv1.3"] {
        let versions = [version, "--tls-max", &version[6..]];
        let output =
            curl(&[&versions[..], &["--cacert", &roots, "-w", "%{http_code}", &ready]].concat()).expect("curl");
        assert_eq!(text(&output.stdout), "200", "{version}: {}", text(&output.stderr));
    }
    let strangers: [&[&str]; 2] = [&["--cacert", &files.path("other.pem"), &ready], &[&ready.replace("https", "http")]];
    for words in strangers {
        assert!(!curl(words).expect("curl").status.success(), "{words:?}");
    }
    server.stop();

    let server = start_http(usual(), &repository, &files.mutual_flags("http"));
    let ready = format!("https://localhost:{}/v2/health/ready", server.http.port());
    for (name, passes) in [("client", true), ("stranger", false), ("", false)] {
        let mut words = vec!["--cacert".to_owned(), roots.clone(), "-w".to_owned(), "%{http_code}".to_owned()];
        if !name.is_empty() {
            let (certificate, key) = (files.path(&format!("{name}.pem")), files.path(&format!("{name}.key")));
            words.extend(["--cert".to_owned(), certificate, "--key".to_owned(), key]);
        }
        words.push(ready.clone());
        let output = curl(&words.iter().map(String::as_str).collect::<Vec<_>>()).expect("curl");
        assert_eq!(output.status.success(), passes, "{name:?}: {}", text(&output.stderr));
        assert_eq!(text(&output.stdout), if passes { "200" } else { "000" }, "{name:?}");
    }
    server.stop();
}

/// What `openssl s_client` says about a connection.
fn s_client(server: &Server, files: &Certificates, words: &[&str]) -> String {
    let (address, roots) = (format!("localhost:{}", server.grpc.port()), files.path("authority.pem"));
    let fixed = ["s_client", "-connect", &address, "-CAfile", &roots, "-verify_return_error"];
    let output = Command::new("openssl").args(fixed).args(words).stdin(Stdio::null()).output().expect("run openssl");
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn versions_protocols_and_sessions_as_openssl_sees_them() {
    let Some(files) = Certificates::make() else { return };
    let repository = repository();
    let server = start_grpc(usual(), &repository, &files.server_flags("grpc"));
    for (words, expected) in [
        (&["-alpn", "h2"][..], "ALPN protocol: h2"),
        (&["-alpn", "http/1.1,h2"], "ALPN protocol: h2"),
        (&[], "No ALPN negotiated"),
        (&["-alpn", "http/1.1"], "no application protocol"),
        (&["-tls1_2"], "TLSv1.2, Cipher is ECDHE-"),
        (&["-tls1_3"], "TLSv1.3, Cipher is TLS_AES_"),
        (&["-tls1_1"], "New, (NONE), Cipher is (NONE)"),
        (&["-tls1_2", "-reconnect"], "Reused, TLSv1.2"),
        (&["-tls1_2"], "Secure Renegotiation IS supported"),
    ] {
        let said = s_client(&server, &files, words);
        assert!(said.contains(expected), "{words:?}: expected {expected:?} in {said}");
    }
    server.stop();
}

#[test]
fn a_start_without_a_usable_identity_fails_and_says_why() {
    let Some(files) = Certificates::make() else { return };
    let repository = repository();
    let (certificate, key) = (files.path("server.pem"), files.path("server.key"));
    let (other_key, roots) = (files.path("client.key"), files.path("authority.pem"));
    let first = files.version_1("first").path("first.pem");
    let port = |service: &str| format!("--{service}-port={}", nereid_test_support::server::free_port());
    for (service, name) in [("grpc", "GRPC"), ("http", "HTTP")] {
        let flag = |what: &str, value: &str| format!("--{service}-{what}={value}");
        let on = flag("use-ssl", "true");
        let mutual = flag("use-ssl-mutual", "true");
        let (with, by) = (flag("server-cert", &certificate), flag("server-key", &key));
        for (flags, expected) in [
            (vec![on.clone()], format!("TLS needs a value for --{service}-server-cert")),
            (vec![on.clone(), with.clone()], format!("TLS needs a value for --{service}-server-key")),
            (
                vec![on.clone(), flag("server-cert", "/none.pem"), by.clone()],
                format!("cannot read --{service}-server-cert '/none.pem': No such file or directory (os error 2)"),
            ),
            (
                vec![on.clone(), with.clone(), flag("server-key", &other_key)],
                format!("--{service}-server-cert and --{service}-server-key cannot be used: "),
            ),
            (
                vec![on.clone(), flag("server-cert", &first), by.clone()],
                format!("--{service}-server-cert and --{service}-server-key cannot be used: "),
            ),
            (vec![mutual.clone(), with.clone(), by.clone()], format!("TLS needs a value for --{service}-root-cert")),
            (
                vec![mutual, with, by, flag("root-cert", &key)],
                format!("cannot read --{service}-root-cert '{key}': it holds no certificate in PEM form"),
            ),
        ] {
            let mut words = vec![format!("--model-repository={}", repository.path().display())];
            words.extend([port("http"), port("grpc"), port("metrics")]);
            words.extend(flags.clone());
            let (status, out, err) = run_to_end(&words.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(status.code(), Some(1), "{flags:?}: {out}{err}");
            let line = format!("failed to start {name} service: Invalid argument - {expected}");
            assert!(err.contains(&line), "{flags:?}: expected {line:?} in {err}");
        }
    }
    // Without TLS nobody looks at them, but whoever gave them is told.
    let flags = [format!("--grpc-server-key={key}"), format!("--grpc-root-cert={roots}")];
    let server = Server::start(usual(), repository.path(), &[&flags[0], &flags[1]]);
    let log = server.stop();
    for what in ["server-key", "root-cert"] {
        let line = format!("--grpc-{what} has no effect without --grpc-use-ssl: the port speaks plain text");
        assert_eq!(log.matches(&line).count(), 1, "{log}");
    }
}

/// A peer that trickles is given up behind TLS too, whose records are many times what they carry.
#[test]
fn peers_that_trickle_over_tls_are_given_up() {
    let Some(files) = Certificates::make() else { return };
    let repository = repository();
    let mut flags = files.server_flags("grpc");
    flags.extend(["--slow-peer-secs=10", "--slow-peer-min-rate=4000"].map(str::to_owned));
    let server = start_grpc(usual(), &repository, &flags);
    let mut peer = files.connect(server.grpc, &["h2"]);
    // The handshake may take longer than a read below waits, though not longer than the server does.
    peer.conn.complete_io(&mut peer.sock).expect("a handshake");
    peer.sock.set_read_timeout(Some(Duration::from_millis(20))).expect("a read timeout");
    // The head of a HEADERS frame whose 16,000 bytes come one by one.
    let front = [PREFACE, &settings(&[]), &[0, 0x3e, 0x80, kind::HEADERS, 4, 0, 0, 0, 1]].concat();
    peer.write_all(&front).expect("send");
    let started = Instant::now();
    let mut portion = [0; 4096];
    loop {
        assert!(started.elapsed() < PATIENCE, "a peer that trickles stays for ever");
        let is_gone = peer.write_all(b"x").and_then(|()| peer.flush()).is_err();
        match peer.read(&mut portion) {
            Ok(0) => break,
            Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => break,
            _ if is_gone => break,
            _ => {}
        }
    }
    assert_live(&files, &server);
    server.stop();
}

/// Long beginnings of handshakes that never end: beyond the budget their connections do.
#[test]
fn handshakes_that_stop_half_way_are_held_to_the_budget() {
    let Some(files) = Certificates::make() else { return };
    let repository = repository();
    let mut flags = files.server_flags("grpc");
    flags.extend(["--request-memory-byte-size=10000000", "--request-memory-client-share=1"].map(str::to_owned));
    let server = start_grpc(usual(), &repository, &flags);
    // A ClientHello of 60,000 bytes, of which two records come.
    let mut front = vec![0x16, 3, 1, 0x40, 0, 1, 0, 0xea, 0x60];
    front.resize(5 + 0x4000, 0);
    front.extend([0x16, 3, 1, 0x40, 0]);
    front.resize(2 * (5 + 0x4000), 0);
    let peers: Vec<TcpStream> = (0..60)
        .map(|_| {
            let mut peer = TcpStream::connect(server.grpc).expect("a connection");
            // The server may have closed it by the end.
            let _ = peer.write_all(&front);
            peer
        })
        .collect();
    server.wait_for_log("no memory for its TLS handshake");
    drop(peers);
    assert_live(&files, &server);
    server.stop();
}

/// A call over a connection that speaks TLS.
fn assert_live(files: &Certificates, server: &Server) {
    let mut peer = RawPeer::over(files.connect(server.grpc, &["h2"]));
    peer.shake_hands(&[]);
    peer.open(1, &format!("{SERVICE}ServerLive")).message(1, &ServerLiveRequest {}.encode_to_vec());
    let (data, reset) = peer.finish(1);
    assert_eq!(reset, None);
    let answer = ServerLiveResponse::decode(&data[5..]).expect("an answer");
    assert!(answer.live);
}

#[test]
fn who_speaks_no_tls_ends_only_its_own_connection() {
    let Some(files) = Certificates::make() else { return };
    each(&variant::ALL, |variant| {
        let repository = repository();
        let server = start_grpc(variant, &repository, &files.server_flags("grpc"));
        let mut polite = RawPeer::over(files.connect(server.grpc, &["h2"]));
        polite.shake_hands(&[]);
        let garbage: [(&[u8], bool); 5] = [
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", true),
            (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", true),
            (&[0; 1000], true),
            (&[0x16, 3, 1, 0, 5, 1, 0, 0, 1, 0], false),
            (&[0x16, 3, 1, 0xff, 0xff, 1], false),
        ];
        for (bytes, is_alerted) in garbage {
            let mut stream = TcpStream::connect(server.grpc).expect("a connection");
            stream.set_read_timeout(Some(PATIENCE)).expect("a read timeout");
            stream.write_all(bytes).expect("send");
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap_or_else(|error| panic!("{bytes:02x?}: {error}"));
            let expected = answer.is_empty() && !is_alerted || answer.first() == Some(&0x15);
            assert!(expected, "{bytes:02x?} is answered by an alert, got {answer:02x?}");
        }
        polite.open(1, &format!("{SERVICE}ServerLive")).message(1, &ServerLiveRequest {}.encode_to_vec());
        assert_eq!(polite.finish(1).1, None, "others are served meanwhile");
        assert_live(&files, &server);
        let log = server.stop();
        assert!(log.contains("a connection is closed: TLS: "), "told at the verbose level: {log}");
        // TLS where there is none.
        let plain = Server::start(variant, repository.path(), &["--log-verbose=1"]);
        let mut stream = files.connect(plain.http, &[]);
        assert!(stream.write_all(b"GET / HTTP/1.1\r\n\r\n").is_err(), "the port speaks plain text");
        assert_eq!(Peer::connect(plain.http).get("/v2/health/live").status, 200);
        plain.stop();
    });
}

#[test]
fn a_crowd_shakes_hands_at_once() {
    let Some(files) = Certificates::make() else { return };
    each(&variant::ALL, |variant| {
        let repository = repository();
        let server = start_grpc(variant, &repository, &files.server_flags("grpc"));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut peers: Vec<_> =
                        (0..12).map(|_| RawPeer::over(files.connect(server.grpc, &["h2"]))).collect();
                    for peer in &mut peers {
                        peer.shake_hands(&[]);
                    }
                    for (number, peer) in peers.iter_mut().enumerate() {
                        let stream = 2 * number as u32 + 1;
                        let request = ServerLiveRequest {}.encode_to_vec();
                        peer.open(stream, &format!("{SERVICE}ServerLive")).message(stream, &request);
                        assert_eq!(peer.finish(stream).1, None);
                    }
                });
            }
        });
        server.stop();
    });
}

#[test]
fn a_stop_says_goodbye_to_idle_clients() {
    let Some(files) = Certificates::make() else { return };
    let repository = repository();
    let mut flags = files.server_flags("http");
    flags.extend(files.server_flags("grpc"));
    let server = start_http(usual(), &repository, &flags);
    let mut http = files.connect(server.http, &["http/1.1"]);
    http.write_all(b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n").expect("send");
    let mut answer = [0; 12];
    http.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 200");
    let mut grpc = RawPeer::over(files.connect(server.grpc, &["h2"]));
    grpc.shake_hands(&[]);
    // Half a handshake holds nobody up.
    let half = TcpStream::connect(server.grpc).expect("a connection");
    server.terminate();
    assert_eq!(grpc.expect(kind::GOAWAY).number(4), 0);
    let mut rest = Vec::new();
    // An end without close_notify would be an error here.
    http.read_to_end(&mut rest).expect("a clean end");
    drop((http, grpc, half));
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log}");
}

/// Both ports ask for a certificate of that authority whose time is not over, and answer nothing without one.
#[test]
fn only_clients_with_a_valid_certificate_are_answered() {
    let Some(files) = Certificates::make() else { return };
    files.expired();
    each(&variant::ALL, |variant| {
        let repository = repository();
        let flags = [files.mutual_flags("http"), files.mutual_flags("grpc")].concat();
        let server = start_http(variant, &repository, &flags);
        let ports: [(_, &[&str], &[u8]); 2] = [
            (server.http, &[], b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"),
            (server.grpc, &["h2"], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"),
        ];
        for (address, alpn, greeting) in ports {
            for (identity, is_valid) in
                [(Some("client"), true), (None, false), (Some("stranger"), false), (Some("expired"), false)]
            {
                let stream = TcpStream::connect(address).expect("connect to the server");
                stream.set_read_timeout(Some(PATIENCE)).expect("a read timeout");
                let mut peer = files.client(stream, alpn, identity);
                let mut first = [0; 9];
                let answered = peer.write_all(greeting).is_ok() && peer.read_exact(&mut first).is_ok();
                assert_eq!(answered, is_valid, "{address} {identity:?}");
            }
        }
        let log = server.stop();
        for reason in ["peer sent no certificates", "UnknownIssuer", "Expired"] {
            assert_eq!(log.matches(reason).count(), 2, "{reason}: {log}");
        }
    });
}
