//! A server of OpenAI's interface that answers as it is told, and remembers what it was asked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Asked {
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Value,
    /// Counted from 0, in the order of arrival.
    pub number: usize,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// Pieces of an answer, each after its time.
pub type Answer = Vec<(Duration, String)>;

pub struct StandIn {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl StandIn {
    /// Its threads end with the test's process.
    pub fn start(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> StandIn {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let (asked, answer) = (Arc::default(), Arc::new(answer));
        let own = StandIn { address, asked: Arc::clone(&asked) };
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (asked, answer) = (Arc::clone(&asked), Arc::clone(&answer));
                std::thread::spawn(move || serve(&stream, &asked, &*answer));
            }
        });
        own
    }

    pub fn url(&self) -> String {
        self.address.to_string()
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The requests of the last run, each of which sends `count`: a run whose figures are void is repeated.
    pub fn asked_last(&self, count: usize) -> Vec<Asked> {
        let mut asked = self.asked();
        assert!(!asked.is_empty() && asked.len().is_multiple_of(count), "{} requests in runs of {count}", asked.len());
        asked.split_off(asked.len() - count)
    }
}

/// One request after the other, until the client goes.
fn serve(stream: &TcpStream, asked: &Mutex<Vec<Asked>>, answer: &dyn Fn(&Asked) -> Answer) -> Option<()> {
    // Each piece leaves when it is written.
    stream.set_nodelay(true).ok()?;
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    loop {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|len| *len > 0)?;
            match line.trim_end() {
                "" => break,
                text => lines.push(text.to_owned()),
            }
        }
        let path = lines.first()?.split(' ').nth(1)?.to_owned();
        let field = |line: &String| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
        let headers: Vec<_> = lines.iter().filter_map(field).collect();
        let mut request = Asked { path, headers, body: Value::Null, number: 0 };
        let mut body = vec![0; request.header("Content-Length")?.parse().ok()?];
        reader.read_exact(&mut body).ok()?;
        request.body = serde_json::from_slice(&body).ok()?;
        {
            let mut asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
            request.number = asked.len();
            asked.push(request.clone());
        }
        for (pause, piece) in answer(&request) {
            std::thread::sleep(pause);
            writer.write_all(piece.as_bytes()).ok()?;
        }
    }
}

/// A status with a JSON body.
pub fn whole(status: &str, body: &str) -> Answer {
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}", body.len());
    vec![(Duration::ZERO, format!("{head}\r\n\r\n{body}"))]
}

/// Events as chunks of the transfer coding, each after its time. The head leaves at once.
pub fn stream(events: &[(Duration, String)]) -> Answer {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = |(pause, event): &(Duration, String)| (*pause, format!("{:x}\r\n{event}\r\n", event.len()));
    let mut answer: Answer = vec![(Duration::ZERO, head.to_owned())];
    answer.extend(events.iter().map(chunk));
    answer.push((Duration::ZERO, "0\r\n\r\n".to_owned()));
    answer
}

/// The events of a chat with `tokens` pieces of text: the first comes after `first`, the others after `next` each.
pub fn chat(tokens: usize, first: Duration, next: Duration, usage: Option<(u64, u64)>) -> Vec<(Duration, String)> {
    let event = |data: String| format!("data: {data}\n\n");
    let role = event(r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":null}"#.to_owned());
    let mut events = vec![(Duration::ZERO, role), (Duration::ZERO, ": nothing yet\n\n".to_owned())];
    for at in 0..tokens {
        let text = event(format!(r#"{{"choices":[{{"index":0,"delta":{{"content":" {at}"}}}}]}}"#));
        events.push((if at == 0 { first } else { next }, text));
    }
    let end = event(r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#.to_owned());
    events.push((Duration::ZERO, end));
    if let Some((input, output)) = usage {
        let usage = format!(r#"{{"choices":[],"usage":{{"prompt_tokens":{input},"completion_tokens":{output}}}}}"#);
        events.push((Duration::ZERO, event(usage)));
    }
    events.push((Duration::ZERO, event("[DONE]".to_owned())));
    events
}
