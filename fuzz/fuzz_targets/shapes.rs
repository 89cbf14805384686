//! libFuzzer drives `shapes`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (nereid_fuzz::shapes::TARGET.run)(data);
});
