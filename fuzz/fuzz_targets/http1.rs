//! libFuzzer drives `http1`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (nereid_fuzz::http1::TARGET.run)(data);
});
