//! libFuzzer drives `python::frames`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (nereid_fuzz::python::frames::TARGET.run)(data);
});
