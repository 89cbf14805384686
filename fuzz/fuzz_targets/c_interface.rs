//! libFuzzer drives `c_interface`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (nereid_fuzz::c_interface::TARGET.run)(data);
});
