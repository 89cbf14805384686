//! Receives into many places.

use nereid_memory::{FrameLayout, Part, Scatter};

use super::*;

/// The rest of a frame, and frames behind it.
const WITHIN: FrameLayout = FrameLayout { lead: 0, first: 300, head: 9, stride: 1000 };
/// The rest of a head, its frame, and frames behind it.
const BETWEEN: FrameLayout = FrameLayout { lead: 4, first: 1000, head: 9, stride: 1000 };

fn scatter(rig: &Rig, len: usize, layout: FrameLayout) -> Box<Scatter> {
    let mut block = rig.block(100_000);
    block.fill(b'.');
    Box::new(Scatter::new(block, 50, len, layout))
}

/// Starts a receive of frames of which none has come.
pub(super) fn start_scattered(rig: &mut Rig, key: Key) {
    let scatter = scatter(rig, 20_000, WITHIN);
    rig.engine.receive_scattered(key, scatter).unwrap();
}

pub(super) fn scattered_receives_land_in_their_parts(make: Make) {
    let Some(mut rig) = rig(make, Limits::default()) else { return };
    for layout in [WITHIN, BETWEEN] {
        let (key, mut peer) = rig.unix_pair();
        let whole = bytes(200_000, 5);
        let writer = std::thread::spawn({
            let whole = whole.clone();
            move || peer.write_all(&whole).map(|()| peer)
        });
        // Some of them come in parts, which are received as any bytes are.
        let mut came = 0;
        while came < whole.len() {
            let scatter = scatter(&rig, 20_000, layout);
            let capacity = scatter.capacity();
            rig.engine.receive_scattered(key, scatter).unwrap();
            let Received::Scattered { scatter, len } = rig.received(key) else { panic!() };
            assert!((1..=capacity).contains(&len), "{len}");
            assert_eq!(scatter.copy(0, len).unwrap(), whole[came..came + len]);
            let heads: usize =
                scatter.parts().map(|part| if matches!(part, Part::Head(_)) { part.len() } else { 0 }).sum();
            assert_eq!(capacity, 20_000 + heads);
            let block = scatter.into_block();
            assert!(block[..50].iter().chain(&block[20_050..]).all(|byte| *byte == b'.'), "beside the window");
            came += len;
        }
        let peer = writer.join().unwrap().unwrap();
        drop(peer);
        let scatter = scatter(&rig, 20_000, layout);
        rig.engine.receive_scattered(key, scatter).unwrap();
        assert!(matches!(rig.received(key), Received::End));
        rig.close(key);
    }
    assert_eq!(rig.pool.bytes_in_use(), 0);
}

pub(super) fn a_scattered_receive_waits_for_its_bytes_and_for_its_close(make: Make) {
    let Some(mut rig) = rig(make, Limits::default()) else { return };
    let (key, mut peer) = rig.unix_pair();
    let empty = Box::new(Scatter::new(rig.block(10), 10, 5, WITHIN));
    assert!(matches!(rig.engine.receive_scattered(key, empty), Err(Refused::Window)));
    assert_eq!(rig.pool.bytes_in_use(), 0, "what is refused is dropped");
    let first = scatter(&rig, 5000, BETWEEN);
    rig.engine.receive_scattered(key, first).unwrap();
    let second = scatter(&rig, 5000, BETWEEN);
    assert!(matches!(rig.engine.receive_scattered(key, second), Err(Refused::Busy)));
    (0..3).for_each(|_| rig.turn(Park::Never));
    assert!(rig.waiting.is_empty(), "{:?}", rig.waiting);
    peer.write_all(b"headbody").unwrap();
    let Received::Scattered { scatter: received, len } = rig.received(key) else { panic!() };
    assert_eq!((len, received.copy(0, len).unwrap()), (8, b"headbody".to_vec()));
    assert_eq!(&received.into_block()[49..55], b".body.");
    let third = scatter(&rig, 5000, WITHIN);
    rig.engine.receive_scattered(key, third).unwrap();
    (0..2).for_each(|_| rig.turn(Park::Never));
    rig.close(key);
    assert_eq!(rig.pool.bytes_in_use(), 0);
}
