//! The fuzzer's program for the target `log_decode`; what it does is in `fuzz/src`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    (layby_fuzz::target("log_decode").expect("the target exists").run)(bytes);
});
