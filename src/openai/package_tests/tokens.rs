//! Tokens of the tokenizers of real models, equal to those of Python, with a cache and without.

use nereid_openai::tokenizer::Tokenizer;
use serde_json::Value;

use super::{golden, path_of};

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

#[test]
fn tokens_are_those_of_python() {
    let Some(golden) = golden() else { return };
    let mut folders = 0;
    for encodings in golden["encodings"].as_array().unwrap() {
        let folder = path_of(&encodings["folder"]).unwrap();
        let [plain, cached] = [0, 16 << 20].map(|bytes| Tokenizer::load(folder, bytes).unwrap());
        for case in encodings["texts"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            // The second time from the cache.
            for tokenizer in [&plain, &cached, &cached] {
                let without = tokenizer.encode(text, false).unwrap();
                assert_eq!(without, ids(&case["plain"]), "{folder:?} {text:?}");
                assert_eq!(tokenizer.encode(text, true).unwrap(), ids(&case["special"]), "{folder:?} {text:?}");
                for (index, skips) in [false, true].into_iter().enumerate() {
                    let decoded = tokenizer.decode(&without, skips).unwrap();
                    assert_eq!(decoded, case["decoded"][index].as_str().unwrap(), "{folder:?} {text:?}");
                }
            }
        }
        folders += 1;
    }
    assert_eq!(folders, 4);
}
