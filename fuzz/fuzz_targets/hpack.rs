//! libFuzzer drives `hpack`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (nereid_fuzz::hpack::TARGET.run)(data);
});
