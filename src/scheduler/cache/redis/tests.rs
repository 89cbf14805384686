//! A simulated Redis: its replies, and its silences. The tests of the whole server use a real one.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use nereid_memory::Slice;
use nereid_model_config::normalize;
use nereid_request::{DataType, OutputTensor, Response, Shape, Text};

/// Reads one command.
fn words(reader: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let mut line = String::new();
    let mut number = |reader: &mut BufReader<TcpStream>| {
        line.clear();
        reader.read_line(&mut line).ok()?;
        line.trim_end().get(1..)?.parse::<usize>().ok()
    };
    let count = number(reader)?;
    let mut words = Vec::new();
    for _ in 0..count {
        let mut word = vec![0; number(reader)? + 2];
        reader.read_exact(&mut word).ok()?;
        word.truncate(word.len() - 2);
        words.push(String::from_utf8_lossy(&word).into_owned());
    }
    Some(words)
}

/// A server that answers each command with the next of `answers`; an empty one closes the connection. After the last
/// one it does not answer.
fn server(answers: &'static [&'static [u8]]) -> (u16, Receiver<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, commands): (Sender<Vec<String>>, _) = channel();
    std::thread::spawn(move || {
        let mut answers = answers.iter();
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            while let Some(words) = words(&mut reader) {
                if sender.send(words).is_err() {
                    return;
                }
                match answers.next().copied() {
                    Some([]) => break,
                    Some(answer) => stream.write_all(answer).unwrap(),
                    None => {
                        open.push(stream);
                        break;
                    }
                }
            }
        }
    });
    (port, commands)
}

fn open(port: u16, more: &[(&str, &str)]) -> Result<Redis, String> {
    let port = port.to_string();
    let mut settings: BTreeMap<&str, &str> = BTreeMap::from([("host", "127.0.0.1"), ("port", &port)]);
    settings.extend(more.iter().copied());
    let variable = |name: &str| (name == "TRITONCACHE_REDIS_PASSWORD").then(|| "from outside".to_owned());
    let variable = |name: &str| variable(name).filter(|_| more.iter().any(|(key, _)| *key == "user"));
    Redis::open(&settings, variable).map_err(|status| status.to_string())
}

fn spec() -> ModelSpec {
    let text = "name: \"m\" backend: \"identity\" input { name: \"I\" data_type: TYPE_UINT8 dims: [ -1 ] }
        output { name: \"O\" data_type: TYPE_UINT8 dims: [ -1 ] }";
    let document = nereid_model_config::parse("m/config.pbtxt", text.as_bytes()).unwrap();
    let mut config = nereid_model_config::from_dynamic(&document.message).unwrap();
    normalize::fill_defaults(&mut config);
    ModelSpec::new(config).unwrap()
}

const KEY: Key = Key { hash: 5, seal: 6 };

fn entry() -> Arc<Entry> {
    let mut response = Response::default();
    response.outputs.push(OutputTensor {
        name: Text::from("O"),
        datatype: DataType::Uint8,
        shape: Shape::from_slice(&[3]),
        data: [Slice::copy_of(b"abc")].into_iter().collect(),
        index: 0,
        on_device: None,
    });
    Entry::of(&response, KEY)
}

#[test]
fn credentials_are_sent_first() {
    let (port, commands) = server(&[b"+OK\r\n", b"+OK\r\n", b"+PONG\r\n", b"$-1\r\n", b"+OK\r\n", b"$-1\r\n"]);
    let redis = open(port, &[("user", "me"), ("db", "3"), ("keep_alive", "true"), ("pool_size", "2")]).unwrap();
    assert!(redis.lookup(KEY, &spec()).is_none());
    assert_eq!(redis.insert(KEY, entry(), false), Inserted::Kept);
    assert_eq!(redis.insert(KEY, entry(), false), Inserted::Present);
    let commands: Vec<Vec<String>> = commands.try_iter().collect();
    assert_eq!(commands[0], ["AUTH", "me", "from outside"]);
    assert_eq!(commands[1], ["SELECT", "3"]);
    assert_eq!(commands[2], ["PING"]);
    assert_eq!(commands[3], ["GET", "nereid:5"]);
    assert_eq!((&commands[4][0], &commands[4][1], &commands[4][3]), (&"SET".into(), &"nereid:5".into(), &"NX".into()));
    assert_eq!(redis.thread_count(), 2);
}

#[test]
fn old_servers_know_no_users() {
    let (port, commands) = server(&[b"+OK\r\n", b"+PONG\r\n"]);
    open(port, &[("password", "secret")]).unwrap();
    assert_eq!(commands.recv().unwrap(), ["AUTH", "secret"]);
    let (port, _heard) = server(&[b"-WRONGPASS no\r\n"]);
    let error = open(port, &[("password", "wrong")]).err();
    assert_eq!(error.unwrap(), "Internal: Failed to initialize RedisCache: WRONGPASS no");
}

#[test]
fn settings_are_read_or_refused() {
    let refused = |more: &[(&str, &str)], text: &str| {
        let error = open(1, more).err().unwrap();
        assert_eq!(error, format!("Invalid argument: Failed to initialize RedisCache: {text}"), "{more:?}");
    };
    refused(&[("db", "x")], "'db' must be a number from 0 to 2147483647, got 'x'");
    refused(&[("pool_size", "65")], "'pool_size' must be a number from 0 to 64, got '65'");
    refused(&[("socket_timeout", "-1")], "'socket_timeout' must be a number from 0 to 60000, got '-1'");
    refused(&[("port", "65536")], "'port' must be a number from 0 to 65535, got '65536'");
    refused(&[("tls_enabled", "maybe")], "'tls_enabled' must be true or false, got 'maybe'");
    refused(
        &[("cert", "/nowhere/cert.pem"), ("cacert_dir", "/proc/self/ns")],
        "there is no certificate authority to trust",
    );
    let error = open(1, &[("cacert", "/nowhere/ca.pem")]).err().unwrap();
    assert!(error.contains("certificates of /nowhere/ca.pem: "), "{error}");
    // No process listens there.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = open(free, &[]).err().unwrap();
    assert!(error.starts_with("Internal: Failed to initialize RedisCache: "), "{error}");
}

/// Another program's value, a refused command, bytes of another protocol: none of them is an answer.
#[test]
fn what_cannot_be_used_is_a_miss() {
    let (port, _heard) = server(&[
        b"+PONG\r\n",
        b"$3\r\nabc\r\n",
        b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
        b"$99999999999\r\n",
        b":1\r\n",
    ]);
    let redis = open(port, &[]).unwrap();
    for round in 0..4 {
        assert!(redis.lookup(KEY, &spec()).is_none(), "{round}");
        assert!(!redis.is_unavailable(), "{round}: it answers, after all");
    }
}

#[test]
fn a_connection_that_was_closed_meanwhile_is_opened_again() {
    let (port, commands) = server(&[b"+PONG\r\n", b"", b"$-1\r\n"]);
    let redis = open(port, &[]).unwrap();
    assert!(redis.lookup(KEY, &spec()).is_none());
    assert!(!redis.is_unavailable());
    assert_eq!(commands.try_iter().count(), 3, "tried twice");
}

#[test]
fn silence_is_an_outage_of_bounded_length() {
    let (port, commands) = server(&[b"+PONG\r\n"]);
    let redis = open(port, &[("socket_timeout", "50")]).unwrap();
    assert!(redis.lookup(KEY, &spec()).is_none());
    assert!(redis.is_unavailable());
    let sent = commands.try_iter().count();
    assert!(redis.lookup(KEY, &spec()).is_none(), "it is left alone now");
    assert_eq!(redis.insert(KEY, entry(), false), Inserted::Refused);
    assert_eq!(commands.try_iter().count(), 0, "after {sent}");
}

#[test]
fn no_protocol_is_an_outage() {
    let (port, _heard) = server(&[b"+PONG\r\n", b"HTTP/1.1 400 Bad Request\r\n"]);
    let redis = open(port, &[]).unwrap();
    assert!(redis.lookup(KEY, &spec()).is_none());
    assert!(redis.is_unavailable());
}
