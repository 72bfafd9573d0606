//! Tests of fabric descriptions.

use proptest::prelude::*;

use super::public;
use crate::topology::{SpecError, Topology, TopologySpec};

fn build(text: &str) -> Topology {
    text.parse::<TopologySpec>().and_then(|spec| spec.build()).unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn descriptions_make_the_fabrics_of_the_public_files() {
    for (text, file) in [
        ("fat-tree:k=16", "fat_tree_1024.topo"),
        ("fat-tree:hosts=1024,link=200G", "fat_tree_1024_1os.topo"),
        ("fat-tree:k=16,oversub=4,link=200Gbps", "fat_tree_1024_4os.topo"),
        ("fat-tree:agg-oversub=2,k=16,oversub=4", "fat_tree_1024_8os.topo"),
        ("fat-tree:k=8,latency=1000ns,switch-latency=0", "fat_tree_128_1os.topo"),
        ("fat-tree:k=32", "fat_tree_8192_1os.topo"),
        ("leaf-spine:hosts=1024,leaves=32", "leaf_spine_1024.topo"),
        ("leaf-spine:hosts=1024,leaves=32,spines=8", "leaf_spine_1024_oversub.topo"),
        ("leaf-spine:hosts=1024,leaves=32,oversub=8", "leaf_spine_1024_oversub_8-1.topo"),
        ("leaf-spine:hosts=8192,leaves=128,spines=64,oversub=1", "leaf_spine_8192_100g.topo"),
        ("leaf-spine:hosts=32,leaves=4,spines=2", "leaf_spine_tiny.topo"),
    ] {
        let (ours, theirs) = (build(text), public(file));
        assert_eq!((ours.hosts(), ours.tiers()), (theirs.hosts(), theirs.tiers()), "{text}");
        assert_eq!(ours.ports(), theirs.ports(), "{text}");
    }
}

#[test]
fn the_name_is_the_description_in_full() {
    for (text, name) in [
        ("fat-tree:k=4", "fat-tree:k=4,hosts=16"),
        ("fat-tree:hosts=9,oversub=2", "fat-tree:k=4,hosts=9,oversub=2"),
        ("leaf-spine:leaves=2,hosts=8", "leaf-spine:hosts=8,leaves=2,spines=4"),
        (
            "leaf-spine:hosts=8,leaves=2,spines=1,bundle=2,link=25G,uplink=50G,latency=500ns,switch-latency=1.5us",
            "leaf-spine:hosts=8,leaves=2,spines=1,bundle=2,uplink=50000000000bps,link=25000000000bps,\
             latency=500000ps,switch-latency=1500000ps",
        ),
    ] {
        assert_eq!(build(text).name(), name);
        assert_eq!(build(name), build(text));
    }
    assert!(TopologySpec::looks_like_one("fat-tree:k=4"));
    assert!(!TopologySpec::looks_like_one("fat-tree.topo"));
    assert!(!TopologySpec::looks_like_one("./leaf-spine"));
}

#[test]
fn errors_of_bad_descriptions_give_the_reason() {
    for (text, message) in [
        (
            "torus:k=4",
            "`torus` is not a topology generator: expected leaf-spine, fat-tree, two-dc, dumbbell or parking-lot",
        ),
        ("fat-tree", "fat-tree needs k=K or hosts=H"),
        ("fat-tree:", "fat-tree needs k=K or hosts=H"),
        ("fat-tree:k", "`k` is not of the form key=value"),
        ("fat-tree:k=4,", "`` is not of the form key=value"),
        ("fat-tree:k=4,k=8", "`k` is given twice"),
        ("fat-tree:k=0", "k: `0` is not a number above zero"),
        ("fat-tree:k=-4", "k: `-4` is not a number above zero"),
        ("fat-tree:k=5", "k=5: a fat tree needs an even k of at least 2"),
        ("fat-tree:k=8,oversub=3", "oversub=3 does not divide the 4 uplinks of k=8"),
        ("fat-tree:k=8,agg-oversub=8", "agg-oversub=8 does not divide the 4 uplinks of k=8"),
        ("fat-tree:k=4,hosts=17", "17 hosts: there must be 1 to 16"),
        ("fat-tree:k=4294967294", "k=4294967294 is too large"),
        ("fat-tree:k=1000", "250000000 hosts: there must be 1 to 1048576"),
        (
            "fat-tree:k=4,spines=2",
            "fat-tree has no key `spines`: it has k, hosts, oversub, agg-oversub, link, latency, switch-latency",
        ),
        (
            "fat-tree:k=4,link=100",
            "link: `100` is not a rate above zero with its unit (k, M, G or T, such as 100G or 2.5Gbps)",
        ),
        (
            "fat-tree:k=4,latency=1",
            "latency: `1` is not a time in whole picoseconds with its unit (ps, ns, us, ms or s, such as 10us or 1.5ms)",
        ),
        ("fat-tree:k=4,latency=1001s", "the latency of a link must be at most 1000 s"),
        (
            "leaf-spine:hosts=4,leaves=4,latency=18446744073709551615ps",
            "the latency of a link must be at most 1000 s",
        ),
        ("fat-tree:k=4,switch-latency=5000000s", "the latency of a switch must be at most 1000 s"),
        ("leaf-spine:leaves=4", "leaf-spine needs hosts=H"),
        ("leaf-spine:hosts=4", "leaf-spine needs leaves=L"),
        ("leaf-spine:hosts=10,leaves=4", "10 hosts cannot be spread evenly over 4 leaves"),
        (
            "leaf-spine:hosts=64,leaves=4,oversub=3",
            "no number of spines makes an oversubscription of 3:1 with 16 hosts a leaf",
        ),
        (
            "leaf-spine:hosts=64,leaves=4,oversub=4,spines=8",
            "8 spines do not make an oversubscription of 4:1",
        ),
        ("leaf-spine:hosts=64,leaves=4,spines=4294967295,bundle=2", "too many links"),
    ] {
        let error = text.parse::<TopologySpec>().and_then(|spec| spec.build()).map(|t| t.name().to_owned());
        assert_eq!(error.expect_err(text).to_string(), message, "{text}");
    }
}

proptest! {
    #[test]
    fn arbitrary_descriptions_never_panic(
        text in "(fat-tree|leaf-spine)?:?\
                 ((k|hosts|leaves|spines|oversub|bundle|link|uplink)=[0-9]{1,10}G?,?){0,6}\\PC{0,10}",
    ) {
        if let Ok(spec) = text.parse::<TopologySpec>() {
            prop_assert_eq!(spec.to_string().parse::<TopologySpec>(), Ok(spec));
        }
    }

    #[test]
    fn descriptions_survive_being_printed(
        leaves in 1u32..100, per_leaf in 1u32..50, spines in 1u32..40, bundle in 1u32..5,
        link in 1u64..1_000_000_000_000, uplink in 1u64..1_000_000_000_000,
        latency in any::<u32>(), switching in any::<u32>(),
    ) {
        let text = format!(
            "leaf-spine:hosts={},leaves={leaves},spines={spines},bundle={bundle},link={link}bps,uplink={uplink}bps,\
             latency={latency}ps,switch-latency={switching}ps",
            leaves * per_leaf
        );
        let spec: TopologySpec = text.parse().unwrap();
        let printed: Result<TopologySpec, SpecError> = spec.to_string().parse();
        prop_assert_eq!(printed, Ok(spec));
    }
}
