//! libFuzzer drives `http2`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (nereid_fuzz::http2::TARGET.run)(data);
});
