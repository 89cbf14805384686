//! What language models generated: when the text of an answer came, how many tokens it has, and the sums of a window.
//!
//! Text comes in chunks, and only the server knows how many tokens a chunk has. Where it reports its usage, tokens are
//! counted by that; else each chunk with text counts as one token. Both are kept apart, so that a report can state
//! which one a figure is made of.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::measurement::{DIGITS, LATENCY_MAX_NS};
use super::openai::Goals;

/// Longer answers and prompts count as ones of this length.
const TOKENS_MAX: u64 = 1 << 32;

/// One answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Generation {
    pub is_streamed: bool,
    /// When each event with text came, if it was streamed.
    pub times_ns: Vec<u64>,
    /// Chunks of text: an event has one for each choice that goes on.
    pub chunks: u64,
    pub usage: Usage,
}

/// Tokens as the server counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub input: Option<u64>,
    pub output: Option<u64>,
}

impl Generation {
    pub fn output_tokens(&self) -> Option<u64> {
        self.usage.output.or(self.is_streamed.then_some(self.chunks))
    }

    /// The mean time between two tokens; none where fewer than two came, or all at once.
    fn per_token_ns(&self) -> Option<u64> {
        let (first, last) = self.times_ns.first().zip(self.times_ns.last())?;
        let gaps = self.output_tokens()?.checked_sub(1).filter(|gaps| *gaps > 0)?;
        let several = self.times_ns.len() > 1;
        several.then(|| last.saturating_sub(*first) / gaps)
    }

    /// A goal for what an answer cannot have, such as the time between tokens of a single one, is met.
    fn meets(&self, goals: &Goals, due_ns: u64, at_ns: u64) -> bool {
        let within = |goal: Option<Duration>, ns: u64| goal.is_none_or(|goal| u128::from(ns) <= goal.as_nanos());
        let first_ns = self.times_ns.first().map(|first| first.saturating_sub(due_ns));
        let first = goals.first_token.is_none() || first_ns.is_some_and(|ns| within(goals.first_token, ns));
        let between = self.per_token_ns().is_none_or(|ns| within(goals.between_tokens, ns));
        first && between && within(goals.latency, at_ns.saturating_sub(due_ns))
    }
}

/// Sums of answers that ended well. Times count from when a request was due, as its latency does.
#[derive(Debug, Clone)]
pub struct GenerationTotals {
    pub first_token_ns: Histogram<u64>,
    /// Between two events with text.
    pub between_tokens_ns: Histogram<u64>,
    /// For each answer: from the first text to the last, over one token less than it has.
    pub per_token_ns: Histogram<u64>,
    /// Tokens of each prompt and of each answer.
    pub input_tokens: Histogram<u64>,
    pub output_tokens: Histogram<u64>,
    pub counts: GenerationCounts,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GenerationCounts {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub chunks: u64,
    /// Answers whose tokens the server counted.
    pub by_usage: u64,
    /// Answers whose chunks were counted as tokens.
    pub by_chunks: u64,
    /// Answers whose tokens nobody counted: neither streamed nor with a usage.
    pub uncounted: u64,
    /// Streamed answers in which no text came.
    pub without_text: u64,
    /// Output tokens and chunks of the streamed answers whose tokens the server counted: how many a chunk has.
    pub streamed_tokens: u64,
    pub streamed_chunks: u64,
    /// Answers that met every goal.
    pub good: u64,
}

impl Default for GenerationTotals {
    fn default() -> GenerationTotals {
        // These bounds are allowed, whatever is measured.
        let histogram =
            |most: u64| Histogram::new_with_bounds(1, most, DIGITS).unwrap_or_else(|_| unreachable!("constant bounds"));
        GenerationTotals {
            first_token_ns: histogram(LATENCY_MAX_NS),
            between_tokens_ns: histogram(LATENCY_MAX_NS),
            per_token_ns: histogram(LATENCY_MAX_NS),
            input_tokens: histogram(TOKENS_MAX),
            output_tokens: histogram(TOKENS_MAX),
            counts: GenerationCounts::default(),
        }
    }
}

impl GenerationTotals {
    pub(super) fn count(&mut self, generation: &Generation, due_ns: u64, at_ns: u64, goals: &Goals) {
        let mut last_ns = None;
        for &ns in &generation.times_ns {
            match last_ns.replace(ns) {
                None => self.first_token_ns.saturating_record(ns.saturating_sub(due_ns).max(1)),
                Some(last_ns) => self.between_tokens_ns.saturating_record(ns.saturating_sub(last_ns).max(1)),
            }
        }
        if let Some(ns) = generation.per_token_ns() {
            self.per_token_ns.saturating_record(ns.max(1));
        }
        let (counts, chunks) = (&mut self.counts, generation.chunks);
        if let Some(tokens) = generation.usage.input {
            self.input_tokens.saturating_record(tokens);
            counts.input_tokens = counts.input_tokens.saturating_add(tokens);
        }
        if let Some(tokens) = generation.output_tokens() {
            self.output_tokens.saturating_record(tokens);
            counts.output_tokens = counts.output_tokens.saturating_add(tokens);
        }
        match (generation.usage.output, generation.is_streamed) {
            (Some(tokens), is_streamed) => {
                counts.by_usage += 1;
                if is_streamed {
                    counts.streamed_tokens = counts.streamed_tokens.saturating_add(tokens);
                    counts.streamed_chunks = counts.streamed_chunks.saturating_add(chunks);
                }
            }
            (None, true) => counts.by_chunks += 1,
            (None, false) => counts.uncounted += 1,
        }
        counts.chunks = counts.chunks.saturating_add(chunks);
        counts.without_text += u64::from(generation.is_streamed && chunks == 0);
        counts.good += u64::from(generation.meets(goals, due_ns, at_ns));
    }

    pub(super) fn add(&mut self, other: &GenerationTotals) {
        for (sum, part) in [
            (&mut self.first_token_ns, &other.first_token_ns),
            (&mut self.between_tokens_ns, &other.between_tokens_ns),
            (&mut self.per_token_ns, &other.per_token_ns),
            (&mut self.input_tokens, &other.input_tokens),
            (&mut self.output_tokens, &other.output_tokens),
        ] {
            // Of the same bounds: nothing can fail to fit.
            let _ = sum.add(part);
        }
        for (sum, part) in self.counts.parts().into_iter().zip(other.counts.clone().parts()) {
            *sum = sum.saturating_add(*part);
        }
    }
}

impl GenerationCounts {
    fn parts(&mut self) -> [&mut u64; 10] {
        [
            &mut self.input_tokens,
            &mut self.output_tokens,
            &mut self.chunks,
            &mut self.by_usage,
            &mut self.by_chunks,
            &mut self.uncounted,
            &mut self.without_text,
            &mut self.streamed_tokens,
            &mut self.streamed_chunks,
            &mut self.good,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn streamed(times_ms: &[u64], tokens: Option<u64>) -> Generation {
        Generation {
            is_streamed: true,
            times_ns: times_ms.iter().map(|ms| ms * MS).collect(),
            chunks: times_ms.len() as u64,
            usage: Usage { input: tokens.map(|_| 7), output: tokens },
        }
    }

    fn goals(first: u64, between: u64, latency: u64) -> Goals {
        let goal = |ms: u64| (ms > 0).then(|| Duration::from_millis(ms));
        Goals { first_token: goal(first), between_tokens: goal(between), latency: goal(latency) }
    }

    #[test]
    fn times_and_tokens_are_those_of_the_answer() {
        let mut totals = GenerationTotals::default();
        // Two tokens in each chunk.
        totals.count(&streamed(&[30, 40, 70], Some(6)), 10 * MS, 75 * MS, &Goals::default());
        let ms = |histogram: &Histogram<u64>| (histogram.len(), (histogram.mean() / 1e5).round() / 10.0);
        assert_eq!(ms(&totals.first_token_ns), (1, 20.0));
        assert_eq!(ms(&totals.between_tokens_ns), (2, 20.0));
        assert_eq!(ms(&totals.per_token_ns), (1, 8.0), "40 ms over 5 gaps");
        assert_eq!((totals.input_tokens.max(), totals.output_tokens.max()), (7, 6));
        let counts = totals.counts;
        assert_eq!((counts.by_usage, counts.by_chunks, counts.good), (1, 0, 1));
        assert_eq!((counts.streamed_tokens, counts.streamed_chunks), (6, 3));
        // A server that counts nothing.
        totals.count(&streamed(&[30, 40, 70], None), 10 * MS, 75 * MS, &Goals::default());
        assert_eq!((totals.counts.by_chunks, totals.counts.output_tokens, totals.input_tokens.len()), (1, 9, 1));
        assert_eq!(totals.per_token_ns.len(), 2);
        let mut sum = GenerationTotals::default();
        sum.add(&totals);
        sum.add(&totals);
        assert_eq!((sum.counts.output_tokens, sum.first_token_ns.len(), sum.counts.good), (18, 4, 4));
    }

    #[test]
    fn what_was_not_there_is_not_counted() {
        let mut totals = GenerationTotals::default();
        let whole = Generation { usage: Usage { input: None, output: None }, ..Generation::default() };
        totals.count(&whole, 0, MS, &Goals::default());
        totals.count(&streamed(&[], None), 0, MS, &Goals::default());
        totals.count(&streamed(&[5], Some(9)), 0, 6 * MS, &Goals::default());
        let counts = totals.counts;
        assert_eq!((counts.uncounted, counts.without_text, counts.by_usage, counts.by_chunks), (1, 1, 1, 1));
        assert_eq!((totals.first_token_ns.len(), totals.between_tokens_ns.len(), totals.per_token_ns.len()), (1, 0, 0));
        assert_eq!((totals.output_tokens.len(), totals.output_tokens.max()), (2, 9));
    }

    #[test]
    fn an_answer_is_good_if_it_meets_every_goal() {
        let answer = streamed(&[30, 40, 50], Some(3));
        for (goals, good) in [
            (goals(0, 0, 0), true),
            (goals(20, 10, 45), true),
            (goals(19, 10, 45), false),
            (goals(20, 9, 45), false),
            (goals(20, 10, 44), false),
            (goals(0, 0, 45), true),
        ] {
            assert_eq!(answer.meets(&goals, 10 * MS, 55 * MS), good, "{goals:?}");
        }
        assert!(!streamed(&[], None).meets(&goals(5, 0, 0), 0, MS), "no token came in time");
        assert!(streamed(&[1], None).meets(&goals(5, 1, 0), 0, MS), "one token has no time to the next");
    }

    #[test]
    fn absurd_counts_do_no_harm() {
        let mut totals = GenerationTotals::default();
        let absurd =
            Generation { usage: Usage { input: Some(u64::MAX), output: Some(u64::MAX) }, ..streamed(&[1, 2], None) };
        totals.count(&absurd, 0, MS, &Goals::default());
        totals.count(&absurd, 0, MS, &Goals::default());
        assert_eq!(totals.counts.output_tokens, u64::MAX);
        assert_eq!(totals.output_tokens.len(), 2);
    }
}
