//! Changes inputs at random, for runs without libFuzzer.

use crate::Dice;
use crate::dice::SEED_BYTES;

/// Longest input that is made.
const LENGTH_MAX: usize = 16 * 1024;
const NUMBERS: [&[u8]; 14] = [
    b"0",
    b"-1",
    b"00",
    b"127",
    b"128",
    b"255",
    b"256",
    b"65536",
    b"2147483647",
    b"2147483648",
    b"4294967296",
    b"9223372036854775807",
    b"9223372036854775808",
    b"18446744073709551616",
];

/// Makes an input from one of `corpus`, which is not empty, by a few changes.
pub fn mutate(corpus: &[Vec<u8>], words: &[&str], dice: &mut Dice) -> Vec<u8> {
    let mut input = dice.pick(corpus).clone();
    // One change more often than several, after which few inputs pass any check.
    let changes = *dice.pick(&[1, 1, 2, 5]);
    for _ in 0..changes {
        change(&mut input, corpus, words, dice);
    }
    input.truncate(LENGTH_MAX);
    input
}

fn change(input: &mut Vec<u8>, corpus: &[Vec<u8>], words: &[&str], dice: &mut Dice) {
    let at = dice.below(input.len() + 1);
    let longest = if dice.one_in(4) { 64 } else { 5 };
    let few = dice.below(longest);
    let end = (at + few).min(input.len());
    match dice.below(13) {
        // Where inputs are cut, and which bounds hold.
        0 => {
            let len = input.len().min(SEED_BYTES);
            input[..len].fill_with(|| dice.number() as u8);
        }
        1 if at < input.len() => input[at] ^= 1 << dice.below(8),
        2 if at < input.len() => input[at] = dice.number() as u8,
        3 => input.insert(at, dice.number() as u8),
        4 => drop(input.drain(at..end)),
        5 => {
            let part = input[at..end].to_vec();
            let to = dice.below(input.len() + 1);
            input.splice(to..to, part);
        }
        6 | 7 if !words.is_empty() => {
            let word = dice.pick(words).as_bytes().to_vec();
            input.splice(at..at, word);
        }
        8 if !words.is_empty() => {
            let word = dice.pick(words).as_bytes().to_vec();
            input.splice(at..end, word);
        }
        9 => change_number(input, at, dice),
        // The beginning of this one and the end of another.
        10 => {
            let other = dice.pick(corpus);
            let from = dice.below(other.len() + 1);
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
        // Part of another one.
        11 => {
            let other = dice.pick(corpus);
            let from = dice.below(other.len() + 1);
            let part = other[from..(from + dice.below(200)).min(other.len())].to_vec();
            input.splice(at..at, part);
        }
        12 if at < input.len() => input[at] = input[at].wrapping_add(1),
        _ => input.truncate(at),
    }
}

/// Replaces the digits from the first one behind `at`.
fn change_number(input: &mut Vec<u8>, at: usize, dice: &mut Dice) {
    let Some(start) = input[at..].iter().position(u8::is_ascii_digit).map(|start| start + at) else { return };
    let len = input[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = match dice.one_in(2) {
        true => dice.pick(&NUMBERS).to_vec(),
        false => dice.below(40).to_string().into_bytes(),
    };
    input.splice(start..start + len, number);
}
