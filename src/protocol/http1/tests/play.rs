//! Whole sessions, in any pieces.

use super::*;

/// Feeds `input` in pieces that end at `cuts`, echoing each request's path and body at once.
pub fn play(connection: Connection, input: &[u8], cuts: &[usize]) -> (Vec<String>, String, bool) {
    play_with(connection, input, cuts, |_| {})
}

/// The same; `pause` is called after each piece, before and after its requests are answered.
pub fn play_with(
    mut connection: Connection,
    input: &[u8],
    cuts: &[usize],
    pause: impl Fn(&mut Connection),
) -> (Vec<String>, String, bool) {
    let mut recorder = Recorder::default();
    let mut from = 0;
    for &to in cuts.iter().chain([&input.len()]) {
        connection.receive(&input[from..to], &mut recorder);
        from = to;
        pause(&mut connection);
        loop {
            for (exchange, path, body) in std::mem::take(&mut recorder.requests) {
                let text = [path.as_bytes(), b" ", &body].concat();
                connection.respond(exchange, Response::text(&pool(), ResponseHead::new(200), &text));
            }
            if !connection.has_input() {
                break;
            }
            connection.receive(&[], &mut recorder);
        }
        pause(&mut connection);
    }
    let output = sent(&mut connection);
    (recorder.events, output, connection.should_close())
}
