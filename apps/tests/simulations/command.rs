//! Tests of the `weft` command as its users see it: its output, errors and exit status.

use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

fn weft(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weft")).args(args).output().expect("weft starts")
}

fn run(args: &[&str]) -> Output {
    weft(&[&["run"], args].concat())
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).expect("UTF-8")
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("UTF-8")
}

/// A path of this test's own. `name` must be unique among the tests.
fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn file(name: &str, text: &str) -> String {
    let path = scratch(name);
    fs::write(&path, text).expect("the scratch directory is writable");
    path.to_str().expect("UTF-8").to_owned()
}

const SMALL: &[&str] = &["--workload", "incast:4", "--size", "100KB", "--json", "-"];

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_str(stdout(output)).expect("standard output is one JSON document and nothing else")
}

/// The keys of an object in their order: serde_json sorts those of a [`Value`], so they are taken
/// from the text, where the report indents its levels by two blanks each.
fn keys_at(text: &str, depth: usize) -> Vec<&str> {
    let indent = " ".repeat(2 * depth);
    text.lines()
        .filter_map(|line| line.strip_prefix(&indent)?.strip_prefix('"')?.split_once("\":"))
        .map(|(key, _)| key)
        .collect()
}

#[test]
fn the_json_report_has_exactly_its_keys() {
    let output = run(SMALL);
    let report = json(&output);
    let top = [
        "flows",
        "fct_us",
        "flow_slowdown",
        "by_size",
        "bound_us",
        "slowdown_max",
        "jain",
        "goodput_gbps",
        "packets",
        "timeouts",
        "rtt_us",
        "queues",
        "hot_spots",
        "unfinished",
        "state",
        "engine",
        "config",
        "seed",
    ];
    assert_eq!(keys_at(stdout(&output), 1), top);
    let parts: [(&str, &[&str]); 6] = [
        ("flows", &["completed", "total"]),
        ("fct_us", &["max", "mean", "min", "p50", "p99"]),
        ("rtt_us", &["count", "max", "mean", "min", "p50", "p99", "p999"]),
        ("packets", &["acks", "data", "dropped", "ecn_marked", "nacks", "retransmitted", "trimmed"]),
        ("state", &["bytes_per_flow", "bytes_per_host", "bytes_per_planned_flow"]),
        ("engine", &["cpu_s", "data_packets_per_cpu_s", "events", "max_rss_mb"]),
    ];
    for (part, expected) in parts {
        let mut keys: Vec<&String> = report[part].as_object().expect("an object").keys().collect();
        keys.sort();
        assert_eq!(keys, expected, "{part}");
    }
    for (key, value) in report.as_object().unwrap() {
        assert!(value.is_object() || value.is_number() || key == "unfinished", "{key} is {value}");
    }
}

#[test]
fn the_json_report_is_plausible() {
    let report = json(&run(SMALL));
    let number = |pointer: &str| report.pointer(pointer).and_then(Value::as_f64).expect(pointer);
    assert_eq!((number("/flows/total"), number("/flows/completed")), (4.0, 4.0));
    // 4 × 100 KB into one 100 Gbit/s link take 32 µs without any header.
    assert!(number("/bound_us") > 32.0 && number("/bound_us") < 36.0);
    assert!(number("/fct_us/max") > number("/bound_us"));
    assert!(number("/slowdown_max") > 1.0 && number("/slowdown_max") < 3.0);
    assert!(number("/goodput_gbps") < 100.0 && number("/goodput_gbps") > 30.0);
    assert!(number("/jain") > 0.5 && number("/jain") <= 1.0);
    assert!(number("/packets/data") >= 4.0 * 25.0, "100 KB are 25 packets of 4096 bytes");
    for pair in ["min", "p50", "p99", "max"].windows(2) {
        assert!(number(&format!("/fct_us/{}", pair[0])) <= number(&format!("/fct_us/{}", pair[1])));
    }
    assert_eq!(report["config"]["size_bytes"], 100_000);
    assert_eq!(report["config"]["hosts"], 5);
    assert_eq!(report["config"]["cc"], "nscc");
    assert_eq!(report["config"]["lb"], "mixed");
    assert_eq!(report["config"]["link_bps"], 100_000_000_000u64);
}

/// Long packets vanish on the receiver's link, while probes are answered.
#[test]
fn a_flow_without_progress_ends_after_the_busy_timeout() {
    let hole = ["--workload", "incast:1", "--hosts", "2", "--size", "100KB", "--trim", "off", "--json", "-"];
    let run_for = |busy_timeout: &str, until: &str| {
        let event =
            ["--link-event", "0us host=1 drop-over=2000", "--link-event", "0us host=0 drop-over=2000"];
        run(&[&hole[..], &event, &["--busy-timeout", busy_timeout, "--until", until]].concat())
    };
    let output = run_for("3ms", "100ms");
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("black hole") && text.contains("for 3 ms, though the peer answers"), "{text}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("standard output is a JSON document");
    assert_eq!(report["config"]["busy_timeout_us"], 3_000.0);
    let output = run_for("endless", "1s");
    assert!(!stderr(&output).contains("black hole"), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("standard output is a JSON document");
    assert_eq!(report["config"]["busy_timeout_us"], "endless");
}

/// Pods of four hosts. All flows of this matrix stay within their pods.
#[test]
fn hosts_of_a_pod_and_all_others_have_algorithms_of_their_own() {
    let matrix = file(
        "near.cm",
        "Nodes 16\nConnections 2\n0->3 id 1 start 0 size 50000\n9->10 id 2 start 0 size 90000\n",
    );
    let run_with = |options: &[&str]| {
        let fabric = ["--matrix", &matrix, "--topology", "fat-tree:k=4", "--json", "-"];
        let report = json(&run(&[&fabric[..], options].concat()));
        let config = |key| report["config"][key].as_str().expect("a text").to_owned();
        (report["fct_us"]["max"].as_f64().expect("a number"), config("cc"), config("windows"))
    };
    let (plain, cc, windows) = run_with(&[]);
    assert_eq!((cc.as_str(), windows.as_str()), ("nscc", "pair"));
    let options = ["--cc", "intra=constant,inter=nscc", "--cc-set", "intra.window=5KB", "--windows", "flow"];
    let near = run_with(&options);
    assert_eq!((near.1.as_str(), near.2.as_str()), ("intra=constant,inter=nscc", "flow"));
    assert!(near.0 > plain * 2.0, "one packet at a time: {} {plain}", near.0);
    let far = run_with(&["--cc", "nscc,inter=constant", "--cc-set", "inter.window=5KB"]);
    assert_eq!(far.1, "intra=nscc,inter=constant");
    assert!(far.0 < plain * 1.1, "no flow leaves its pod: {} {plain}", far.0);
}

/// A report without what the run cost.
fn repeatable(text: &str) -> String {
    let mut inside = false;
    let keep = |line: &&str| {
        inside |= line.starts_with("  \"engine\"");
        let dropped = inside;
        inside &= !line.starts_with("  }");
        !dropped
    };
    text.lines().filter(keep).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_same_seed_gives_the_same_report() {
    for lb in ["mixed", "reps", "oblivious"] {
        let args =
            ["--workload", "permutation", "--hosts", "16", "--size", "300KB", "--lb", lb, "--json", "-"];
        let with_seed = |seed| {
            let output = run(&[&args[..], &["--seed", seed]].concat());
            assert!(output.status.success(), "{}", stderr(&output));
            repeatable(stdout(&output))
        };
        let first = with_seed("5");
        assert!(first.contains("\"packets\"") && first.contains("\"config\"") && !first.contains("cpu_s"));
        assert_eq!(first, with_seed("5"), "{lb}");
        assert_ne!(first, with_seed("6"), "{lb}: the seed has no effect");
    }
}

#[test]
fn json_on_standard_output_replaces_the_table() {
    let alone = run(SMALL);
    assert!(stdout(&alone).starts_with('{') && stdout(&alone).ends_with("}\n"));
    assert_eq!(stderr(&alone), "", "no progress without a terminal");

    let path = scratch("report.json");
    let output = run(&["--workload", "incast:4", "--size", "100KB", "--json", path.to_str().unwrap()]);
    let table = stdout(&output);
    for word in ["incast:4", "4 of 4 done", "FCT", "bound", "Jain", "goodput", "trimmed", "timeouts", "took"]
    {
        assert!(table.contains(word), "no {word} in:\n{table}");
    }
    let written = fs::read_to_string(path).expect("the report");
    assert_eq!(repeatable(&written), repeatable(stdout(&alone)).trim_end());
}

#[test]
fn unfinished_flows_give_status_3_and_are_listed() {
    let output = run(&[SMALL, &["--until", "20us"]].concat());
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let report: Value = serde_json::from_str(stdout(&output)).expect("the report is written all the same");
    assert_eq!(report["flows"]["completed"], 0);
    assert!(report["slowdown_max"].is_null() && report["fct_us"]["max"].is_null());
    let lines: Vec<&str> = stderr(&output).lines().collect();
    assert_eq!(lines[0], "weft: 4 of 4 flows unfinished:");
    assert!(lines.len() >= 5, "a line for each: {lines:?}");
}

#[test]
fn the_flow_table_has_a_row_for_each_flow() {
    let path = scratch("flows.csv");
    let name = path.to_str().unwrap();
    assert!(run(&["--workload", "incast:4", "--size", "100KB", "--flows", name]).status.success());
    let text = fs::read_to_string(&path).expect("the table");
    let mut rows = text.lines();
    assert_eq!(rows.next(), Some("id,src,dst,bytes,start_us,end_us,fct_us,retransmitted,ideal_us,slowdown"));
    let rows: Vec<Vec<&str>> = rows.map(|row| row.split(',').collect()).collect();
    assert_eq!(rows.len(), 4);
    for row in &rows {
        assert_eq!((row.len(), row[2], row[3]), (10, rows[0][2], "100000"));
        let us = |column: usize| row[column].parse::<f64>().expect("a time");
        assert!(us(6) > 8.0 && (us(5) - us(4) - us(6)).abs() < 1e-5, "{row:?}");
        assert!((us(6) / us(8) - us(9)).abs() < 1e-4 && us(9) > 1.0, "{row:?}");
    }

    let late = run(&["--workload", "incast:4", "--size", "100KB", "--until", "20us", "--flows", name]);
    assert_eq!(late.status.code(), Some(3));
    let text = fs::read_to_string(&path).expect("the table");
    assert!(
        text.lines().skip(1).all(|row| row.split(',').nth(5) == Some("")),
        "unfinished ends are empty: {text}"
    );
}

#[test]
fn matrices_and_topologies_are_read_from_files() {
    let matrix = file("pair.cm", "Nodes 2\nConnections 1\n0->3 id 1 start 0 size 50000\n");
    let report = json(&run(&["--matrix", &matrix, "--hosts", "4", "--json", "-"]));
    assert_eq!((&report["config"]["hosts"], &report["flows"]["total"]), (&Value::from(4), &Value::from(1)));

    let refused = run(&["--matrix", &matrix]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains(&format!("{matrix}:3: ")), "{}", stderr(&refused));
    assert_eq!(stderr(&refused).lines().count(), 1);

    let crowded = file("crowded.cm", "# all of IPv4\nNodes 4294967295\nConnections 1\n0->3 start 0 size 5\n");
    let refused = run(&["--matrix", &crowded]);
    assert_eq!(refused.status.code(), Some(1));
    let expected =
        format!("weft: {crowded}:2: 4294967295 hosts are too many: a topology has at most 1048576\n");
    assert_eq!(stderr(&refused), expected);

    let latin = scratch("latin1.cm");
    fs::write(&latin, b"Nodes 2\nConnections 1\n0->1 start 0 size 5 # \xb5s\n").expect("writable");
    let refused = run(&["--matrix", latin.to_str().expect("UTF-8")]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(stderr(&refused), format!("weft: {}:3: not UTF-8 text\n", latin.display()));

    let topo = file("bad.topo", "Nodes 4\nTiers 2\nPodsize 4\nWheels 3\n");
    let refused = run(&["--workload", "permutation", "--topology", &topo]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains(&format!("{topo}:4: ")), "{}", stderr(&refused));

    for (option, expected) in [
        ("--matrix", "/dev/zero:1: this line is longer than 1 MiB"),
        ("--link-events", "/dev/zero: this file is longer than 256 MiB"),
    ] {
        let rest: &[&str] = if option == "--matrix" { &[] } else { &["--workload", "permutation"] };
        let endless = run(&[&[option, "/dev/zero"], rest].concat());
        assert_eq!((endless.status.code(), stderr(&endless)), (Some(1), &*format!("weft: {expected}\n")));
    }

    let absent = run(&["--matrix", "no-such-file.cm"]);
    assert_eq!(absent.status.code(), Some(1));
    assert!(stderr(&absent).starts_with("weft: no-such-file.cm: "));
}

#[test]
fn options_that_make_no_sense_are_refused_in_one_line() {
    let matrix = file("two.cm", "Nodes 4\nConnections 1\n0->3 id 1 start 0 size 50000\n");
    let cases: &[(&[&str], &str)] = &[
        (&["--matrix", &matrix, "--workload", "permutation"], "--matrix"),
        (&["--matrix", &matrix, "--size", "1MB"], "--size"),
        (&[], "--workload"),
        (&["--workload", "outcast:3"], "--workload: `outcast:3`"),
        (&["--workload", "incast:9", "--hosts", "4"], "--hosts: incast:9 needs at least 10 hosts"),
        (&["--workload", "incast:9", "--topology", "fat-tree:hosts=8"], "10 hosts"),
        (&["--workload", "permutation", "--hosts", "9", "--topology", "fat-tree:hosts=8"], "--topology"),
        (&["--workload", "permutation", "--topology", "fat-tree:k=4,link=50G", "--link", "100G"], "--link"),
        (
            &["--workload", "permutation", "--topology", "dumbbell:hosts=2,bottleneck=10G", "--link", "100G"],
            "--link: expected no link speeds in --topology dumbbell:hosts=2,bottleneck=10G",
        ),
        (&["--workload", "permutation", "--topology", "fat-tree:k=three"], "--topology"),
        (&["--workload", "permutation", "--paths", "0"], "--paths"),
        (&["--workload", "permutation", "--paths", "16385"], "1..=16384"),
        (&["--workload", "permutation", "--mtu", "0"], "--mtu"),
        (&["--workload", "permutation", "--ecn", "0.8,0.2"], "--ecn"),
        (&["--workload", "permutation", "--queue", "0"], "--queue"),
        (
            &["--workload", "permutation", "--wire-overhead", "64", "--queue", "4159"],
            "--queue: 4159 bytes never hold a packet; expected at least 4160 ",
        ),
        (&["--workload", "permutation", "--link", "100"], "--link"),
        (&["--workload", "permutation", "--until", "5"], "--until"),
        (&["--workload", "permutation", "--size", "100000000GB"], "--size"),
        (&["--workload", "permutation", "--size", "5GB", "--on", "udp"], "--size"),
        (&["--workload", "permutation:size=1MB", "--size", "2MB"], "--size"),
        (
            &["--workload", "poisson:load=0.5,flows=9,sizes=none.txt"],
            "--workload: poisson:load=0.5,flows=9,sizes=none.txt: sizes: none.txt: ",
        ),
        (&["--workload", "poisson:flows=9"], "--workload: expected load=SHARE"),
        (&["--workload", "permutation", "--trim", "maybe"], "--trim"),
        (&["--workload", "permutation", "--cc", "reno"], "--cc: unknown congestion control 'reno'"),
        (&["--workload", "permutation", "--cc-set", "speed=9"], "--cc-set: nscc has no parameter 'speed'"),
        (&["--workload", "permutation", "--cc-set", "gamma=0.5", "--cc-set", "gamma=0.6"], "given twice"),
        (
            &["--workload", "permutation", "--cc", "wan=nscc"],
            "--cc: unknown zone 'wan'; there are: intra, inter",
        ),
        (
            &["--workload", "permutation", "--cc-set", "intra.speed=9"],
            "--cc-set: nscc has no parameter 'speed'",
        ),
        (
            &["--workload", "permutation", "--on", "udp", "--lb", "intra=ecmp"],
            "--lb: there are no pods on kernel UDP, so zones have no effect; expected one value for all, or --on sim or soft",
        ),
        (&["--workload", "permutation", "--windows", "host"], "--windows"),
        (&["--workload", "permutation", "--busy-timeout", "never"], "or endless"),
        (&["--workload", "permutation", "--lb", "conga"], "--lb: unknown load balancer 'conga'"),
        (
            &["--workload", "permutation", "--cc", "median(constant)"],
            "--cc: constant does not react to single RTTs, which median filters, at character 8 of",
        ),
        (&["--workload", "permutation", "--lb-set", "ring=4"], "--lb-set: mixed has no parameter 'ring'"),
        (
            &["--workload", "permutation", "--lb-set", "nack=16"],
            "--lb-set: mixed: nack is '16', expected a whole number from 0 to 15",
        ),
        (
            &["--workload", "permutation", "--routing", "adaptive"],
            "expected ecmp, exact, adaptive:least-queue or",
        ),
        (
            &["--workload", "permutation", "--on", "udp", "--routing", "exact"],
            "--routing: has no effect on kernel UDP; expected --on sim",
        ),
        (
            &["--workload", "permutation", "--on", "udp", "--priorities", "2"],
            "--priorities: has no effect on kernel UDP; expected --on sim",
        ),
        (
            &["--workload", "permutation:priority=1", "--on", "udp"],
            "--workload: flows have priorities, but there are no switches on kernel UDP; expected --on sim or soft",
        ),
        (
            &["--workload", "permutation:priority=3", "--priorities", "2"],
            "--priorities: 2, but flows have priority 3; expected at least 4",
        ),
        (&["--workload", "incast:2,priority=8"], "priority: `8`; expected a number from 0 to 7"),
        (&["--workload", "permutation", "--priorities", "9"], "9 is not in 1..=8"),
        (&["--workload", "permutation", "--host", "queue=1MiB"], "one of the first two at least"),
        (
            &["--workload", "permutation", "--on", "soft", "--host", "per-packet=1us"],
            "--host: has no effect on software switches; expected --on sim",
        ),
        (
            &["--workload", "permutation", "--link-event", "1us host=1 gilbert=2,1"],
            "two to four probabilities: good to bad",
        ),
        (&["--workload", "permutation", "--flows", "-"], "--flows"),
        (&["--workload", "permutation", "--flows", "x", "--json", "x"], "--flows"),
        (&["--workload", "permutation", "--on", "loopback", "--link", "40G"], "--link"),
        (&["--workload", "permutation", "--on", "loopback", "--payload", "virtual"], "--payload"),
        (&["--workload", "permutation", "--on", "loopback", "--link-events", "x"], "--link-events"),
        (&["--workload", "permutation", "--on", "loopback", "--link-event", "x"], "--link-event"),
        (&["--workload", "permutation", "--on", "loopback", "--degrade", "tier=0,links=1"], "--degrade"),
        (
            &["--workload", "permutation", "--link-event", "1us host=16 fail"],
            "--link-event '1us host=16 fail':1:5: `host=16`: expected a host below 16",
        ),
        (&["--workload", "permutation", "--degrade", "tier=2,links=1"], "--degrade: `tier=2`: expected"),
        (&["--workload", "permutation", "--degrade", "tier=0,links=1,rate=25G"], "`rate=25G`: expected"),
        (&["--workload", "permutation", "--turbo"], "--turbo"),
    ];
    let just_one = ["--queue", "4160", "--wire-overhead", "64", "--workload", "permutation", "--size", "9KB"];
    assert!(run(&just_one).status.success(), "a queue of one packet is allowed");
    for (args, expected) in cases {
        let output = run(args);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
        assert!(message.starts_with("weft: ") && message.contains(expected), "{args:?}: {message}");
        assert_eq!((message.lines().count(), stdout(&output)), (1, ""), "{args:?}: {message}");
    }
}

#[test]
fn links_change_as_a_file_says() {
    const ONE_FLOW: &[&str] = &["--workload", "incast:1", "--size", "1MB", "--json", "-"];
    let outage = file("outage.links", "# host 0 receives\n20us host=0 fail\n\n50us host=0 restore # again\n");
    let slowest = |args: &[&str]| {
        let report = json(&run(&[ONE_FLOW, args].concat()));
        (report["fct_us"]["max"].as_f64().expect("a number"), report)
    };
    let (alone, report) = slowest(&[]);
    let config = &report["config"];
    assert!(config["link_events"].is_null() && config["link_event"] == json!([]), "{config}");
    let (cut_off, report) = slowest(&["--link-events", &outage]);
    // The 30 µs, and up to a few timeouts until all that was lost is noticed.
    assert!(cut_off > alone + 29.0 && cut_off < alone + 400.0, "{cut_off} µs instead of {alone} µs");
    assert!(report["packets"]["dropped"].as_u64() > Some(0));
    assert_eq!(report["config"]["link_events"], outage.as_str());
    // Of two changes at one time that of the command line counts.
    let saved = ["--link-events", &outage, "--link-event", "20us host=0 restore"];
    assert_eq!(slowest(&saved).0, alone);

    // With its headers 1 MB takes some 820 µs at 10 Gbit/s, and some 410 at 20.
    let (slow, report) =
        slowest(&["--degrade", "tier=0,links=1,rate=10%", "--link-event", "0us host=0 rate=20G"]);
    assert!((820.0..900.0).contains(&slow), "{slow} µs");
    let (at_20g, _) = slowest(&["--link-event", "0us host=0 rate=20G"]);
    assert!((410.0..450.0).contains(&at_20g), "{at_20g} µs");
    assert_eq!(report["config"]["link_event"], json!(["0us host=0 rate=20G"]));
    assert_eq!(report["config"]["degrade"], json!(["tier=0,links=1,rate=10%"]));
}

#[test]
fn errors_in_link_events_name_their_place() {
    let cases = [
        (
            "1us host=0 fail\n  2us host=0 flap\n",
            ":2:14: `flap`: expected fail or down, restore or up, rate=R,",
        ),
        ("5 host=0 fail\n", ":1:1: `5`: expected a time with a unit"),
        ("1us tier=0 switch=99 link=0 fail\n", ":1:12: `switch=99`: expected a switch of tier 0"),
    ];
    for (text, expected) in cases {
        let name = file("wrong.links", text);
        let output = run(&["--workload", "permutation", "--link-events", &name]);
        assert_eq!((output.status.code(), stdout(&output)), (Some(1), ""));
        assert!(stderr(&output).starts_with(&format!("weft: {name}{expected}")), "{}", stderr(&output));
    }
    let output = run(&["--workload", "permutation", "--link-events", "/no/such.links"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with("weft: /no/such.links: "), "{}", stderr(&output));
}

#[test]
fn no_file_is_written_twice_or_over_its_input() {
    let matrix = file("kept.cm", "Nodes 4\nConnections 1\n0->3 id 1 start 0 size 50000\n");
    let here = scratch("");
    let alias = |name: &str| here.join(".").join(name).to_str().expect("UTF-8").to_owned();
    let plain = |name: &str| here.join(name).to_str().expect("UTF-8").to_owned();
    let link = scratch("link-to-kept.cm");
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(&matrix, &link).expect("links are possible");
    let (ports, flows) = (alias("twice.ports.parquet"), alias("twice.flows.parquet"));
    let samples = ["--sample", "1us", "--sample-file", &plain("twice")];
    let cases: [(&[&str], &str, &str); 4] = [
        (&["--json", &plain("twice.json"), "--flows", &alias("twice.json")], "--flows", "--json"),
        (&["--json", link.to_str().expect("UTF-8")], "--json", "--matrix"),
        (&[&["--json", &ports][..], &samples].concat(), "--sample-file", "--json"),
        (&[&["--flows", &flows][..], &samples].concat(), "--sample-file", "--flows"),
    ];
    for (args, option, other) in cases {
        let output = run(&[&["--matrix", &matrix], args].concat());
        let expected = format!("weft: {option}: expected another file than that of {other}\n");
        assert_eq!((output.status.code(), stderr(&output)), (Some(2), &*expected), "{args:?}");
    }
    assert!(!scratch("twice.json").exists() && fs::metadata(&matrix).expect("still there").len() > 0);
    let apart = ["--matrix", &matrix, "--json", "-", "--flows", &plain("apart.csv")];
    assert!(run(&apart).status.success());
    let nowhere = ["--matrix", &matrix, "--json", "/dev/null", "--flows", "/dev/null"];
    assert!(run(&nowhere).status.success());
}

#[test]
fn without_traffic_there_is_no_bound() {
    let matrix = file("idle.cm", "Nodes 4\nConnections 0\n");
    let output = run(&["--matrix", &matrix]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("\n  bound     none: nothing crosses a link\n"), "{}", stdout(&output));
}

#[test]
fn an_unwritable_report_is_noticed_before_the_run() {
    let output = run(&["--workload", "incast:4", "--json", "/no/such/directory/report.json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with("weft: /no/such/directory/report.json: "));
    assert_eq!(stdout(&output), "");
}

#[test]
fn switches_have_as_many_priorities_as_flows_need_or_as_the_option_says() {
    let priorities = |options: &[&str]| {
        let report = json(&run(&[&["--hosts", "16", "--size", "10KB", "--json", "-"], options].concat()));
        report["config"].get("priorities").cloned()
    };
    let urgent = ["--workload", "incast:3", "--workload", "incast:2,priority=2"];
    assert_eq!(priorities(&urgent), Some(json!(3)));
    assert_eq!(priorities(&[&urgent[..], &["--priorities", "8"]].concat()), Some(json!(8)));
    assert_eq!(priorities(&["--workload", "incast:3"]), None);
}

#[test]
fn hosts_that_take_time_and_routing_are_reported() {
    let options = ["--host", "rate=50G,per-packet=1us", "--routing", "adaptive:quantised,sticky=5us"];
    let report = json(&run(&[SMALL, &options].concat()));
    let hosts = &report["host_queues"];
    assert!(hosts["wait_mean_us"].as_f64() >= Some(1.0) && hosts["dropped"] == 0, "{hosts}");
    assert!(hosts["processed"].as_u64() > report["packets"]["data"].as_u64(), "{hosts}");
    assert_eq!(
        report["config"]["host"],
        json!({"rate_bps": 50_000_000_000u64, "per_packet_us": 1.0, "queue_bytes": 1_048_576})
    );
    assert_eq!(report["config"]["routing"], "adaptive:quantised,sticky=5us");
    let table = run(&["--workload", "incast:4", "--size", "100KB", "--host", "per-packet=1us"]);
    assert!(stdout(&table).contains("  hosts     packets wait "), "{}", stdout(&table));
    assert!(json(&run(SMALL)).get("host_queues").is_none());
}

#[test]
fn lists_name_everything_that_can_be_chosen() {
    let cases: [(&str, &[&str]); 4] = [
        ("cc", &["nscc", "smartt", "dctcp", "rccc", "constant", "median(SENDER)", "SENDER+RECEIVER"]),
        ("lb", &["ecmp", "oblivious", "random", "round-robin", "plb", "reps", "bitmap", "mixed"]),
        ("topologies", &["leaf-spine", "fat-tree", "FILE.topo"]),
        (
            "workloads",
            &[
                "incast",
                "permutation",
                "all-to-all",
                "all-reduce",
                "poisson",
                "lognormal",
                "rpc",
                "bursts",
                "cbr",
                "FILE.cm",
            ],
        ),
    ];
    for (what, names) in cases {
        let output = weft(&["list", what]);
        assert!(output.status.success());
        let lines: Vec<&str> = stdout(&output).lines().filter(|line| !line.starts_with(' ')).collect();
        for name in names {
            let line = lines.iter().find(|line| line.split_whitespace().next() == Some(name));
            let line = line.unwrap_or_else(|| panic!("weft list {what} lacks {name}: {lines:#?}"));
            assert!(line.trim_end().ends_with(']') && line.contains('['), "{line} has no source");
        }
    }
    let one = weft(&["list", "cc", "nscc"]);
    assert!(stdout(&one).starts_with("nscc ") && stdout(&one).contains("\n    gamma: "), "{}", stdout(&one));
    let both = stdout(&weft(&["list", "cc", "median(nscc)+rccc"])).to_owned();
    assert!(["median(SENDER) ", "nscc ", "rccc "].iter().all(|part| both.contains(part)), "{both}");
    assert!(stdout(&weft(&["list", "lb", "reps"])).contains("\n    freeze: "));
    let unknown = weft(&["list", "lb", "conga"]);
    assert_eq!((unknown.status.code(), stdout(&unknown)), (Some(2), ""));
    let expected = "weft: no 'conga' in this list; expected one of: ";
    assert!(stderr(&unknown).starts_with(expected) && stderr(&unknown).contains("bitmap, "));
    assert_eq!(weft(&["list", "colours"]).status.code(), Some(2));
}

#[test]
fn everything_listed_can_be_run() {
    for (what, option) in [("cc", "--cc"), ("lb", "--lb")] {
        let output = weft(&["list", what]);
        let names = stdout(&output).lines().filter(|line| !line.starts_with(' '));
        for name in names.filter_map(|line| line.split_whitespace().next()) {
            let name = name.replace("SENDER", "nscc").replace("RECEIVER", "rccc");
            let args = ["--workload", "incast:3", "--size", "40KB", option, &name, "--json", "-"];
            let report = json(&run(&args));
            assert_eq!(report["config"][what], name);
        }
    }
}

#[test]
fn the_version_tells_release_revision_and_dpdk() {
    let output = weft(&["--version"]);
    let line = stdout(&output).trim_end();
    let inner = line.strip_prefix(concat!("weft ", env!("CARGO_PKG_VERSION"), " (git "));
    let parts = inner.and_then(|rest| rest.strip_suffix(')')?.split_once(", DPDK "));
    let (revision, dpdk) = parts.unwrap_or_else(|| panic!("{line}"));
    assert!(revision == "unknown" || revision.bytes().all(|b| b.is_ascii_hexdigit()), "{line}");
    assert_eq!(dpdk != "none", cfg!(feature = "dpdk"), "{line}");
}
