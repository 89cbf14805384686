//! JSON that is written in bounded steps: its parts wait here, and long texts and vectors among them take their form
//! piece by piece.

use std::collections::VecDeque;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nereid_memory::{Gather, Pool};

use super::numbers::Vector;
use crate::json::escape_into;
use crate::request::Rerank;

/// About how many bytes a step writes.
const STEP_BYTES: usize = 64 * 1024;

/// Numbers that are written at once, each of up to 25 bytes. A multiple of three, so that base64 needs no padding
/// between parts.
const NUMBERS_MAX: usize = 3 * 1024;

enum Part {
    Json(Vec<u8>),
    /// To be escaped; its quotes are JSON around it.
    Text(Arc<String>),
    /// A document of a request for ranks, as such a text.
    Document(Arc<Rerank>, usize),
    /// Numbers with commas between them.
    Numbers(Vector),
    /// The numbers as 32-bit floats in base64.
    Base64(Vector),
}

/// Parts that wait to be written.
#[derive(Default)]
pub(super) struct Document {
    parts: VecDeque<Part>,
    /// How much of the first part is written: bytes or numbers.
    at: usize,
    scratch: Vec<u8>,
}

impl Document {
    /// Takes more JSON: what short texts and numbers are written to.
    pub fn json(&mut self) -> &mut Vec<u8> {
        if !matches!(self.parts.back(), Some(Part::Json(_))) {
            self.parts.push_back(Part::Json(Vec::new()));
        }
        match self.parts.back_mut() {
            Some(Part::Json(json)) => json,
            // One was pushed above.
            _ => &mut self.scratch,
        }
    }

    pub fn put(&mut self, json: &str) {
        self.json().extend_from_slice(json.as_bytes());
    }

    /// A text, with its quotes.
    pub fn put_text(&mut self, text: &Arc<String>) {
        self.put("\"");
        self.parts.push_back(Part::Text(Arc::clone(text)));
        self.put("\"");
    }

    /// One of the documents to rank, with its quotes.
    pub fn put_document(&mut self, request: Arc<Rerank>, index: usize) {
        self.put("\"");
        self.parts.push_back(Part::Document(request, index));
        self.put("\"");
    }

    pub fn put_numbers(&mut self, vector: Vector) {
        self.parts.push_back(Part::Numbers(vector));
    }

    pub fn put_base64(&mut self, vector: Vector) {
        self.parts.push_back(Part::Base64(vector));
    }

    /// Writes about [`STEP_BYTES`]. True: nothing is left.
    pub fn write(&mut self, pool: &Pool, out: &mut Gather) -> bool {
        let mut left = STEP_BYTES;
        while left > 0 {
            let Some(part) = self.parts.front() else { return true };
            self.scratch.clear();
            let (taken, is_done) = form(part, self.at, left, &mut self.scratch);
            out.put(pool, &self.scratch);
            left = left.saturating_sub(self.scratch.len().max(1));
            self.at += taken;
            if is_done {
                self.parts.pop_front();
                self.at = 0;
            }
        }
        self.parts.is_empty()
    }
}

/// Writes what stands in `part` from `at` on, up to a bound. How much of it that was, and whether it was the rest.
fn form(part: &Part, at: usize, bytes_max: usize, out: &mut Vec<u8>) -> (usize, bool) {
    match part {
        Part::Json(json) => {
            let rest = json.get(at..).unwrap_or_default();
            let taken = rest.len().min(bytes_max);
            out.extend_from_slice(rest.get(..taken).unwrap_or_default());
            (taken, taken == rest.len())
        }
        Part::Text(text) => form_text(text, at, bytes_max, out),
        Part::Document(request, index) => {
            form_text(request.documents.get(*index).map_or("", String::as_str), at, bytes_max, out)
        }
        Part::Numbers(vector) => {
            let until = vector.len().min(at.saturating_add(NUMBERS_MAX));
            for index in at..until {
                if index > 0 {
                    out.push(b',');
                }
                vector.put(index, out);
            }
            (until - at, until == vector.len())
        }
        Part::Base64(vector) => {
            let until = vector.len().min(at.saturating_add(NUMBERS_MAX));
            let bytes: Vec<u8> = (at..until).flat_map(|index| vector.single(index).to_le_bytes()).collect();
            out.extend_from_slice(STANDARD.encode(bytes).as_bytes());
            (until - at, until == vector.len())
        }
    }
}

fn form_text(text: &str, at: usize, bytes_max: usize, out: &mut Vec<u8>) -> (usize, bool) {
    let rest = text.get(at..).unwrap_or_default();
    // At least one whole character.
    let taken = rest.floor_char_boundary(bytes_max.max(4));
    escape_into(rest.get(..taken).unwrap_or_default(), out);
    (taken, taken == rest.len())
}
