//! A channel of gRPC that returns what breaks instead of failing the test.

use std::future::{Future, poll_fn};

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, Request};
use nereid_wire::inference::ModelInferRequest;
use prost::Message;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};

use super::{Broken, Shared};
use crate::chaos::judge::Refusal;
use nereid_test_support::grpc::{SERVICE, frame};
use nereid_test_support::server::PATIENCE;

pub struct Channel {
    runtime: Runtime,
    sender: h2::client::SendRequest<Bytes>,
}

/// A call in flight.
pub struct Call {
    send: h2::SendStream<Bytes>,
    response: Option<h2::client::ResponseFuture>,
    receive: Option<h2::RecvStream>,
    headers: HeaderMap,
    buffer: BytesMut,
}

impl Channel {
    pub fn connect(shared: &Shared) -> Result<Channel, Broken> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(broken("a runtime"))?;
        let address = shared.order.grpc;
        let sender = runtime.block_on(patiently(async move {
            let stream = TcpStream::connect(address).await.map_err(broken("connect"))?;
            let _ = stream.set_nodelay(true);
            let mut builder = h2::client::Builder::new();
            // A stream that is not read at once holds many small messages, which this crate takes for an attack.
            builder.data_frame_budget(1 << 30);
            let handshake = builder.handshake(stream).await;
            let (sender, connection) = handshake.map_err(broken("the HTTP/2 handshake"))?;
            tokio::spawn(async move {
                // The calls report how the connection ends.
                let _ = connection.await;
            });
            Ok(sender)
        }))?;
        Ok(Channel { runtime, sender })
    }

    pub fn open(&mut self, rpc: &str) -> Result<Call, Broken> {
        let request = Request::post(format!("http://test{SERVICE}{rpc}"));
        let request = request.header("content-type", "application/grpc").header("te", "trailers");
        let request = request.body(()).map_err(broken("a request"))?;
        let sender = &mut self.sender;
        let (response, send) = self.runtime.block_on(patiently(async {
            poll_fn(|context| sender.poll_ready(context)).await.map_err(broken("a stream"))?;
            sender.send_request(request, false).map_err(broken("a stream"))
        }))?;
        let (headers, buffer) = (HeaderMap::new(), BytesMut::new());
        Ok(Call { send, response: Some(response), receive: None, headers, buffer })
    }

    /// Sends messages, and with the last ones the end of the request. A call that the server has ended already shows
    /// that in its reply.
    pub fn send(&mut self, call: &mut Call, messages: &[ModelInferRequest], is_end: bool) {
        let _entered = self.runtime.enter();
        for message in messages {
            let _ = call.send.send_data(frame(message), false);
        }
        if is_end {
            let _ = call.send.send_data(Bytes::new(), true);
        }
    }

    /// The next message; None at their end.
    pub fn next(&mut self, call: &mut Call) -> Result<Option<Bytes>, Broken> {
        self.runtime.block_on(patiently(call.next()))
    }

    /// The status behind the last message: Err is a refusal.
    pub fn status(&mut self, call: &mut Call) -> Result<Result<(), Refusal>, Broken> {
        let trailers = match &mut call.receive {
            Some(receive) => {
                self.runtime.block_on(patiently(async { receive.trailers().await.map_err(broken("trailers")) }))?
            }
            None => None,
        };
        let headers = trailers.as_ref().unwrap_or(&call.headers);
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
        let code = text("grpc-status").parse().map_err(broken("grpc-status"))?;
        Ok(if code == 0 { Ok(()) } else { Err(Refusal { code, text: decoded(&text("grpc-message")) }) })
    }

    /// A unary call: its message, or a refusal.
    pub fn call(&mut self, message: &ModelInferRequest) -> Result<Result<Bytes, Refusal>, Broken> {
        let mut call = self.open("ModelInfer")?;
        self.send(&mut call, std::slice::from_ref(message), true);
        let mut answer = None;
        while let Some(message) = self.next(&mut call)? {
            if answer.replace(message).is_some() {
                return Err(Broken("two messages in a unary call".to_owned()));
            }
        }
        match (self.status(&mut call)?, answer) {
            (Ok(()), Some(answer)) => Ok(Ok(answer)),
            (Ok(()), None) => Err(Broken("OK without a message".to_owned())),
            (Err(refusal), _) => Ok(Err(refusal)),
        }
    }

    /// Resets a call, and lets the connection say so.
    pub fn cancel(&mut self, mut call: Call) {
        call.send.send_reset(h2::Reason::CANCEL);
        self.runtime.block_on(async {
            for _ in 0..16 {
                tokio::task::yield_now().await;
            }
        });
    }
}

impl Call {
    async fn next(&mut self) -> Result<Option<Bytes>, Broken> {
        if let Some(response) = self.response.take() {
            let (head, body) = response.await.map_err(broken("a response"))?.into_parts();
            if head.status != 200 {
                return Err(Broken(format!("HTTP status {}", head.status)));
            }
            (self.headers, self.receive) = (head.headers, Some(body));
        }
        let Some(receive) = self.receive.as_mut() else { return Ok(None) };
        loop {
            if let Some(prefix) = self.buffer.first_chunk::<5>() {
                let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
                if self.buffer.len() >= 5 + length {
                    self.buffer.advance(5);
                    return Ok(Some(self.buffer.split_to(length).freeze()));
                }
            }
            match receive.data().await {
                Some(data) => {
                    let data = data.map_err(broken("a message"))?;
                    let _ = receive.flow_control().release_capacity(data.len());
                    self.buffer.extend_from_slice(&data);
                }
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(Broken("the stream ends within a message".to_owned())),
            }
        }
    }
}

pub fn decode<M: Message + Default>(bytes: Bytes) -> Result<M, Broken> {
    M::decode(bytes).map_err(broken("a message"))
}

fn broken<E: std::fmt::Display>(what: &str) -> impl Fn(E) -> Broken {
    move |error| Broken(format!("{what}: {error}"))
}

async fn patiently<T>(work: impl Future<Output = Result<T, Broken>>) -> Result<T, Broken> {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(result) => result,
        Err(_) => Err(Broken("no answer within the time".to_owned())),
    }
}

/// The text of `grpc-message`, of which the server encodes what is not printable, and `%`.
fn decoded(text: &str) -> String {
    percent_decode(text.as_bytes())
}

fn percent_decode(text: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).filter(|_| *first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
