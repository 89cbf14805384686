//! Uploads over gRPC in frames of 16 KiB, which are received many at once.

use super::peers::{GrpcPeer, World};
use super::*;

with_parking_shards! {
    uploads_in_small_frames_arrive_whole
    memory_of_a_call_that_has_ended_comes_back
    a_client_that_never_sends_again_is_closed_for_the_memory_of_its_call
}

const TENSOR: usize = 300_000;
const FRAME: usize = 16 * 1024;
/// model_name, and the beginning of raw_input_contents of so many bytes.
const HEAD: &[u8] = b"\x0a\x01m\x3a\xe0\xa7\x12";

#[test]
fn uploads_in_small_frames_arrive_whole() {
    for seed in 0..6 {
        let mut world = World::new(seed);
        let mut peer = GrpcPeer::connect(&mut world);
        for number in 0..3 {
            let tensor: Vec<u8> = (0..TENSOR).map(|at| (at.wrapping_mul(31) >> 3) as u8 ^ number as u8).collect();
            let length = u32::try_from(HEAD.len() + TENSOR).unwrap().to_be_bytes();
            let message = [&[0][..], &length, HEAD, &tensor].concat();
            let stream = peer.begin(b"/infer", None);
            let mut frames = message.chunks(FRAME).peekable();
            while let Some(frame) = frames.next() {
                peer.send(stream, frame, frames.peek().is_none());
            }
            let mut rounds = 0;
            while world.script.borrow().tensors.len() <= number {
                peer.run(&mut world, 10);
                rounds += 1;
                assert!(rounds < 1000, "seed {seed}: the upload does not end");
            }
            assert!(world.script.borrow().tensors[number] == tensor, "seed {seed}");
        }
        assert!(world.engine.scattered.get() > 3, "seed {seed}: {} receives of frames", world.engine.scattered.get());
        drop(peer);
        world.end();
    }
}

/// Begins an upload that stops behind a frame, so that the engine waits for the next one with the memory of the tensor.
fn stop_behind_a_frame(world: &mut World, peer: &mut GrpcPeer) -> StreamId {
    let stream = peer.begin(b"/infer", Some(&b"100m"[..]));
    let length = u32::try_from(HEAD.len() + TENSOR).unwrap().to_be_bytes();
    let message = [&[0][..], &length, HEAD, &[7; TENSOR]].concat();
    message.chunks(FRAME).take(5).for_each(|frame| peer.send(stream, frame, false));
    peer.run(world, 30);
    assert!(world.engine.scattered.get() > 0, "no frames are received at once");
    stream
}

#[test]
fn memory_of_a_call_that_has_ended_comes_back() {
    let mut world = World::new(5);
    let mut peer = GrpcPeer::connect(&mut world);
    let before = world.pool.bytes_in_use();
    let stream = stop_behind_a_frame(&mut world, &mut peer);
    assert!(world.pool.bytes_in_use() > before + 4 * FRAME);
    world.clock.advance(SECOND_NS / 5);
    peer.run(&mut world, 60);
    assert_eq!(peer.status(stream).unwrap().0, "4", "DEADLINE_EXCEEDED");
    world.shard.handler.shared.readers.clear();
    let left = world.pool.bytes_in_use();
    assert!(left < before + FRAME, "{left} bytes, before the upload {before}");
    assert_eq!(world.shard.handler.connections.len(), 1);
    drop(peer);
    world.end();
}

#[test]
fn a_client_that_never_sends_again_is_closed_for_the_memory_of_its_call() {
    let mut world = World::new(5);
    let mut peer = GrpcPeer::connect(&mut world);
    stop_behind_a_frame(&mut world, &mut peer);
    for _ in 0..SlowPeers::default().window_s + 5 {
        world.clock.advance(SECOND_NS);
        world.turns(10);
    }
    assert_eq!(world.shard.handler.connections.len(), 0);
    drop(peer);
    world.end();
}
