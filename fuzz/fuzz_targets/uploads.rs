//! libFuzzer drives `uploads`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (nereid_fuzz::uploads::TARGET.run)(data);
});
