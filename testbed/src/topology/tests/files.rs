//! Tests of the `.topo` format, above all of refusals.

use proptest::prelude::*;

use super::{BUNDLED, PUBLIC};
use crate::topology::{Keyword, parse_topo};

const GOOD: &str = "\
Nodes 32
Tiers 2
Podsize 32

Tier 0
Downlink_speed_Gbps 100
Radix_Down 8
Radix_Up 2
Downlink_Latency_ns 1000
Switch_Latency_ns 0
Oversubscribed 4

Tier 1
Downlink_speed_Gbps 100
Radix_Down 4
Downlink_Latency_ns 1000
";

/// The error message for `GOOD` with `line` replaced by `by`.
fn refusal(line: &str, by: &str) -> String {
    let text = GOOD.replacen(line, by, 1);
    assert_ne!(text, GOOD, "{line:?} is not in the file");
    parse_topo("x.topo", &text).map(|t| t.name().to_owned()).expect_err(by).to_string()
}

#[test]
fn keywords_are_listed_in_enum_order() {
    for (i, (keyword, _)) in Keyword::ALL.iter().enumerate() {
        assert_eq!(*keyword as usize, i);
    }
}

#[test]
fn malformed_files_are_refused_with_file_line_and_reason() {
    assert!(parse_topo("x.topo", GOOD).is_ok());
    let cases = [
        ("Nodes 32\n", "", "x.topo:15: Nodes is missing in the header"),
        ("Tiers 2\n", "", "x.topo:15: Tiers is missing in the header"),
        ("Podsize 32\n", "", "x.topo:15: Podsize is missing in the header"),
        ("Nodes 32", "Nodes", "x.topo:1: Nodes needs a number"),
        ("Nodes 32", "Nodes -32", "x.topo:1: Nodes cannot be `-32`"),
        ("Nodes 32", "Nodes 0", "x.topo:1: Nodes cannot be `0`"),
        ("Nodes 32", "Nodes 4294967296", "x.topo:1: Nodes cannot be `4294967296`"),
        ("Nodes 32", "Nodes 32 64", "x.topo:1: unexpected `64` at the end of the line"),
        ("Nodes 32", "Nodes 32\nNodes 32", "x.topo:2: Nodes is given twice"),
        ("Nodes 32", "Hosts 32", "x.topo:1: unknown word `Hosts`"),
        ("Nodes 32", "Nodes 40", "x.topo:3: 40 nodes do not fill pods of 32"),
        ("Nodes 32", "Nodes 64", "x.topo:3: 2 pods: a fabric of two tiers is one pod"),
        ("Tiers 2", "Tiers 1", "x.topo:13: there is no tier 1 in a fabric of 1 tiers"),
        ("Tiers 2", "Tiers 4", "x.topo:2: Tiers cannot be `4`"),
        ("Tiers 2", "Tiers 3", "x.topo:16: there is no section for tier 2"),
        ("Tier 1", "Tier 0", "x.topo:13: tier 0 has two sections"),
        ("Tier 1", "Tier 2", "x.topo:13: there is no tier 2 in a fabric of 2 tiers"),
        ("Tier 1", "Tier one", "x.topo:13: Tier cannot be `one`"),
        ("Tier 1", "Tier 1\nNodes 32", "x.topo:14: Nodes does not belong here"),
        ("Podsize 32", "Podsize 32\nBundle 1", "x.topo:4: Bundle does not belong here"),
        ("Downlink_speed_Gbps 100", "Downlink_speed_Gbps 0", "x.topo:6: Downlink_speed_Gbps cannot be `0`"),
        ("Downlink_speed_Gbps 100\n", "", "x.topo:5: Downlink_speed_Gbps is missing for tier 0"),
        ("Downlink_Latency_ns 1000\nSw", "Sw", "x.topo:5: Downlink_Latency_ns is missing for tier 0"),
        ("Latency_ns 1000", "Latency_ns 1e3", "x.topo:9: Downlink_Latency_ns cannot be `1e3`"),
        ("Radix_Down 8\n", "", "x.topo:5: Radix_Down is missing for tier 0"),
        ("Radix_Up 2\n", "", "x.topo:5: Radix_Up is missing for tier 0"),
        ("Radix_Up 2", "Radix_Up 2\nradix_up 2", "x.topo:9: Radix_Up is given twice"),
        ("Radix_Up 2", "Radix_Up 2.0", "x.topo:8: Radix_Up cannot be `2.0`"),
        (
            "Radix_Up 2",
            "Radix_Up 4",
            "x.topo:11: tier 0 is said to be oversubscribed 4:1, but its links are 800 Gbit/s down, 400 Gbit/s up",
        ),
        (
            "Oversubscribed 4\n",
            "",
            "x.topo:5: tier 0 is said to be oversubscribed 1:1, but its links are 800 Gbit/s down, 200 Gbit/s up",
        ),
        ("Radix_Down 4", "Radix_Down 4\nOversubscribed 2", "x.topo:16: Oversubscribed does not belong here"),
        ("Radix_Down 4", "Radix_Down 4\nQueue_Up 9000", "x.topo:16: Queue_Up does not belong here"),
        ("Radix_Down 4", "Radix_Down 4\nRadix_Up 4", "x.topo:16: nothing is above the top tier"),
        (
            "Radix_Down 4",
            "Radix_Down 8",
            "x.topo:15: 8 ports down, but 4 ToRs of its pod times a bundle of 1 make 4",
        ),
        (
            "Switch_Latency_ns 0",
            "Bundle 2",
            "x.topo:10: a bundle of 2 links: hosts have one link, \
          switches one or more to each other",
        ),
        ("Radix_Down 4", "Radix_Down 9\nBundle 2", "x.topo:15: 9 ports down do not divide into bundles of 2"),
        (
            "Radix_Down 4",
            "Radix_Down 12\nBundle 3",
            "x.topo:8: 2 ports up do not divide into tier 1's bundles of 3",
        ),
        ("Podsize 32", "Podsize 16", "x.topo:3: 2 pods: a fabric of two tiers is one pod"),
        (
            "Radix_Down 8\nRadix_Up 2",
            "Radix_Down 12\nRadix_Up 3",
            "x.topo:3: 32 hosts per pod do not fill ToRs of 12 hosts",
        ),
    ];
    for (line, by, message) in cases {
        assert_eq!(refusal(line, by), message, "{line:?} -> {by:?}");
    }
}

#[test]
fn empty_files_and_huge_fabrics_are_refused() {
    let message = |text: &str| parse_topo("x", text).unwrap_err().to_string();
    assert_eq!(message(""), "x:1: Nodes is missing in the header");
    assert_eq!(message("# nothing\n\n"), "x:2: Nodes is missing in the header");
    let huge = |hosts: &str, radix: &str| {
        GOOD.replace("Nodes 32", &format!("Nodes {hosts}"))
            .replace("Podsize 32", &format!("Podsize {hosts}"))
            .replace("Radix_Down 4", &format!("Radix_Down {radix}"))
    };
    let text = huge("2097152", "262144");
    assert_eq!(message(&text), "x:1: 2097152 hosts: there must be 1 to 1048576");
    // 2^17 leaves with 2^16 uplinks each.
    let wide = huge("1048576", "131072")
        .replace("Radix_Up 2", "Radix_Up 65536")
        .replacen("Gbps 100", "Gbps 819200", 1)
        .replace("Oversubscribed 4", "Oversubscribed 1");
    assert_eq!(message(&wide), "x:1: more than 8388608 ports");
}

#[test]
fn case_comments_tabs_and_order_are_ignored() {
    let text =
        GOOD.replace("Tier 0", "TIER\t0 # leaves").replace("Radix_Up", "radix_up").replace('\n', "\r\n");
    assert_eq!(parse_topo("x", &text), parse_topo("x", GOOD));
    let (header, tiers) = GOOD.split_once("Tier 0").unwrap();
    let (leaves, spines) = tiers.split_once("Tier 1").unwrap();
    let swapped = format!("{header}Tier 1{spines}\nTier 0{leaves}");
    assert_eq!(parse_topo("x", &swapped), parse_topo("x", GOOD));
}

#[test]
fn rates_may_have_decimals() {
    let text = GOOD.replace("Gbps 100", "Gbps 12.5");
    assert_eq!(parse_topo("x", &text).unwrap().host_rate().as_bps(), 12_500_000_000);
}

/// A valid line of the format, or almost one.
fn any_line() -> impl Strategy<Value = String> {
    let word = proptest::sample::select(Keyword::ALL.map(|(_, name)| name).to_vec());
    let number = prop_oneof![
        4 => (0u64..20).prop_map(|n| n.to_string()),
        1 => any::<u64>().prop_map(|n| n.to_string()),
        1 => "[-+.0-9a-z#]{0,8}",
    ];
    prop_oneof![8 => (word, number).prop_map(|(w, n)| format!("{w} {n}")), 1 => "\\PC{0,30}"]
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in "\\PC{0,200}(\n\\PC{0,60}){0,20}") {
        let _ = parse_topo("x", &text);
    }

    #[test]
    fn keyword_soup_never_panics(lines in proptest::collection::vec(any_line(), 0..40)) {
        let _ = parse_topo("x", &lines.join("\n"));
    }

    /// Replaces, removes and repeats lines of valid files. If the result is still accepted, it is a
    /// consistent fabric.
    #[test]
    fn mutated_files_never_panic(
        file in 0..=PUBLIC.len(),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any_line(), 0..3), 1..4),
    ) {
        let text = PUBLIC.get(file).map_or(BUNDLED, |(_, text)| text);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for (at, line, kind) in edits {
            let i = at.index(lines.len());
            match kind {
                0 => lines[i] = line,
                1 => drop(lines.remove(i)),
                _ => lines.insert(i, line),
            }
        }
        if let Ok(fabric) = parse_topo("x", &lines.join("\n")) {
            prop_assert!(fabric.hosts() > 0);
            prop_assert!(fabric.ports().iter().all(|p| fabric.port(p.reverse).owner == p.peer));
        }
    }
}
