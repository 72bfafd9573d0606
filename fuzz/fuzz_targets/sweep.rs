//! Sweep files: any text is a sweep whose runs have arguments, or refused by line.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| weft_apps::properties::any_text_is_a_sweep_or_refused_by_line(text));
