//! Distributions of sizes and descriptions of workloads: a distribution that parses is written to a text that parses
//! equal, errors name a line of the text, and every description that parses becomes a workload or is refused.
#![no_main]

use std::sync::LazyLock;

use weft_stack::rng::Rng;
use weft_testbed::topology::{Topology, TopologySpec};
use weft_testbed::workload::{Setting, SizeDistribution, WorkloadSpec};

static FABRIC: LazyLock<Topology> = LazyLock::new(|| {
    let spec: TopologySpec = "leaf-spine:hosts=16,leaves=4,spines=2".parse().expect("a topology");
    spec.build().expect("a topology")
});

libfuzzer_sys::fuzz_target!(|text: &str| {
    match SizeDistribution::parse("fuzz", text) {
        Ok(sizes) => {
            assert_eq!(SizeDistribution::parse("fuzz", &sizes.write()).as_ref(), Ok(&sizes));
            let mut rng = Rng::new(1, 0);
            assert!(sizes.mean() >= 0.0);
            (0..8).for_each(|_| _ = sizes.draw(&mut rng));
        }
        Err(error) => assert!(error.line >= 1 && error.line <= text.lines().count().max(1), "{error}"),
    }
    if let Ok(spec) = text.parse::<WorkloadSpec>() {
        assert_eq!(spec.to_string(), text);
        // Descriptions of millions of flows would take too long here.
        if text.bytes().filter(u8::is_ascii_digit).count() <= 3 && !text.contains("ms") {
            let read = |_: &str| Err("no files".to_owned());
            let setting = Setting { hosts: 16, topology: Some(&FABRIC), bytes: 1000, slow: 1, read: &read };
            if let Ok(workload) = WorkloadSpec::build_all(&[spec], &setting, |_| Rng::new(1, 0)) {
                assert_eq!(workload.hosts(), 16);
            }
        }
    }
});
