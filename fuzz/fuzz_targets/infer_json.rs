//! libFuzzer drives `infer_json`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (nereid_fuzz::infer_json::TARGET.run)(data);
});
