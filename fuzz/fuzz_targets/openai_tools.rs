//! libFuzzer drives `openai_tools`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (nereid_fuzz::openai_tools::TARGET.run)(data);
});
