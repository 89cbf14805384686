//! libFuzzer drives `openai_request`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (nereid_fuzz::openai_request::TARGET.run)(data);
});
