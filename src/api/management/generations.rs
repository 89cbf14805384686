//! The generations of a model, shown over HTTP (docs/generations.md). The map of models has them, so a shard answers at
//! once.

use crate::repository::generations::Generations;
use nereid_memory::{Gather, Pool};
use nereid_protocol::json::{GatherSink, Writer};

/// The answer to `GET /v2/models/<m>/generations`.
pub fn to_json(model: &str, generations: &Generations, pool: &Pool) -> Gather {
    let present = generations.present().map(|present| &*present.id);
    let mut body = Gather::new();
    let mut writer = Writer::new(GatherSink { gather: &mut body, pool });
    writer.begin_object();
    writer.key("model");
    writer.string(model);
    writer.key("present");
    match present {
        None => writer.null(),
        Some(id) => writer.string(id),
    }
    writer.key("rolled_back");
    writer.bool(generations.is_rolled_back);
    writer.key("kept_max");
    writer.uint(generations.kept_max as u64);
    writer.key("generations");
    writer.begin_array();
    for generation in &generations.entries {
        writer.begin_object();
        writer.key("id");
        writer.string(&*generation.id);
        writer.key("versions");
        writer.begin_array();
        for version in &generation.versions {
            writer.string(version.to_string());
        }
        writer.end_array();
        writer.key("loaded_ms");
        writer.uint(generation.loaded_ms);
        writer.key("is_present");
        writer.bool(present == Some(&*generation.id));
        writer.key("is_kept");
        writer.bool(generation.kept_bytes.is_some());
        writer.key("kept_bytes");
        writer.uint(generation.kept_bytes.unwrap_or_default());
        writer.end_object();
    }
    writer.end_array();
    writer.end_object();
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::generations::ShownGeneration;

    #[test]
    fn all_is_shown() {
        let shown =
            |id: &str, kept_bytes| ShownGeneration { id: id.into(), versions: vec![1, 3], loaded_ms: 5, kept_bytes };
        let entries = vec![shown("b-2", Some(9)), shown("a-1", None)];
        let mut generations = Generations { serves: true, is_rolled_back: true, kept_max: 1, entries };
        let pool = Pool::new(1 << 20);
        let text = |generations: &Generations| {
            let bytes = to_json("m", generations, &pool).to_vec();
            serde_json::from_slice::<serde_json::Value>(&bytes).unwrap()
        };
        let expected = serde_json::json!({
            "model": "m",
            "present": "b-2",
            "rolled_back": true,
            "kept_max": 1,
            "generations": [
                {"id": "b-2", "versions": ["1", "3"], "loaded_ms": 5, "is_present": true, "is_kept": true,
                 "kept_bytes": 9},
                {"id": "a-1", "versions": ["1", "3"], "loaded_ms": 5, "is_present": false, "is_kept": false,
                 "kept_bytes": 0},
            ],
        });
        assert_eq!(text(&generations), expected);
        generations.serves = false;
        let shown = text(&generations);
        assert_eq!(shown["present"], serde_json::Value::Null);
        assert_eq!(shown["generations"][0]["is_present"], false);
    }
}
