//! libFuzzer drives `openai_template`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (nereid_fuzz::openai_template::TARGET.run)(data);
});
