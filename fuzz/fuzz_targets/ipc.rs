//! libFuzzer drives `ipc`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (nereid_fuzz::ipc::TARGET.run)(data);
});
