//! Generated answers in the JSON of a run.

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use super::{Rates, notes, tokens_a_chunk};
use crate::openai::{Length, OpenAi, PromptSource};
use crate::report::figures::percentile_name;
use crate::report::json::histogram as times;
use crate::{GenerationTotals, Measurement};

const PERCENTILES: [f64; 8] = [1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0];

/// What was asked for, for programs.
pub fn plan(openai: &OpenAi) -> Value {
    let length = |length: &Length| json!({ "mean": length.mean, "deviation": length.deviation });
    let ms = |goal: Option<std::time::Duration>| goal.map(|goal| goal.as_secs_f64() * 1e3);
    let prompts = match &openai.prompts.source {
        PromptSource::Synthetic { length: words, count } => json!({ "words": length(words), "count": count }),
        PromptSource::File(path) => json!({ "file": path.display().to_string() }),
    };
    json!({
        "interface": openai.interface.route(),
        "path": openai.path,
        "streaming": openai.streaming,
        "asks_usage": openai.streaming && openai.asks_usage,
        "prompts": prompts,
        "shared_prefix_words": openai.prompts.shared_prefix,
        "output_tokens": openai.output.as_ref().map(length),
        "output_is_exact": openai.is_output_exact,
        "extra_inputs": openai.extra,
        "goals_ms": {
            "first_token": ms(openai.goals.first_token),
            "per_token": ms(openai.goals.between_tokens),
            "latency": ms(openai.goals.latency),
        },
    })
}

pub fn point(openai: &OpenAi, measured: &Measurement) -> Value {
    let rates = Rates::of(openai, measured);
    let default = Box::default();
    let totals: &GenerationTotals = measured.generation.as_ref().unwrap_or(&default);
    let counts = &totals.counts;
    json!({
        "output_tokens": counts.output_tokens,
        "input_tokens": counts.input_tokens,
        "output_tokens_per_s": rates.output_tokens,
        "input_tokens_per_s": rates.input_tokens,
        "counted": { "by_usage": counts.by_usage, "by_chunks": counts.by_chunks, "not": counts.uncounted },
        "chunks": counts.chunks,
        "tokens_per_chunk": tokens_a_chunk(totals),
        "without_text": counts.without_text,
        "good": (!openai.goals.is_empty()).then_some(counts.good),
        "good_per_s": rates.good.map(|(rate, _)| rate),
        "good_part": rates.good.map(|(_, part)| part),
        "first_token": times(&totals.first_token_ns),
        "between_tokens": times(&totals.between_tokens_ns),
        "per_token": times(&totals.per_token_ns),
        "output_tokens_per_request": token_histogram(&totals.output_tokens),
        "input_tokens_per_request": token_histogram(&totals.input_tokens),
        "notes": notes(openai, measured),
    })
}

/// Like those of times, in tokens.
fn token_histogram(histogram: &Histogram<u64>) -> Value {
    if histogram.is_empty() {
        return json!({ "count": 0 });
    }
    let percentiles: Map<String, Value> = PERCENTILES
        .iter()
        .map(|percentile| {
            let tokens = histogram.value_at_quantile(percentile / 100.0);
            (format!("p{}", percentile_name(*percentile)), json!(tokens))
        })
        .collect();
    let buckets: Vec<[u64; 2]> = histogram
        .iter_recorded()
        .map(|bucket| [bucket.value_iterated_to(), bucket.count_since_last_iteration()])
        .collect();
    json!({
        "count": histogram.len(),
        "mean": histogram.mean(),
        "deviation": histogram.stdev(),
        "min": histogram.min(),
        "max": histogram.max(),
        "percentiles": percentiles,
        "buckets": buckets,
    })
}
