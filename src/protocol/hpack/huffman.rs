//! The string code of RFC 7541 appendix B, as a machine that eats a nibble at a time.
//!
//! The code is canonical: within one length, codes ascend with the symbols. So the lengths alone determine it, and the
//! encoder's codes and the decoder's states are computed from them at compile time. No code is shorter than five
//! bits, hence a nibble completes at most one symbol.

use super::Error;

const SYMBOLS: usize = 257;
const EOS: usize = 256;

/// Bits of each symbol's code; the last one is the end-of-string symbol, which no string may contain.
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, // 0x00
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28, // 0x10
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, // 0x20
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, // 0x30
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, // 0x40
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, // 0x50
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, // 0x60
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, // 0x70
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, // 0x80
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, // 0x90
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, // 0xa0
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, // 0xb0
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, // 0xc0
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, // 0xd0
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, // 0xe0
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, // 0xf0
    30, // end of string
];

/// Each symbol's code, right-aligned.
const CODES: [u32; SYMBOLS] = codes();

const fn codes() -> [u32; SYMBOLS] {
    let mut codes = [0; SYMBOLS];
    let (mut next, mut length) = (0u32, 1);
    while length <= 30 {
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] == length {
                codes[symbol] = next;
                next += 1;
            }
            symbol += 1;
        }
        next <<= 1;
        length += 1;
    }
    codes
}

/// What a nibble does in a state.
#[derive(Clone, Copy)]
struct Step {
    next: u8,
    symbol: u8,
    flags: u8,
}

/// The step completes `symbol`.
const EMITS: u8 = 1;
/// The step runs into the end-of-string symbol or off the code.
const FAILS: u8 = 2;
/// A string may end after the step: what is left of the code is at most seven bits, all ones (section 5.2).
const MAY_END: u8 = 4;

/// States are the inner nodes of the code's tree: one fewer than it has leaves.
const STATES: usize = SYMBOLS - 1;
static STEPS: [[Step; 16]; STATES] = steps();

/// Marks a child as a leaf.
const LEAF: u16 = 0x8000;

const fn tree() -> [[u16; 2]; STATES] {
    let mut tree = [[0u16; 2]; STATES];
    let mut used = 1;
    let mut symbol = 0;
    while symbol < SYMBOLS {
        let mut node = 0usize;
        let mut bit = LENGTHS[symbol];
        while bit > 0 {
            bit -= 1;
            let side = ((CODES[symbol] >> bit) & 1) as usize;
            if bit == 0 {
                assert!(tree[node][side] == 0, "two codes meet");
                tree[node][side] = LEAF | symbol as u16;
            } else {
                if tree[node][side] == 0 {
                    tree[node][side] = used;
                    used += 1;
                }
                assert!(tree[node][side] & LEAF == 0, "a code is the beginning of another");
                node = tree[node][side] as usize;
            }
        }
        symbol += 1;
    }
    assert!(used as usize == STATES, "the code is not complete");
    tree
}

/// The states that a string may end in: the root and the first seven nodes along the ones.
const fn may_end(tree: &[[u16; 2]; STATES]) -> [bool; STATES] {
    let mut may_end = [false; STATES];
    let (mut node, mut depth) = (0usize, 0);
    while depth < 8 {
        may_end[node] = true;
        node = tree[node][1] as usize;
        depth += 1;
    }
    may_end
}

const fn steps() -> [[Step; 16]; STATES] {
    let tree = tree();
    let may_end = may_end(&tree);
    let mut steps = [[Step { next: 0, symbol: 0, flags: FAILS }; 16]; STATES];
    let mut state = 0;
    while state < STATES {
        let mut nibble = 0;
        while nibble < 16 {
            let (mut node, mut symbol, mut flags) = (state, 0u8, 0u8);
            let mut bit = 4;
            while bit > 0 && flags & FAILS == 0 {
                bit -= 1;
                let child = tree[node][(nibble >> bit) & 1];
                if child & LEAF == 0 {
                    node = child as usize;
                } else if child & !LEAF == EOS as u16 {
                    flags = FAILS;
                } else {
                    symbol = child as u8;
                    flags |= EMITS;
                    node = 0;
                }
            }
            if flags & FAILS == 0 && may_end[node] {
                flags |= MAY_END;
            }
            steps[state][nibble] = Step { next: node as u8, symbol, flags };
            nibble += 1;
        }
        state += 1;
    }
    steps
}

/// Appends the decoded string to `out`; it grows by at most 8/5 of the length of `coded`.
pub(super) fn decode(coded: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
    let mut state = 0u8;
    let mut may_end = true;
    for byte in coded {
        for nibble in [byte >> 4, byte & 15] {
            let step = STEPS[usize::from(state)][usize::from(nibble)];
            if step.flags & FAILS != 0 {
                return Err(Error::Huffman);
            }
            if step.flags & EMITS != 0 {
                out.push(step.symbol);
            }
            state = step.next;
            may_end = step.flags & MAY_END != 0;
        }
    }
    if may_end { Ok(()) } else { Err(Error::Huffman) }
}

/// Bytes of the code of `plain`.
pub(super) fn encoded_len(plain: &[u8]) -> usize {
    let bits: usize = plain.iter().map(|byte| usize::from(LENGTHS[usize::from(*byte)])).sum();
    bits.div_ceil(8)
}

/// Appends the code of `plain`, filled up with ones.
pub(super) fn encode(plain: &[u8], out: &mut Vec<u8>) {
    let (mut held, mut bits) = (0u64, 0u32);
    for byte in plain {
        let length = u32::from(LENGTHS[usize::from(*byte)]);
        held = held << length | u64::from(CODES[usize::from(*byte)]);
        bits += length;
        while bits >= 8 {
            bits -= 8;
            out.push((held >> bits) as u8);
        }
    }
    if bits > 0 {
        out.push((held << (8 - bits)) as u8 | (0xff >> bits));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_has_the_corners_of_appendix_b() {
        assert_eq!((CODES[0], CODES[usize::from(b'0')], CODES[usize::from(b' ')]), (0x1ff8, 0, 0x14));
        assert_eq!((CODES[usize::from(b'~')], CODES[usize::from(b'\\')], CODES[255]), (0x1ffd, 0x7fff0, 0x3ffffee));
        assert_eq!((CODES[10], CODES[22], CODES[EOS]), (0x3ffffffc, 0x3ffffffe, 0x3fffffff));
    }

    #[test]
    fn every_symbol_round_trips_at_every_bit_position() {
        for symbol in 0..=255u8 {
            for before in 0..8 {
                // '0' has five bits, so the number of them moves the symbol through all positions in a byte.
                let mut plain = vec![b'0'; before];
                plain.extend([symbol, b'a', symbol]);
                let mut coded = Vec::new();
                encode(&plain, &mut coded);
                assert_eq!(coded.len(), encoded_len(&plain));
                let mut decoded = Vec::new();
                decode(&coded, &mut decoded).unwrap();
                assert_eq!(decoded, plain);
            }
        }
    }

    #[test]
    fn padding_is_checked() {
        assert_eq!(decode(&[], &mut Vec::new()), Ok(()));
        assert_eq!(decode(&[0b0000_0111], &mut Vec::new()), Ok(()), "three ones behind '0'");
        assert_eq!(decode(&[0b0000_0110], &mut Vec::new()), Err(Error::Huffman), "not all ones");
        assert_eq!(decode(&[0b0000_0111, 0xff], &mut Vec::new()), Err(Error::Huffman), "eleven bits of padding");
        assert_eq!(decode(&[0xff], &mut Vec::new()), Err(Error::Huffman), "eight bits of padding");
        assert_eq!(decode(&[0xff, 0xff, 0xff, 0xff], &mut Vec::new()), Err(Error::Huffman), "end of string");
        assert_eq!(decode(&[0x00], &mut Vec::new()), Err(Error::Huffman), "zeros as padding");
    }
}
