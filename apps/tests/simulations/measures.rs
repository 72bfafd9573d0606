//! Tests of what `weft run` says about queues, hot spots, and flows whose packets a link has lost.

use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weft")).arg("run").args(args).output().expect("weft starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("measures-{name}"))
}

const INCAST: &[&str] =
    &["--workload", "incast:15", "--size", "200KB", "--topology", "leaf-spine:hosts=16,leaves=4,spines=2"];

#[test]
fn the_link_to_the_receiver_of_an_incast_is_the_hot_spot() {
    let path = scratch("incast.links.csv");
    let output = run(&[INCAST, &["--json", "-", "--links", path.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    let (queues, hot) = (&report["queues"], &report["hot_spots"]);
    for kind in ["busiest", "most_queued", "most_trimmed", "most_marked"] {
        let link = &hot[kind][0];
        assert!(link["link"].as_str().unwrap().ends_with(">host0"), "{kind}: {link}");
    }
    let most = &hot["most_queued"][0];
    assert_eq!(most["queue_max_bytes"].as_f64(), queues["port_max_bytes"].as_f64());
    assert_eq!(most["queue_mean_bytes"], queues["port_mean_bytes"]);
    let number = |key: &str| queues[key].as_f64().unwrap();
    assert!(number("tor_max_bytes") >= number("port_max_bytes"), "{queues}");
    assert!(number("agg_mean_bytes") < number("tor_mean_bytes"), "{queues}");
    assert_eq!(report["unfinished"].as_array().unwrap().len(), 0);
    let rtt = |key: &str| report["rtt_us"][key].as_f64().unwrap();
    let rising = ["min", "p50", "p99", "p999", "max"].map(rtt);
    assert!(rising.is_sorted() && rising[0] > 0.0 && rising[4] > rising[0], "{rising:?}");
    // No ACK is of more than all data.
    assert!(rtt("count") > 100.0 && rtt("count") <= report["packets"]["acks"].as_f64().unwrap(), "{report}");

    let table = fs::read_to_string(path).expect("a table of links");
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(
        rows[0].join(" "),
        "owner peer port tier direction sent_bytes utilisation queue_max_bytes queue_mean_bytes trimmed dropped lost \
         ecn_marked"
    );
    // 16 links each way below the leaves, 8 each way above; and 6 switches.
    assert_eq!((rows.len(), rows.iter().all(|row| row.len() == 13)), (1 + 48 + 6, true));
    let sum = |rows: &[Vec<&str>], column: usize| {
        rows.iter().map(|row| row[column].parse::<u64>().unwrap()).sum::<u64>()
    };
    let (links, switches) = rows[1..].split_at(48);
    for (column, key) in [(9, "trimmed"), (12, "ecn_marked")] {
        let total = report["packets"][key].as_u64().unwrap();
        assert!(total > 0);
        assert_eq!((sum(links, column), sum(switches, column)), (total, total), "{key}");
    }
    assert!(switches.iter().all(|row| row[1].is_empty() && !row[7].is_empty()), "{switches:?}");
}

#[test]
fn the_report_for_people_names_queues_and_hot_spots() {
    let output = run(INCAST);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = text(&output.stdout);
    let line = |name: &str| {
        report
            .lines()
            .find(|line| line.trim_start().starts_with(name))
            .unwrap_or_else(|| panic!("{name}: {report}"))
    };
    assert!(line("queues").contains(" at most, at tor0>host0; in one tor "), "{report}");
    assert!(line("hot spots").contains("busiest tor0>host0 "), "{report}");
    assert!(line("most trimmed").contains("tor0>host0 "), "{report}");
}

#[test]
fn an_unfinished_flow_says_which_link_lost_its_packets_and_since_when_it_is_down() {
    let args = [
        "--workload",
        "incast:2",
        "--size",
        "1MB",
        "--link-event",
        "20us host=1 fail",
        "--until",
        "2ms",
        "--json",
    ];
    let path = scratch("unfinished.json");
    let output = run(&[&args[..], &[path.to_str().unwrap()]].concat());
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert!(
        text(&output.stderr)
            .contains("by the link host1>tor0, which is down since 20.0 µs, or the queue before it"),
        "{}",
        text(&output.stderr)
    );
    let report: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let flows = report["unfinished"].as_array().unwrap();
    let flow = flows.iter().find(|flow| flow["src"] == 1).expect("the flow of the host whose link failed");
    assert_eq!((&flow["lost_by"], &flow["down_since_us"]), (&"host1>tor0".into(), &20.0.into()));
    assert!(flow["lost_at_us"].as_f64().unwrap() >= 20.0, "{flow}");
}

#[test]
fn links_are_measured_in_simulations_only() {
    let refused = |args: &[&str]| {
        let output = run(&[&["--workload", "permutation", "--hosts", "2"], args].concat());
        assert_eq!(output.status.code(), Some(2));
        text(&output.stderr).to_owned()
    };
    assert!(refused(&["--on", "udp", "--links", "l.csv"]).contains("--links: has no effect on"));
    assert!(refused(&["--links", "-"]).contains("--links: expected a file name"));
    assert!(
        refused(&["--links", "x.csv", "--flows", "x.csv"])
            .contains("--links: expected another file than that of --flows")
    );
}
