//! The statistics extension in both protocols (contract/metrics.md section 3).

use std::collections::BTreeMap;
use std::sync::Arc;

use nereid_memory::{Gather, Pool};
use nereid_observe::statistics::{MemoryUse, ResponseTally, Snapshot, Tally};
use nereid_protocol::json::{GatherSink, Writer};
use nereid_scheduler::ServedModel;
use nereid_wire::inference as wire;

type Json<'a> = Writer<GatherSink<'a>>;

/// The answer to `/v2/models/stats` and its relatives.
pub fn to_json(models: &[&Arc<ServedModel>], pool: &Pool) -> Gather {
    let mut body = Gather::new();
    let mut writer = Writer::new(GatherSink { gather: &mut body, pool });
    writer.begin_object();
    writer.key("model_stats");
    writer.begin_array();
    for model in models {
        write_model(&mut writer, model, &model.statistics.snapshot());
    }
    writer.end_array();
    writer.end_object();
    body
}

fn write_model(writer: &mut Json<'_>, model: &ServedModel, snapshot: &Snapshot) {
    writer.begin_object();
    writer.key("name");
    writer.string(&model.name);
    writer.key("version");
    writer.string(itoa::Buffer::new().format(model.version));
    writer.key("last_inference");
    writer.uint(snapshot.last_inference_ms);
    writer.key("inference_count");
    writer.uint(snapshot.inference_count);
    writer.key("execution_count");
    writer.uint(snapshot.execution_count);
    writer.key("inference_stats");
    writer.begin_object();
    for (name, tally) in inference_tallies(snapshot) {
        write_tally(writer, name, tally);
    }
    writer.end_object();
    writer.key("response_stats");
    writer.begin_object();
    for (index, tallies) in &snapshot.response_stats {
        writer.key(index);
        writer.begin_object();
        for (name, tally) in response_tallies(tallies) {
            write_tally(writer, name, tally);
        }
        writer.end_object();
    }
    writer.end_object();
    writer.key("batch_stats");
    writer.begin_array();
    for batch in &snapshot.batch_stats {
        writer.begin_object();
        writer.key("batch_size");
        writer.uint(batch.batch_size);
        write_tally(writer, "compute_input", batch.compute_input);
        write_tally(writer, "compute_infer", batch.compute_infer);
        write_tally(writer, "compute_output", batch.compute_output);
        writer.end_object();
    }
    writer.end_array();
    writer.key("memory_usage");
    writer.begin_array();
    for memory in &snapshot.memory_usage {
        writer.begin_object();
        writer.key("type");
        writer.string(memory.kind.name());
        writer.key("id");
        writer.int(memory.id);
        writer.key("byte_size");
        writer.uint(memory.byte_size);
        writer.end_object();
    }
    writer.end_array();
    writer.end_object();
}

fn write_tally(writer: &mut Json<'_>, name: &str, tally: Tally) {
    writer.key(name);
    writer.begin_object();
    writer.key("count");
    writer.uint(tally.count);
    writer.key("ns");
    writer.uint(tally.ns);
    writer.end_object();
}

fn inference_tallies(snapshot: &Snapshot) -> [(&'static str, Tally); 8] {
    [
        ("success", snapshot.success),
        ("fail", snapshot.fail),
        ("queue", snapshot.queue),
        ("compute_input", snapshot.compute_input),
        ("compute_infer", snapshot.compute_infer),
        ("compute_output", snapshot.compute_output),
        ("cache_hit", snapshot.cache_hit),
        ("cache_miss", snapshot.cache_miss),
    ]
}

fn response_tallies(tallies: &ResponseTally) -> [(&'static str, Tally); 6] {
    [
        ("compute_infer", tallies.compute_infer),
        ("compute_output", tallies.compute_output),
        ("success", tallies.success),
        ("fail", tallies.fail),
        ("empty_response", tallies.empty_response),
        ("cancel", tallies.cancel),
    ]
}

/// The answer to the RPC ModelStatistics.
pub fn to_message(models: &[&Arc<ServedModel>]) -> wire::ModelStatisticsResponse {
    wire::ModelStatisticsResponse { model_stats: models.iter().map(|model| message_of(model)).collect() }
}

fn duration(tally: Tally) -> Option<wire::StatisticDuration> {
    Some(wire::StatisticDuration { count: tally.count, ns: tally.ns })
}

fn message_of(model: &ServedModel) -> wire::ModelStatistics {
    let snapshot = model.statistics.snapshot();
    let responses: BTreeMap<String, wire::InferResponseStatistics> = snapshot
        .response_stats
        .iter()
        .map(|(index, tallies)| {
            let statistics = wire::InferResponseStatistics {
                compute_infer: duration(tallies.compute_infer),
                compute_output: duration(tallies.compute_output),
                success: duration(tallies.success),
                fail: duration(tallies.fail),
                empty_response: duration(tallies.empty_response),
                cancel: duration(tallies.cancel),
            };
            (index.clone(), statistics)
        })
        .collect();
    wire::ModelStatistics {
        name: model.name.clone(),
        version: model.version.to_string(),
        last_inference: snapshot.last_inference_ms,
        inference_count: snapshot.inference_count,
        execution_count: snapshot.execution_count,
        inference_stats: Some(wire::InferStatistics {
            success: duration(snapshot.success),
            fail: duration(snapshot.fail),
            queue: duration(snapshot.queue),
            compute_input: duration(snapshot.compute_input),
            compute_infer: duration(snapshot.compute_infer),
            compute_output: duration(snapshot.compute_output),
            cache_hit: duration(snapshot.cache_hit),
            cache_miss: duration(snapshot.cache_miss),
        }),
        batch_stats: snapshot
            .batch_stats
            .iter()
            .map(|batch| wire::InferBatchStatistics {
                batch_size: batch.batch_size,
                compute_input: duration(batch.compute_input),
                compute_infer: duration(batch.compute_infer),
                compute_output: duration(batch.compute_output),
            })
            .collect(),
        memory_usage: snapshot.memory_usage.iter().map(memory_of).collect(),
        response_stats: responses,
    }
}

fn memory_of(memory: &MemoryUse) -> wire::MemoryUsage {
    wire::MemoryUsage { r#type: memory.kind.name().to_owned(), id: memory.id, byte_size: memory.byte_size }
}
