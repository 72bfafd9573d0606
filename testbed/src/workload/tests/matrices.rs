//! Tests of the `.cm` format: the public files, and refusals.

use proptest::prelude::*;
use weft_cc::{Span, Time};

use super::play;
use crate::topology::HostId;
use crate::workload::{
    CmOptions, CmReader, CmReason, Flow, LinkFailure, MessageNumber, Start, StartUnit, TriggerKind, Workload,
    parse_cm,
};

macro_rules! public_file {
    ($path:literal) => {
        ($path, include_str!(concat!("../../../data/", $path)))
    };
}

/// Every public `.cm` file.
const PUBLIC: [(&str, &str); 15] = [
    public_file!("matrices/a2a.cm"),
    public_file!("matrices/alltoall_serial_16n.cm"),
    public_file!("matrices/bidir.cm"),
    public_file!("matrices/incast.cm"),
    public_file!("matrices/incast_1024_100K.cm"),
    public_file!("matrices/incast_128.cm"),
    public_file!("matrices/one.cm"),
    public_file!("matrices/perm_1024n_1024c_0u_2000000b.cm"),
    public_file!("matrices/perm_128n_128c_2MB.cm"),
    public_file!("matrices/perm_16n_16c_2MB.cm"),
    public_file!("uno/0_8_1000MB.cm"),
    public_file!("uno/4_4_1000MB.cm"),
    public_file!("uno/8_0_1000MB.cm"),
    public_file!("uno/exp_paper.cm"),
    public_file!("uno/fail_one.cm"),
];

const AS_IS: CmOptions = CmOptions { hosts: None, start_unit: StartUnit::Microseconds, ignore_prio: false };

fn public(end: &str, hosts: Option<u32>) -> Workload {
    let (path, text) = PUBLIC.iter().find(|(path, _)| path.ends_with(end)).expect("a public file");
    parse_cm(path, text, CmOptions { hosts, ..AS_IS }).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn public_files_have_the_published_flows() {
    for (file, hosts, flows, triggers, bytes) in [
        ("alltoall_serial_16n.cm", None, 240, 224, 2_000_000),
        ("bidir.cm", None, 2, 0, 2_000_000),
        ("/incast.cm", None, 15, 0, 2_000_000),
        ("incast_1024_100K.cm", None, 1023, 0, 100_000),
        ("incast_128.cm", None, 127, 0, 2_000_000),
        ("one.cm", None, 1, 0, 2_000_000),
        ("perm_1024n_1024c_0u_2000000b.cm", None, 1024, 0, 2_000_000),
        ("perm_128n_128c_2MB.cm", None, 128, 0, 2_000_000),
        ("perm_16n_16c_2MB.cm", None, 16, 0, 2_000_000),
        ("0_8_1000MB.cm", Some(256), 8, 0, 1_000_000_000),
        ("4_4_1000MB.cm", Some(256), 8, 0, 1_000_000_000),
        ("8_0_1000MB.cm", Some(256), 8, 0, 1_000_000_000),
        ("exp_paper.cm", Some(256), 1008, 0, 1_000_000_000),
        ("fail_one.cm", None, 1, 0, 5_000_000),
    ] {
        let workload = public(file, hosts);
        assert_eq!(workload.flows().len(), flows, "{file}");
        assert_eq!(workload.connections().len(), flows, "{file}");
        assert_eq!(workload.triggers().len(), triggers, "{file}");
        assert_eq!(workload.flows()[0].bytes, bytes, "{file}");
        assert!(workload.flows().iter().all(|f| f.message.is_none()));
        play(&workload, 1, |_, _| {});
    }
}

#[test]
fn public_permutations_and_incasts_match_their_names() {
    for file in ["perm_1024n_1024c_0u_2000000b.cm", "perm_128n_128c_2MB.cm", "perm_16n_16c_2MB.cm"] {
        let workload = public(file, None);
        let sorted = |end: fn(&super::super::Flow) -> u32| {
            let mut hosts: Vec<u32> = workload.flows().iter().map(end).collect();
            hosts.sort_unstable();
            hosts
        };
        let all: Vec<u32> = (0..workload.hosts()).collect();
        assert_eq!((sorted(|f| f.src.0), sorted(|f| f.dst.0)), (all.clone(), all), "{file}");
    }
    for (file, receiver) in [("/incast.cm", 15), ("incast_128.cm", 33), ("incast_1024_100K.cm", 0)] {
        let workload = public(file, None);
        assert!(workload.flows().iter().all(|f| f.dst == HostId(receiver)), "{file}");
    }
}

#[test]
fn the_serial_all_to_all_is_sixteen_chains() {
    let workload = public("alltoall_serial_16n.cm", None);
    let mut most = 0;
    play(&workload, 7, |_, running| most = most.max(running.len()));
    assert_eq!(most, 16);
    let second = &workload.flows()[1];
    assert_eq!((second.src, second.dst), (HostId(2), HostId(4)));
    let Start::Trigger(first) = second.start else { panic!("the second flow waits") };
    assert_eq!(workload.flows()[0].on_sent, Some(first));
    assert_eq!(workload.started_by(first), [1]);
}

#[test]
fn public_files_with_wrong_headers_are_refused() {
    let refusal = |file: &str| {
        let (path, text) = PUBLIC.iter().find(|(path, _)| path.ends_with(file)).unwrap();
        parse_cm(path, text, AS_IS).unwrap_err().to_string()
    };
    assert_eq!(refusal("a2a.cm"), "matrices/a2a.cm:2: the header states 3600 Connections, the file has 240");
    assert_eq!(
        refusal("0_8_1000MB.cm"),
        "uno/0_8_1000MB.cm:3: host 240 does not exist: the workload has 32 hosts, counted from 0"
    );
    // With the counts corrected, the triggers are still missing.
    let text = PUBLIC[0].1.replace("3600", "240").replace("3360", "0");
    assert_eq!(
        parse_cm("a2a.cm", &text, AS_IS).unwrap_err().to_string(),
        "a2a.cm:4: trigger 1 is not defined"
    );
}

#[test]
fn start_times_are_microseconds_by_default() {
    let flow = public("exp_paper.cm", Some(256)).flows()[9];
    assert_eq!((flow.id, flow.start), (10, Start::At(Time::ZERO + Span::from_us(15_025))));
    let start = |text: &str, start_unit| {
        let text = format!("Nodes 2\nConnections 1\n0->1 start {text} size 1\n");
        parse_cm("x", &text, CmOptions { start_unit, ..AS_IS }).map(|w| w.flows()[0].start)
    };
    let at = |ps| Ok(Start::At(Time::from_ps(ps)));
    assert_eq!(start("2.5", StartUnit::Microseconds), at(2_500_000));
    assert_eq!(start("0.000001", StartUnit::Microseconds), at(1));
    assert_eq!(start("2500000", StartUnit::Picoseconds), at(2_500_000));
    assert!(start("0.0000001", StartUnit::Microseconds).is_err());
    assert!(start("2.5", StartUnit::Picoseconds).is_err());
    assert!(start("4611686018427387904", StartUnit::Picoseconds).is_ok());
    assert!(start("4611686018427387905", StartUnit::Picoseconds).is_err());
}

const EVERYTHING: &str = "\
# everything that a matrix can have
Nodes 8
Connections 7
Triggers 3
Failures 3

trigger id 30 barrier count 2
0->1 id 5 start 1.5 size 1000 send_done_trigger 30 prio 2000000 # first
1->2 size 4294967295 start 0 recv_done_trigger 30
2->3 trigger 30 id 1 size 0 send_done_trigger 10 recv_done_trigger 20
3->4 id 9 trigger 10 msg size 10
3->4 id 9 trigger 20 msg 7 size 20
3->4 id 9 msg start 3 size 30
4->5 trigger 30 size 5
failure switch_type AGG switch_id 3 link_id 1
trigger id 10 oneshot
trigger multishot id 20
failure link_id 4 switch_id 0 switch_type TOR
failure switch_type CORE switch_id 1 link_id 2
";

#[test]
fn every_keyword_is_read() {
    let w = parse_cm("x", EVERYTHING, AS_IS).unwrap();
    assert_eq!(w.hosts(), 8);
    let kinds: Vec<_> = w.triggers().iter().map(|t| (t.id, t.kind)).collect();
    let want = [(30, TriggerKind::Barrier(2)), (10, TriggerKind::Oneshot), (20, TriggerKind::Multishot)];
    assert_eq!(kinds, want);
    let flows = w.flows();
    // The second and the last flow have no number: they get unused ones.
    assert_eq!(flows.iter().map(|f| f.id).collect::<Vec<_>>(), [5, 2, 1, 9, 9, 9, 3]);
    assert_eq!(flows.iter().map(|f| f.connection).collect::<Vec<_>>(), [0, 1, 2, 3, 3, 3, 4]);
    let message = |f: &Flow| f.message.map(MessageNumber::get);
    assert_eq!(flows[2..6].iter().map(message).collect::<Vec<_>>(), [None, Some(0), Some(7), Some(0)]);
    assert_eq!((flows[1].bytes, flows[2].bytes), (u64::from(u32::MAX), 0));
    let trigger = |i: usize| w.started_by(crate::workload::TriggerIdx::new(i as u32).unwrap());
    assert_eq!((trigger(0), trigger(1), trigger(2)), (&[2, 6][..], &[3][..], &[4][..]));
    assert_eq!((flows[2].on_sent.unwrap().index(), flows[2].on_received.unwrap().index()), (1, 2));
    let failure = |tier, switch, link| LinkFailure { tier, switch, link };
    assert_eq!(w.failures(), [failure(1, 3, 1), failure(0, 0, 4), failure(2, 1, 2)]);
    play(&w, 3, |_, _| {});
}

#[test]
fn malformed_files_are_refused_with_file_line_and_reason() {
    let cases = [
        ("Nodes 8\n", "", "x.cm:1: `Nodes` is missing"),
        ("Nodes 8", "nodes 8", "x.cm:2: unknown word `nodes`"),
        ("Nodes 8", "Nodes", "x.cm:2: `Nodes` needs a value"),
        ("Nodes 8", "Nodes -8", "x.cm:2: `Nodes` cannot be `-8`"),
        ("Nodes 8", "Nodes 8 8", "x.cm:2: unknown word `8`"),
        ("Nodes 8", "Nodes 8\nNodes 8", "x.cm:3: `Nodes` is given twice"),
        ("Nodes 8", "Nodes 5", "x.cm:14: host 5 does not exist: the workload has 5 hosts, counted from 0"),
        ("trigger id 10 oneshot", "trigger id 10 oneshot\nNodes 8", "x.cm:17: `Nodes` belongs in the header"),
        ("Connections 7", "Connections 8", "x.cm:3: the header states 8 Connections, the file has 7"),
        ("Connections 7\n", "", "x.cm:18: the header states 0 Connections, the file has 7"),
        ("Triggers 3", "Triggers 2", "x.cm:4: the header states 2 Triggers, the file has 3"),
        ("Failures 3\n", "", "x.cm:18: the header states 0 Failures, the file has 3"),
        ("0->1 id 5", "0->x id 5", "x.cm:8: `0->x` is not of the form SRC->DST"),
        ("0->1 id 5", "0-> 1 id 5", "x.cm:8: `0->` is not of the form SRC->DST"),
        ("0->1 id 5", "-1->1 id 5", "x.cm:8: `-1->1` is not of the form SRC->DST"),
        ("0->1 id 5", "0->1->2 id 5", "x.cm:8: `0->1->2` is not of the form SRC->DST"),
        ("0->1 id 5", "1->1 id 5", "x.cm:8: host 1 would send to itself"),
        ("0->1 id 5", "0->8 id 5", "x.cm:8: host 8 does not exist: the workload has 8 hosts, counted from 0"),
        ("id 5 ", "id 0 ", "x.cm:8: `id` cannot be `0`"),
        ("id 5 ", "id 5 id 6 ", "x.cm:8: `id` is given twice"),
        ("id 5 ", "ID 5 ", "x.cm:8: unknown word `ID`"),
        ("id 5 start 1.5", "id 5 start -1", "x.cm:8: `start` cannot be `-1`"),
        ("id 5 start 1.5", "id 5", "x.cm:8: the flow has neither `start` nor `trigger`"),
        ("start 1.5", "start 1.5 trigger 10", "x.cm:8: the flow has both `start` and `trigger`"),
        ("size 1000 ", "", "x.cm:8: `size` is missing"),
        ("size 1000 ", "size -1000 ", "x.cm:8: `size` cannot be `-1000`"),
        ("size 1000 ", "size 1e3 ", "x.cm:8: `size` cannot be `1e3`"),
        (
            "size 4294967295",
            "size 72057594037927937",
            "x.cm:9: 72057594037927937 bytes are more than a flow can have (2^56)",
        ),
        ("prio 2000000 # first", "prio", "x.cm:8: `prio` needs a value"),
        ("prio 2000000 # first", "prio 7 first", "x.cm:8: unknown word `first`"),
        (
            "prio 2000000 # first",
            "prio 9",
            "x.cm:9: `prio` is 2000000 here and 9 before: expected 0 to 7, or the same for all flows (without `prio` it is \
             2000000, which means 0)",
        ),
        ("trigger 10 msg size", "trigger 10 msg -1 size", "x.cm:11: `msg` cannot be `-1`"),
        (
            "msg 7 size 20",
            "size 20",
            "x.cm:12: flow 9 is defined already; further messages of its connection need `msg`",
        ),
        ("msg 7 size", "msg 4294967295 size", "x.cm:12: `msg` cannot be `4294967295`"),
        ("id 9 msg start", "id 9 msg 7 start", "x.cm:13: message 7 of flow 9 is defined already"),
        (
            "3->4 id 9 msg start",
            "3->5 id 9 msg start",
            "x.cm:13: flow 9 goes from host 3 to host 4 in an earlier line",
        ),
        ("4->5 trigger 30", "4->5 trigger 40", "x.cm:14: trigger 40 is not defined"),
        ("send_done_trigger 10", "send_done_trigger 40", "x.cm:10: trigger 40 is not defined"),
        ("recv_done_trigger 20", "recv_done_trigger 0", "x.cm:10: `recv_done_trigger` cannot be `0`"),
        ("id 10 oneshot", "id 30 oneshot", "x.cm:16: trigger 30 is defined twice"),
        ("id 10 oneshot", "id 10", "x.cm:16: `oneshot, multishot or barrier` is missing"),
        ("id 10 oneshot", "id 10 twoshot", "x.cm:16: unknown word `twoshot`"),
        ("id 10 oneshot", "id 10 oneshot multishot", "x.cm:16: `type` is given twice"),
        ("id 10 oneshot", "id 10 oneshot count 3", "x.cm:16: unknown word `count`"),
        ("id 10 oneshot", "oneshot", "x.cm:16: `id` is missing"),
        ("barrier count 2", "barrier", "x.cm:7: `count` is missing"),
        ("barrier count 2", "barrier count 0", "x.cm:7: `count` cannot be `0`"),
        (
            "barrier count 2",
            "barrier count 3",
            "x.cm:7: trigger 30 needs 3 activations to start all of its flows but gets 2",
        ),
        (
            "send_done_trigger 10 ",
            "",
            "x.cm:16: trigger 10 is never activated: no flow names it as send_done_trigger or recv_done_trigger, no trigger after `then`, and it has no `at`",
        ),
        ("switch_type AGG", "switch_type SPINE", "x.cm:15: `switch_type` cannot be `SPINE`"),
        ("switch_type AGG ", "", "x.cm:15: `switch_type` is missing"),
        ("switch_type AGG", "switch_kind AGG", "x.cm:15: unknown word `switch_kind`"),
        ("link_id 4", "link_id -4", "x.cm:18: `link_id` cannot be `-4`"),
        ("failure switch_type AGG", "fail switch_type AGG", "x.cm:15: unknown word `fail`"),
    ];
    for (from, to, message) in cases {
        let text = EVERYTHING.replacen(from, to, 1);
        assert_ne!(text, EVERYTHING, "{from:?} is not in the file");
        let error = parse_cm("x.cm", &text, AS_IS).map(|w| w.hosts()).expect_err(to);
        assert_eq!(error.to_string(), message, "{from:?} -> {to:?}");
    }
    assert_eq!(parse_cm("x.cm", "", AS_IS).unwrap_err().to_string(), "x.cm:1: `Nodes` is missing");
}

#[test]
fn reading_line_by_line_gives_the_same_as_reading_the_whole_text() {
    let mut reader = CmReader::new("x", AS_IS);
    for line in EVERYTHING.replace('\n', "\r\n").split_inclusive('\n') {
        reader.line(line).unwrap();
    }
    assert_eq!(reader.finish(), parse_cm("x", EVERYTHING, AS_IS));
    let mut reader = CmReader::new("x.cm", AS_IS);
    reader.line("Nodes 8\n").unwrap();
    assert_eq!(reader.line("0->1 siz 3\n").unwrap_err().to_string(), "x.cm:2: unknown word `siz`");
}

/// Ids that are not consecutive, and errors far down in the file.
#[test]
fn ids_may_come_in_any_order() {
    let ids = [7, 8, 9, 3, 4, 100, 50, 101, 10, 1];
    let mut text = format!("Nodes 9\n\nConnections {}\n", ids.len() + 2);
    for id in ids {
        text += &format!("0->1 id {id} start 0 size 1\n# a line between\n");
    }
    text += "2->3 start 0 size 1\n";
    let with = |last: &str| parse_cm("x", &(text.clone() + last), AS_IS);
    let workload = with("2->3 start 0 size 1").unwrap();
    let numbers: Vec<u32> = workload.flows().iter().map(|f| f.id).collect();
    assert_eq!(numbers, [7, 8, 9, 3, 4, 100, 50, 101, 10, 1, 2, 5]);
    for id in ids {
        let again = with(&format!("0->1 id {id} start 0 size 1")).unwrap_err();
        assert_eq!((again.line, again.reason), (25, CmReason::RepeatedFlow(id)));
    }
    for (line, id) in (4..).step_by(2).zip(ids) {
        let given = format!("0->1 id {id} ");
        let text = text.replace(&given, &given.replace("0->1", "9->1")) + "2->3 start 0 size 1";
        let error = parse_cm("x", &text, AS_IS).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("x:{line}: host 9 does not exist: the workload has 9 hosts, counted from 0")
        );
    }
}

#[test]
fn the_number_of_hosts_in_the_options_replaces_that_of_the_file() {
    let hosts = |n| CmOptions { hosts: Some(n), ..AS_IS };
    let without_nodes = EVERYTHING.replace("Nodes 8\n", "");
    assert_eq!(parse_cm("x", &without_nodes, hosts(6)).unwrap().hosts(), 6);
    let message = parse_cm("x", EVERYTHING, hosts(5)).unwrap_err().to_string();
    assert_eq!(message, "x:14: host 5 does not exist: the workload has 5 hosts, counted from 0");
}

/// A valid word or number of the format, or almost one.
fn any_word() -> impl Strategy<Value = String> {
    let words = "Nodes Connections Triggers Failures id msg start trigger size send_done_trigger recv_done_trigger \
                 prio failure oneshot multishot barrier count switch_type switch_id link_id TOR AGG CORE # 0->1 2->3 1->0";
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    prop_oneof![
        6 => proptest::sample::select(words),
        3 => (0u32..5).prop_map(|n| n.to_string()),
        1 => any::<i64>().prop_map(|n| n.to_string()),
        1 => "\\PC{0,6}",
    ]
}

fn any_line() -> impl Strategy<Value = String> {
    proptest::collection::vec(any_word(), 0..8).prop_map(|words| words.join(" "))
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in "\\PC{0,200}(\n\\PC{0,60}){0,20}") {
        let _ = parse_cm("x", &text, AS_IS);
    }

    #[test]
    fn keyword_soup_never_panics(lines in proptest::collection::vec(any_line(), 0..30)) {
        let _ = parse_cm("x", &lines.join("\n"), CmOptions { hosts: Some(4), ..AS_IS });
    }

    /// Replaces, removes, repeats and swaps lines of valid files. If the result is still accepted, all of its
    /// flows start.
    #[test]
    fn mutated_files_never_panic(
        file in 0..=PUBLIC.len(),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any_line(), 0..4), 1..4),
    ) {
        let text = PUBLIC.get(file).map_or(EVERYTHING, |(_, text)| text);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for (at, line, kind) in edits {
            let i = at.index(lines.len());
            match kind {
                0 => lines[i] = line,
                1 => drop(lines.remove(i)),
                2 => lines.swap(i, at.index(i + 1)),
                _ => lines.insert(i, line),
            }
        }
        let options = CmOptions { hosts: Some(1024), ..AS_IS };
        if let Ok(workload) = parse_cm("x", &lines.join("\n"), options) {
            play(&workload, 5, |_, _| {});
        }
    }
}

#[test]
fn flows_have_the_priorities_that_prio_says() {
    let numbers = |words: [&str; 3]| {
        let [a, b, c] = words;
        let text = format!(
            "Nodes 3\nConnections 3\n0->1 id 1 start 0 size 1 {a}\n0->2 id 2 start 0 size 1 {b}\n\
             1->2 id 3 start 0 size 1 {c}\n"
        );
        let workload = parse_cm("x.cm", &text, CmOptions::default()).map_err(|error| error.to_string())?;
        Ok(workload.connections().iter().map(|c| c.priority.number()).collect::<Vec<_>>())
    };
    let refused: Result<Vec<u8>, String> = numbers(["prio 3", "prio 8", ""]);
    assert!(refused.unwrap_err().starts_with("x.cm:4: `prio` is 8 here and 3 before: expected 0 to 7"));
    assert_eq!(numbers(["prio 3", "", "prio 7"]), Ok(vec![3, 0, 7]));
    assert_eq!(numbers(["prio 2000000", "prio 1", ""]), Ok(vec![0, 1, 0]));
    assert_eq!(numbers(["prio 100", "prio 100", "prio 100"]), Ok(vec![0, 0, 0]), "all the same");
    let text = "Nodes 2\nConnections 2\n0->1 id 1 start 0 size 1 prio 1\n0->1 id 1 msg start 0 size 1\n";
    let ignored = parse_cm("x.cm", text, CmOptions { ignore_prio: true, ..AS_IS }).unwrap();
    assert_eq!((ignored.priorities(), ignored.connections().len()), (1, 1));
    let error = parse_cm("x.cm", text, CmOptions::default()).unwrap_err().to_string();
    assert_eq!(
        error,
        "x.cm:4: the messages of flow 1 differ; expected the same `prio`, `rate`, `path` and `pool` on each"
    );
}
