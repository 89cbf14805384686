//! libFuzzer drives `model_config`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (nereid_fuzz::model_config::TARGET.run)(data);
});
