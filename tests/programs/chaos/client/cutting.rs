//! Connections that the client cuts: within a request, right behind it, or within its answer.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use super::Shared;
use super::vectors::Vector;
use nereid_test_support::random::Random;

const MODELS: [&str; 5] = ["plain", "batched", "echo", "chain", "repeat"];
/// So that what is cut does not crowd out what is checked.
const BETWEEN: Duration = Duration::from_millis(2);

pub fn run(shared: &Shared, mut random: Random) {
    while !shared.is_over() {
        let is_grpc = random.below(3) == 0;
        let address = if is_grpc { shared.order.grpc } else { shared.order.http };
        let stream = TcpStream::connect(address);
        let mut stream = match stream {
            Ok(stream) => stream,
            Err(error) => return shared.is_wrong(format!("no connection: {error}")),
        };
        if is_grpc {
            cut_grpc(&mut stream, &mut random);
        } else {
            cut_http(shared, &mut stream, &mut random);
        }
        shared.injects("connections cut");
        std::thread::sleep(BETWEEN);
    }
}

/// The preface and settings, and then something or nothing.
fn cut_grpc(stream: &mut TcpStream, random: &mut Random) {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    bytes.extend((0..random.below(40)).map(|_| random.byte()));
    bytes.truncate(1 + random.below(bytes.len()));
    let _ = stream.write_all(&bytes);
}

fn cut_http(shared: &Shared, stream: &mut TcpStream, random: &mut Random) {
    let model = MODELS[random.below(MODELS.len() - 1)];
    let vector = Vector::new(shared, model, random);
    let bytes = vector.over_http(random.below(2) == 0, None);
    let is_whole = random.below(3) == 0;
    let part = if is_whole { bytes.len() } else { random.below(bytes.len()) };
    if is_whole {
        shared.asks(model);
    }
    let _ = stream.write_all(&bytes[..part]);
    if is_whole && random.below(2) == 0 {
        let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
        let _ = stream.read(&mut [0; 10]);
    }
    if random.below(2) == 0 {
        // An orderly end of one direction first.
        let _ = stream.shutdown(Shutdown::Write);
    }
    if is_whole {
        shared.leaves(model);
    }
}
