//! libFuzzer drives `python::marshal`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (nereid_fuzz::python::marshal::TARGET.run)(data);
});
