//! libFuzzer drives `python::memory`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (nereid_fuzz::python::memory::TARGET.run)(data);
});
