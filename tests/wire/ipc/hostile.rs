//! Clients that break the contract, lie about positions or vanish: the server goes on, and so do other clients.

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::grpc::message::{numbers, parameter};
use nereid_ipc::ClientError;
use nereid_test_support::grpc::code;
use nereid_test_support::variant::{self, each, usual};
use nereid_wire::inference::infer_parameter::ParameterChoice;

/// Where the words stand that a client may write (docs/ipc.md).
const REQUEST_HEAD: usize = 512;
const WORDS: [usize; 6] = [REQUEST_HEAD, 640, 768, 896, 1024, 1152];
const RING: usize = 4096;

fn assert_served(client: &mut Client, route: Route) {
    let answer = infer(client, route, &numbers("plain", "still", &[3])).expect("an answer");
    assert_eq!(answer.id, "still");
}

/// The text with which the server ends the connection.
fn farewell(client: &mut Client) -> String {
    loop {
        match client.next(Some(PATIENCE)) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the connection goes on"),
            Err(ClientError::Closed(text)) => return text,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_client_that_breaks_the_contract_is_told_and_closed() {
    each(&variant::ALL, |variant| {
        let repository = plain();
        let (server, path) = start(variant, &repository, &[]);
        let (mut honest, route) = client(&path);
        // A frame of an unknown kind.
        let mut liar = connect(&path);
        let segment = std::sync::Arc::clone(liar.segment());
        assert!(segment.write(RING, &[8, 0, 0, 0, 99, 0, 0, 0]) && segment.write(REQUEST_HEAD, &16u64.to_le_bytes()));
        ring(&mut liar);
        assert_eq!(farewell(&mut liar), ": a frame has an unknown kind");
        // A position that cannot be.
        let mut liar = connect(&path);
        assert!(liar.segment().write(REQUEST_HEAD, &(1u64 << 40).to_le_bytes()));
        ring(&mut liar);
        assert_eq!(farewell(&mut liar), ": a position in the ring of requests cannot be");
        // A call on a route that is not defined.
        let mut liar = connect(&path);
        let frame = [&[16, 0, 0, 0, 2, 0, 0, 0][..], &[1, 0, 0, 0, 9, 0, 1, 0], &[0; 8]].concat();
        assert!(liar.segment().write(RING, &frame) && liar.segment().write(REQUEST_HEAD, &24u64.to_le_bytes()));
        ring(&mut liar);
        assert_eq!(farewell(&mut liar), ": a route is not defined, or its number is not below 64");
        // Metadata that no call may have.
        let mut liar = connect(&path);
        liar.route(INFER, &[(b"Upper", b"v")]).expect("a frame");
        assert_eq!(farewell(&mut liar), ": a route has no path, or metadata that no call may have");
        assert_served(&mut honest, route);
        server.stop();
    });
}

/// Rings the server's bell, as after a frame.
fn ring(client: &mut Client) {
    client.ring_bell().expect("a socket");
}

/// Clients that write random words anywhere while they send requests.
#[test]
fn clients_that_lie_harm_no_other_client() {
    each(&variant::ALL, |variant| {
        let repository = plain();
        let (mut server, path) = start(variant, &repository, &[]);
        let (mut honest, route) = client(&path);
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        let mut word = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        for round in 0..200 {
            let Ok(mut liar) = Client::connect(&path.0) else { continue };
            let segment = std::sync::Arc::clone(liar.segment());
            let message = numbers("plain", "lie", &[1, 2, 3]).encode_to_vec();
            let lie = liar.route(INFER, &[]).and_then(|route| {
                for _ in 0..8 {
                    liar.begin(route, &message, true, None)?;
                    for _ in 0..4 {
                        let places = [WORDS[word() as usize % 6], RING + ((word() as usize % 4096) & !3)];
                        let values = [word(), word() % 65_536, 0, u64::from(u32::MAX), word() % 64];
                        let (at, value) = (places[word() as usize % 2], values[word() as usize % 5]);
                        assert!(segment.write(at, &value.to_le_bytes()));
                    }
                    liar.ring_bell()?;
                }
                Ok(())
            });
            drop(lie);
            drop(liar);
            if round % 10 == 0 {
                assert_served(&mut honest, route);
                assert!(!server.has_crashed());
            }
        }
        assert_served(&mut honest, route);
        server.stop();
    });
}

/// One cannot name the other's memory, and what one writes to its own is not seen by the other.
#[test]
fn two_clients_are_isolated() {
    let repository = plain();
    let (server, path) = start(usual(), &repository, &[]);
    let (mut one, route) = client(&path);
    let (other, _) = client(&path);
    assert_ne!(one.arena().0, other.arena().0);
    assert!(other.write_arena(0, b"secret"));
    assert_eq!(one.read_arena(0, 6).expect("in the arena"), [0; 6]);
    let name = String::from_utf8(one.arena().0.to_vec()).expect("a name");
    let mut guessed = name.into_bytes();
    let last = guessed.last_mut().expect("a character");
    *last = if *last == b'0' { b'1' } else { b'0' };
    let guessed = String::from_utf8(guessed).expect("a name");
    let mut request = numbers("plain", "", &[1]);
    request.raw_input_contents.clear();
    request.inputs[0].parameters = [
        ("shared_memory_region".to_owned(), parameter(ParameterChoice::StringParam(guessed.clone()))),
        ("shared_memory_byte_size".to_owned(), parameter(ParameterChoice::Int64Param(4))),
    ]
    .into();
    let refused = infer(&mut one, route, &request).expect_err("no such region");
    let text = format!("Unable to find shared memory region: '{guessed}'");
    assert_eq!((refused.code, refused.text), (code::NOT_FOUND, text));
    server.stop();
}

#[test]
fn calls_of_a_client_that_is_gone_are_cancelled() {
    each(&variant::ALL, |variant| {
        let repository = plain();
        repository.identity_of("identity", "slow", 0, &[Pair::new("INT32", "-1")], SLOW);
        let (server, path) = start(variant, &repository, &["--ipc-connections=2"]);
        let (mut honest, route) = client(&path);
        let (mut gone, of_gone) = client(&path);
        for _ in 0..20 {
            gone.begin(of_gone, &numbers("slow", "", &[1]).encode_to_vec(), true, None).expect("a call");
        }
        assert_served(&mut honest, route);
        let Err(ClientError::Refused { code: 8, text }) = Client::connect(&path.0) else { panic!("a third client") };
        assert_eq!(text, "2 clients are connected, as many as --ipc-connections allows");
        drop(gone);
        server.wait_until("its place is free", || Client::connect(&path.0).is_ok());
        assert_served(&mut honest, route);
        // It ends without a drain: a model is still executing.
        assert!(!server.log().contains("panicked at"), "{}", server.log());
    });
}

/// A client that does not read: its answers wait within their bound, it gets an error, and others are served.
#[test]
fn a_full_ring_holds_up_only_its_own_client() {
    each(&variant::ALL, |variant| {
        let repository = plain();
        let (server, path) = start(variant, &repository, &["--ipc-ring-bytes=65536"]);
        let (mut honest, route) = client(&path);
        let (mut lazy, of_lazy) = client(&path);
        let message = numbers("plain", "", &[7; 4_000]).encode_to_vec();
        let calls: Vec<u32> = (0..100).map(|_| lazy.begin(of_lazy, &message, true, None).expect("a call")).collect();
        for _ in 0..20 {
            assert_served(&mut honest, route);
        }
        let mut left: std::collections::HashSet<u32> = calls.into_iter().collect();
        while !left.is_empty() {
            if let ClientEvent::End { call, status } = next(&mut lazy) {
                assert_eq!(status.code, code::OK, "{status:?}");
                assert!(left.remove(&call));
            }
        }
        server.stop();
    });
}

#[test]
fn the_file_has_the_permissions_that_the_flag_states() {
    for (flag, mode) in [(None, 0o600), (Some("--ipc-mode=0660"), 0o660)] {
        let repository = plain();
        let flags: Vec<&str> = flag.into_iter().collect();
        let (server, path) = start(usual(), &repository, &flags);
        let found = std::fs::metadata(&path.0).expect("a file").permissions().mode() & 0o777;
        assert_eq!(found, mode);
        server.stop();
    }
}
