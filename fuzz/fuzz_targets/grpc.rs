//! libFuzzer drives `grpc`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (nereid_fuzz::grpc::TARGET.run)(data);
});
