//! Uploads over gRPC in frames of 16 KiB, which are received many at once.

use super::peers::{GrpcPeer, World};

with_parking_shards! {
    uploads_in_small_frames_arrive_whole
}

const TENSOR: usize = 300_000;
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
            let mut frames = message.chunks(16 * 1024).peekable();
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
