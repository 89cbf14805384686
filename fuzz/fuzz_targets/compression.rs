//! libFuzzer drives `compression`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (nereid_fuzz::compression::TARGET.run)(data);
});
