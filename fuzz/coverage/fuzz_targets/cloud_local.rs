//! The fuzzer's program for the target `cloud_local`; what it does is in `fuzz/src`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    (layby_fuzz::target("cloud_local").expect("the target exists").run)(bytes);
});
