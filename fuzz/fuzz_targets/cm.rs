//! Connection matrices: a matrix that parses is written to a text that parses equal.
#![no_main]

use weft_testbed::workload::{CmOptions, parse_cm};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let options = CmOptions { hosts: Some(64), ..CmOptions::default() };
    if let Ok(workload) = parse_cm("fuzz", text, options) {
        let mut written = String::new();
        workload.write_cm(&mut written).expect("writing to a string");
        assert_eq!(parse_cm("fuzz", &written, CmOptions::default()).as_ref(), Ok(&workload));
    }
});
