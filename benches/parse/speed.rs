//! Measures writing and reading a tensor of two million numbers as JSON: `cargo bench --bench parse -- --speed`.
//!
//! The time is that of the thread, not of the clock on the wall, and the distribution over rounds is shown: neighbours
//! that share caches make single rounds slow. The written text is the one that is read, in the steps of the API.

use nereid_memory::{BlockMut, Gather, Pool, Slice};
use nereid_protocol::json::{ArrayWriter, Builder, Element, GatherSink, Value};
use rustix::time::{ClockId, clock_gettime};

const ELEMENTS: usize = 2_000_000;
const ROUNDS: usize = 15;
const STEP: usize = 4096;

/// Makes a number of a random one.
type Number = fn(u64) -> f32;

/// The numbers of a tensor.
const TENSORS: [(&str, Number); 3] = [
    ("uniform between 0 and 1", |random| (random >> 40) as f32 / (1u64 << 24) as f32),
    ("uniform between -10 and 10", |random| (random >> 40) as f32 / (1u64 << 24) as f32 * 20.0 - 10.0),
    ("eighths below 125", |random| ((random >> 40) % 1000) as f32 / 8.0),
];

pub fn measure() {
    println!("two million FP32, {ROUNDS} rounds, GB of JSON a second of CPU time: median (lowest to highest)\n");
    println!("| numbers | bytes each | write | read |\n|---|---|---|---|");
    for (name, number) in TENSORS {
        let mut state: u64 = 7;
        let numbers = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            number(state)
        });
        let tensor: Vec<u8> = numbers.take(ELEMENTS).flat_map(f32::to_le_bytes).collect();
        let (mut writes, mut reads, mut text) = (Vec::new(), Vec::new(), Vec::new());
        let pool = Pool::new(1 << 30);
        for _ in 0..ROUNDS {
            let mut pieces = Vec::new();
            let seconds = timed(|| pieces = write(&pool, &tensor));
            text.clear();
            pieces.iter().for_each(|piece| text.extend_from_slice(piece));
            writes.push(text.len() as f64 / seconds / 1e9);
            let body = Slice::copy_of(&text);
            let room = BlockMut::unpooled(tensor.len());
            let mut read = None;
            let seconds = timed(|| read = Some(read_back(body, room)));
            reads.push(text.len() as f64 / seconds / 1e9);
            assert!(read.is_some_and(|read| *read == *tensor), "the tensor did not survive");
        }
        let bytes = text.len() as f64 / ELEMENTS as f64;
        println!("| {name} | {bytes:.1} | {} | {} |", distribution(writes), distribution(reads));
    }
}

fn timed(work: impl FnOnce()) -> f64 {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
    };
    let before = now();
    work();
    now() - before
}

/// As a request carries it.
fn write(pool: &Pool, tensor: &[u8]) -> Vec<Slice> {
    let mut body = Gather::new();
    body.put(pool, b"{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[2000000],\"datatype\":\"FP32\",\"data\":");
    let mut array = ArrayWriter::numbers(Element::F32);
    while !array.step(tensor, &mut GatherSink { gather: &mut body, pool }, STEP).expect("whole elements") {}
    body.put(pool, b"}]}");
    let mut pieces = Vec::new();
    body.take(usize::MAX, &mut pieces);
    pieces
}

fn read_back(body: Slice, room: BlockMut) -> BlockMut {
    let mut builder = Builder::new(body, |depth, key| depth == 3 && key == b"data").expect("a document");
    let mut room = Some(room);
    while !builder.step_to_array(STEP).expect("valid JSON") {
        if builder.opened("shape").is_some()
            && let Some(room) = room.take()
        {
            builder.read_into(Element::F32, room);
        }
    }
    let mut document = builder.finish();
    let input = document.root().member("inputs").and_then(|inputs| inputs.index(0)).expect("an input");
    let index = input.member("data").map(Value::value_index).expect("data");
    document.take_read(index).expect("numbers that were read as they passed")
}

fn distribution(mut rounds: Vec<f64>) -> String {
    rounds.sort_by(f64::total_cmp);
    let at = |place: usize| rounds.get(place).copied().unwrap_or(0.0);
    format!("**{:.2}** ({:.2} to {:.2})", at(rounds.len() / 2), at(0), at(rounds.len() - 1))
}
