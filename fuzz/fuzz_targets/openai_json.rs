//! libFuzzer drives `openai_json`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (nereid_fuzz::openai_json::TARGET.run)(data);
});
