//! Link events and degradations: events that parse are written to a text that parses equal, and errors name a line of
//! the text.
#![no_main]

use std::sync::LazyLock;

use weft_testbed::link_events::{Degradation, parse_link_events, write_link_event};
use weft_testbed::topology::{Topology, TopologySpec};

static FABRICS: LazyLock<Vec<Topology>> = LazyLock::new(|| {
    let specs = ["leaf-spine:hosts=16,leaves=4,spines=2,bundle=2", "fat-tree:k=4,hosts=14", "two-dc:k=2"];
    let build = |spec: &str| spec.parse::<TopologySpec>().expect("a topology").build().expect("a topology");
    specs.into_iter().map(build).collect()
});

libfuzzer_sys::fuzz_target!(|text: &str| {
    for fabric in FABRICS.iter() {
        match parse_link_events("fuzz", text, fabric) {
            Ok(events) => {
                let mut written = String::new();
                for event in &events {
                    write_link_event(event, fabric, &mut written).expect("writing to a string");
                    written.push('\n');
                }
                assert_eq!(parse_link_events("fuzz", &written, fabric).as_ref(), Ok(&events));
            }
            Err(error) => {
                let line = text.lines().nth(error.line - 1).expect("a line of the text");
                let rest: String = line.chars().skip(error.column - 1).collect();
                assert!(rest.starts_with(&error.word), "{error}");
            }
        }
    }
    if let Ok(degradation) = text.parse::<Degradation>() {
        assert_eq!(degradation.to_string().parse(), Ok(degradation));
        for fabric in FABRICS.iter() {
            for slow in degradation.ports(fabric).into_iter().flatten() {
                assert!(slow.port.0 < fabric.ports().len() as u32);
            }
        }
    }
});
