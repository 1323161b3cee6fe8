//! The fuzzer's program for the target `cloud_store`; what it does is in `fuzz/src`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    (layby_fuzz::target("cloud_store").expect("the target exists").run)(bytes);
});
