//! A client with the server's end on the other side, in one thread: nothing here waits.

use std::io::IoSlice;
use std::os::fd::AsFd;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::*;
use crate::layout::RING_BYTES_MIN;
use crate::{ServerEnd, Sizes, encode, from_server};

/// A client, the server's end, and the server's socket.
fn pair() -> (Client, ServerEnd, UnixStream) {
    let (mine, other) = UnixStream::pair().unwrap();
    let sizes = Sizes { ring_bytes: RING_BYTES_MIN, arena_bytes: 4096 };
    let (end, object) = ServerEnd::create(sizes, b"nereid-ipc/test", Box::new(())).unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let objects = [object.as_fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&objects)));
    sendmsg(other.as_fd(), &[IoSlice::new(&end.hello().0)], &mut ancillary, SendFlags::empty()).unwrap();
    (Client::over(mine).unwrap(), end, other)
}

/// Bytes of the messages of a call.
fn put(end: &mut ServerEnd, call: u32, ends: bool, bytes: &[u8]) {
    assert!(end.push_data(call, ends, bytes.len(), |payload| payload.write(bytes)).unwrap());
}

/// What has come already.
fn next(client: &mut Client) -> Option<ClientEvent> {
    client.next(Some(Duration::ZERO)).unwrap()
}

fn message(call: u32, message: &[u8]) -> Option<ClientEvent> {
    Some(ClientEvent::Message { call, message: message.to_vec() })
}

#[test]
fn a_message_that_its_prefix_cannot_state_is_refused() {
    assert_eq!(prefix(0x0102_0304).unwrap(), [0, 1, 2, 3, 4]);
    assert_eq!(prefix(u32::MAX as usize).unwrap(), [0, 255, 255, 255, 255]);
    let refused = prefix(u32::MAX as usize + 1).unwrap_err().to_string();
    assert_eq!(refused, "a message of 4294967296 bytes is too long: its length has 32 bits");
}

/// Neither of what was read before, nor of what was under way: the middle of a tensor is no message.
#[test]
fn nothing_of_a_cancelled_call_is_kept_or_returned() {
    let (mut client, mut end, _socket) = pair();
    let route = client.route("/a/b", &[]).unwrap();
    let [cut, queued, other] = [(); 3].map(|()| client.begin(route, b"x", true, None).unwrap());
    put(&mut end, cut, false, b"\0\0\0\0\x60ab");
    put(&mut end, other, false, b"\0\0\0\0\x02cd\0\0\0\0\x02e");
    put(&mut end, queued, true, b"\0\0\0\0\x01q");
    assert_eq!(next(&mut client), message(other, b"cd"));
    client.cancel(cut).unwrap();
    client.cancel(queued).unwrap();
    put(&mut end, cut, false, &[0; 40]);
    put(&mut end, cut, false, &[0; 54]);
    assert_eq!(next(&mut client), None);
    let status = encode::status(cut, 1, "late", [].into_iter(), 100);
    assert!(end.push(from_server::STATUS, &status).unwrap());
    put(&mut end, cut, true, b"");
    put(&mut end, other, true, b"f");
    assert_eq!(next(&mut client), message(other, b"ef"));
    assert_eq!(next(&mut client), Some(ClientEvent::End { call: other, status: ClientStatus::ok() }));
    assert_eq!((next(&mut client), client.open.len(), client.events.len()), (None, 0, 0));
}

/// The server closes the connection of a client that reads too slowly: zeros are no frames.
#[test]
fn rings_that_the_server_has_emptied_are_the_end_and_no_frames() {
    let (mut client, mut end, _socket) = pair();
    let route = client.route("/a/b", &[]).unwrap();
    let call = client.begin(route, b"x", false, None).unwrap();
    put(&mut end, call, false, b"\0\0\0\0\x01a\0\0\0\0\x01b");
    assert_eq!(next(&mut client), message(call, b"a"));
    assert!(client.write_arena(0, b"output") && client.read_arena(0, 6).is_some());
    put(&mut end, call, false, b"\0\0\0\0\x01c");
    drop(end);
    assert_eq!(next(&mut client), message(call, b"b"), "it was read before");
    for _ in 0..2 {
        let end = client.next(None).unwrap_err().to_string();
        let text = "the server has closed the connection: it has taken its memory back, with what was not read in it";
        assert_eq!(end, text);
    }
    assert_eq!(client.read_arena(0, 6), None);
}

#[test]
fn a_client_sees_which_calls_the_server_has_not_taken() {
    let (mut client, mut end, socket) = pair();
    let route = client.route("/a/b", &[]).unwrap();
    let [over, taken, left] = [(); 3].map(|()| client.begin(route, b"x", true, None).unwrap());
    assert!(![over, taken, left].iter().any(|call| client.is_taken(*call)));
    for _ in 0..3 {
        end.take(&mut Vec::new()).unwrap();
    }
    put(&mut end, over, true, b"\0\0\0\0\0");
    assert_eq!(next(&mut client), message(over, b""));
    assert_eq!(next(&mut client), Some(ClientEvent::End { call: over, status: ClientStatus::ok() }));
    drop((end, socket));
    assert!(matches!(client.next(None), Err(ClientError::Closed(_))));
    assert_eq!([over, taken, left].map(|call| client.is_taken(call)), [true, true, false]);
}
