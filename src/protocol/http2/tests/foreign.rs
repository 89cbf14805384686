//! The crate `h2` as the peer, in both roles, over an in-memory pipe.

use bytes::Bytes;
use h2::RecvStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::*;

/// What our side does with its events.
trait Application {
    /// Called after every batch of received bytes, and once before the first. False ends the connection.
    fn act(&mut self, connection: &mut Connection, events: Vec<Event>) -> bool;
}

/// Moves bytes until the application or the peer ends; returns the connection as it was left.
async fn drive(mut connection: Connection, io: DuplexStream, application: &mut impl Application) -> Connection {
    let (mut reader, mut writer) = tokio::io::split(io);
    let mut recorder = Recorder::default();
    let mut pending = Vec::new();
    let mut buffer = vec![0; 10_007];
    let mut going = application.act(&mut connection, Vec::new());
    while going || !pending.is_empty() || !connection.output().is_empty() {
        if pending.is_empty() {
            pending = connection.output().to_vec();
            connection.output().clear();
        }
        tokio::select! {
            sent = writer.write(&pending), if !pending.is_empty() => match sent {
                Ok(n) => drop(pending.drain(..n)),
                Err(_) => break,
            },
            received = reader.read(&mut buffer) => {
                let n = received.unwrap_or(0);
                if n == 0 || connection.receive(&buffer[..n], &mut recorder).is_err() {
                    break;
                }
                going = application.act(&mut connection, std::mem::take(&mut recorder.events));
            }
        }
    }
    connection
}

fn within<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, future)
}

fn small_windows() -> Config {
    Config { stream_window: 10_000, connection_window: 65_535, max_frame_size: 16_384, ..Config::default() }
}

/// Answers every request with its own body, its trailers behind it, once it has all of it.
#[derive(Default)]
struct Echo {
    bodies: std::collections::BTreeMap<StreamId, Vec<u8>>,
    resets: Vec<(StreamId, ErrorCode)>,
    paths: Vec<String>,
    /// Requests with this path are answered with a reset.
    refuse: Option<&'static str>,
    /// Shut down at the first request.
    shutdown: bool,
    goodbye: bool,
}

impl Echo {
    fn answer(&mut self, connection: &mut Connection, stream: StreamId, trailers: &[(String, String)]) {
        let body = self.bodies.remove(&stream).unwrap();
        let mut data = Gather::new();
        body.chunks(5000).for_each(|piece| data.push(&pool(), Slice::copy_of(piece)));
        connection.send_headers(stream, HEAD, false).unwrap();
        connection.send_data(stream, &mut data, false).unwrap();
        let sent = trailers.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).chain(TRAILERS);
        connection.send_headers(stream, sent, true).unwrap();
    }
}

impl Application for Echo {
    fn act(&mut self, connection: &mut Connection, events: Vec<Event>) -> bool {
        for event in events {
            match event {
                Event::Headers { stream, fields, end } => {
                    let path = fields.iter().find(|field| field.0 == ":path").unwrap().1.clone();
                    if std::mem::take(&mut self.shutdown) {
                        connection.start_shutdown("");
                        self.goodbye = true;
                    }
                    if self.refuse == Some(&path) {
                        connection.reset(stream, ErrorCode::INTERNAL_ERROR);
                        continue;
                    }
                    self.paths.push(path);
                    self.bodies.insert(stream, Vec::new());
                    if end {
                        self.answer(connection, stream, &[]);
                    }
                }
                Event::Data { stream, bytes, end } => {
                    let Some(body) = self.bodies.get_mut(&stream) else { continue };
                    body.extend(bytes);
                    if end {
                        self.answer(connection, stream, &[]);
                    }
                }
                Event::Trailers { stream, fields } => self.answer(connection, stream, &fields),
                Event::Reset { stream, code, .. } => {
                    self.bodies.remove(&stream);
                    self.resets.push((stream, code));
                }
                other => assert!(matches!(other, Event::Goaway { .. }), "{other:?}"),
            }
        }
        !(self.goodbye && connection.open_streams() == 0)
    }
}

type Sender = h2::client::SendRequest<Bytes>;

/// Runs `client` against our server with the given application.
fn against_our_server<F: Future<Output = ()>>(
    config: Config,
    builder: h2::client::Builder,
    application: &mut impl Application,
    client: impl FnOnce(Sender) -> F,
) -> Connection {
    let (ours, theirs) = tokio::io::duplex(40_000);
    within(async {
        let server = drive(Connection::server(config, pool()), ours, application);
        let client = async {
            let (sender, connection) = builder.handshake::<_, Bytes>(theirs).await.unwrap();
            let pump = tokio::task::spawn_local(async move { drop(connection.await) });
            client(sender).await;
            pump.await.unwrap();
        };
        tokio::join!(server, client).0
    })
}

fn post(path: &str) -> http::Request<()> {
    let uri = format!("http://host{path}");
    http::Request::post(uri).header("te", "trailers").header("x-secret", "s".repeat(300)).body(()).unwrap()
}

async fn read(mut body: RecvStream) -> (Vec<u8>, Option<http::HeaderMap>) {
    let mut all = Vec::new();
    while let Some(bytes) = body.data().await {
        let bytes = bytes.unwrap();
        body.flow_control().release_capacity(bytes.len()).unwrap();
        all.extend_from_slice(&bytes);
    }
    (all, body.trailers().await.unwrap())
}

/// Sends as the peer's windows allow.
async fn send(stream: &mut h2::SendStream<Bytes>, body: &[u8], end: bool) {
    let mut rest = body;
    while !rest.is_empty() {
        stream.reserve_capacity(rest.len());
        let n = std::future::poll_fn(|context| stream.poll_capacity(context)).await.unwrap().unwrap();
        let (now, later) = rest.split_at(n.min(rest.len()));
        stream.send_data(Bytes::copy_from_slice(now), end && later.is_empty()).unwrap();
        rest = later;
    }
}

async fn echo(sender: &Sender, path: &str, body: Vec<u8>) {
    let mut sender = sender.clone().ready().await.unwrap();
    let (response, mut stream) = sender.send_request(post(path), false).unwrap();
    drop(sender);
    let sending = async {
        send(&mut stream, &body, true).await;
    };
    let receiving = async {
        let response = response.await.unwrap();
        assert_eq!(
            (response.status().as_u16(), &response.headers()["content-type"]),
            (200, &"application/grpc".parse().unwrap())
        );
        let (back, trailers) = read(response.into_body()).await;
        assert_eq!(back.len(), body.len());
        assert!(back == body);
        assert_eq!(trailers.unwrap()["grpc-status"], "0");
    };
    tokio::join!(sending, receiving);
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn a_foreign_client_calls_again_and_again() {
    let mut application = Echo::default();
    let server =
        against_our_server(Config::default(), h2::client::Builder::new(), &mut application, |sender| async move {
            for i in 0..200 {
                echo(&sender, "/service/method", pattern(i + 1)).await;
            }
        });
    assert_eq!((application.paths.len(), server.open_streams(), server.unsent_total()), (200, 0, 0));
}

#[test]
fn a_hundred_concurrent_streams() {
    let mut builder = h2::client::Builder::new();
    builder.initial_max_send_streams(100).header_table_size(200);
    let mut application = Echo::default();
    let server = against_our_server(Config::default(), builder, &mut application, |sender| async move {
        let calls = (0..100).map(|i| {
            let sender = sender.clone();
            tokio::task::spawn_local(async move { echo(&sender, &format!("/s/{}", i % 7), pattern(1 + i * 300)).await })
        });
        let calls: Vec<_> = calls.collect();
        drop(sender);
        for call in calls {
            call.await.unwrap();
        }
    });
    assert_eq!((application.paths.len(), server.counters().streams), (100, 100));
}

#[test]
fn large_bodies_through_small_windows() {
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(3000).initial_connection_window_size(70_000).max_frame_size(16_384);
    let server = against_our_server(small_windows(), builder, &mut Echo::default(), |sender| async move {
        tokio::join!(echo(&sender, "/a", pattern(1 << 20)), echo(&sender, "/b", pattern(500_001)));
    });
    assert_eq!((server.open_streams(), server.unsent_total()), (0, 0));
}

#[test]
fn large_bodies_through_large_frames() {
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(1 << 24).initial_connection_window_size(1 << 25).max_frame_size(1 << 22);
    against_our_server(Config::default(), builder, &mut Echo::default(), |sender| async move {
        echo(&sender, "/a", pattern(5 << 20)).await;
    });
}

#[test]
fn a_foreign_client_sends_trailers_and_header_blocks_of_many_frames() {
    let config = Config { max_header_list_size: 200_000, ..Config::default() };
    let mut application = Echo::default();
    against_our_server(config, h2::client::Builder::new(), &mut application, |mut sender| async move {
        let mut request = post("/t");
        for i in 0..20 {
            let name: http::HeaderName = format!("x-long-{i}").parse().unwrap();
            request.headers_mut().insert(name, "v".repeat(2500 + i).parse().unwrap());
        }
        let (response, mut stream) = sender.send_request(request, false).unwrap();
        stream.send_data(Bytes::from_static(b"body"), false).unwrap();
        let mut trailers = http::HeaderMap::new();
        trailers.insert("x-checksum", "9".parse().unwrap());
        stream.send_trailers(trailers).unwrap();
        let (body, trailers) = read(response.await.unwrap().into_body()).await;
        assert_eq!((&body[..], &trailers.unwrap()["x-checksum"]), (&b"body"[..], &"9".parse().unwrap()));
    });
    assert_eq!(application.paths, ["/t"]);
}

#[test]
fn resets_travel_in_both_directions() {
    let mut application = Echo { refuse: Some("/refuse"), ..Echo::default() };
    against_our_server(Config::default(), h2::client::Builder::new(), &mut application, |mut sender| async move {
        let (response, _stream) = sender.send_request(post("/refuse"), false).unwrap();
        assert_eq!(response.await.unwrap_err().reason(), Some(h2::Reason::INTERNAL_ERROR));
        let (response, mut stream) = sender.send_request(post("/cancel"), false).unwrap();
        stream.send_data(Bytes::from_static(b"half"), false).unwrap();
        tokio::task::yield_now().await;
        stream.send_reset(h2::Reason::CANCEL);
        assert!(response.await.is_err());
        echo(&sender, "/good", b"after".to_vec()).await;
    });
    assert_eq!(application.resets, [(StreamId(3), ErrorCode::CANCEL)]);
}

#[test]
fn a_shutdown_lets_a_foreign_client_finish() {
    let mut application = Echo { shutdown: true, ..Echo::default() };
    let server =
        against_our_server(Config::default(), h2::client::Builder::new(), &mut application, |sender| async move {
            echo(&sender, "/last", pattern(300_000)).await;
            assert!(sender.ready().await.is_err(), "no more streams");
        });
    assert_eq!((application.paths.len(), server.open_streams()), (1, 0));
}

/// Calls a foreign server.
struct Caller {
    calls: Vec<Vec<u8>>,
    open: Vec<StreamId>,
    heads: usize,
    answers: std::collections::BTreeMap<StreamId, Vec<u8>>,
    trailers: usize,
    resets: Vec<ErrorCode>,
}

impl Caller {
    fn new(calls: Vec<Vec<u8>>) -> Caller {
        let answers = std::collections::BTreeMap::new();
        Caller { calls, open: vec![], heads: 0, answers, trailers: 0, resets: vec![] }
    }
}

impl Application for Caller {
    fn act(&mut self, connection: &mut Connection, events: Vec<Event>) -> bool {
        for event in events {
            match event {
                Event::Headers { end, .. } => self.heads += usize::from(!end),
                Event::Data { stream, bytes, .. } => self.answers.entry(stream).or_default().extend(bytes),
                Event::Trailers { fields, .. } => {
                    assert_eq!(fields, [("grpc-status".to_string(), "0".to_string())]);
                    self.trailers += 1;
                }
                Event::Reset { code, .. } => self.resets.push(code),
                other => panic!("{other:?}"),
            }
        }
        // Earlier calls may exceed the server's limit, which is not known before.
        while let Some(body) = self.calls.get(self.open.len()).filter(|_| connection.is_established()) {
            let Ok(stream) = connection.open(CALL, false) else { break };
            let mut data = Gather::new();
            data.push(&pool(), Slice::copy_of(body));
            connection.send_data(stream, &mut data, true).unwrap();
            self.open.push(stream);
        }
        self.trailers + self.resets.len() < self.calls.len()
    }
}

/// Runs our client against a foreign server that echoes; it resets what begins with "reset".
fn against_a_foreign_server(config: Config, builder: h2::server::Builder, caller: &mut Caller) -> Connection {
    let (ours, theirs) = tokio::io::duplex(40_000);
    within(async {
        tokio::task::spawn_local(async move {
            let mut connection = builder.handshake::<_, Bytes>(theirs).await.unwrap();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                tokio::task::spawn_local(async move {
                    assert_eq!(request.uri().path(), "/s/m");
                    let (body, _) = read(request.into_body()).await;
                    if body.starts_with(b"reset") {
                        return respond.send_reset(h2::Reason::REFUSED_STREAM);
                    }
                    let response =
                        http::Response::builder().header("content-type", "application/grpc").body(()).unwrap();
                    let mut stream = respond.send_response(response, false).unwrap();
                    send(&mut stream, &body, false).await;
                    let mut trailers = http::HeaderMap::new();
                    trailers.insert("grpc-status", "0".parse().unwrap());
                    stream.send_trailers(trailers).unwrap();
                });
            }
        });
        drive(Connection::client(config, pool()), ours, caller).await
    })
}

fn check_answers(caller: &Caller) {
    for (stream, body) in caller.open.iter().zip(&caller.calls) {
        if !body.starts_with(b"reset") {
            assert!(caller.answers.get(stream) == Some(body), "{stream:?}");
        }
    }
}

#[test]
fn a_foreign_server_answers_many_streams_within_its_limit() {
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(10);
    let mut caller = Caller::new((0..150).map(|i| pattern(1 + i * 200)).collect());
    let client = against_a_foreign_server(Config::default(), builder, &mut caller);
    assert_eq!((caller.heads, caller.trailers, client.open_streams()), (150, 150, 0));
    check_answers(&caller);
}

#[test]
fn a_foreign_server_with_small_windows() {
    let mut builder = h2::server::Builder::new();
    builder.initial_window_size(5000).initial_connection_window_size(66_000).header_table_size(0);
    let mut caller = Caller::new(vec![pattern(1 << 20), pattern(300_000), pattern(1)]);
    let client = against_a_foreign_server(small_windows(), builder, &mut caller);
    assert_eq!((caller.trailers, client.open_streams(), client.unsent_total()), (3, 0, 0));
    check_answers(&caller);
}

#[test]
fn a_foreign_server_resets() {
    let mut caller = Caller::new(vec![b"reset".to_vec(), pattern(10)]);
    against_a_foreign_server(Config::default(), h2::server::Builder::new(), &mut caller);
    assert_eq!((caller.resets.clone(), caller.trailers), (vec![ErrorCode::REFUSED_STREAM], 1));
    check_answers(&caller);
}
