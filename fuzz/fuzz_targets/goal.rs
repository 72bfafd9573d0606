//! GOAL programs: a program that parses is written to a text that parses equal.
#![no_main]

use weft_testbed::goal::parse_goal;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(program) = parse_goal("fuzz", text) {
        let mut written = String::new();
        program.write_goal(&mut written).expect("writing to a string");
        assert_eq!(parse_goal("fuzz", &written).as_ref(), Ok(&program));
    }
});
