//! Generated workloads on the command line: their reports, and what is refused.

use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

fn weft(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weft")).args(args).output().expect("weft starts")
}

fn run(args: &[&str]) -> Output {
    weft(&[&["run"], args].concat())
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

fn json(args: &[&str]) -> Value {
    let output = run(&[args, &["--json", "-"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("a JSON document")
}

fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("workloads-{name}"))
}

const FABRIC: [&str; 2] = ["--topology", "leaf-spine:hosts=16,leaves=4,spines=4"];

#[test]
fn workloads_are_laid_over_one_another_and_their_tasks_reported() {
    let workload = [
        "--workload",
        "poisson:load=0.3,sizes=WebSearch,flows=60",
        "--workload",
        "all-reduce:ring,size=64KiB,ranks=4,iterations=3,compute=10us",
        "--workload",
        "rpc:load=0.01,sizes=100,response=5KB,flows=20",
    ];
    let args = [&FABRIC[..], &workload].concat();
    let report = json(&args);
    let number = |pointer: &str| report.pointer(pointer).and_then(Value::as_f64).expect(pointer);
    assert_eq!(number("/flows/total"), 60.0 + 3.0 * 24.0 + 40.0);
    assert_eq!((number("/tasks/2/total"), number("/tasks/2/completed")), (3.0, 3.0));
    assert_eq!((number("/tasks/3/total"), report["tasks"]["1"].is_null()), (20.0, true));
    assert_eq!(report["tasks"]["2"]["workload"], workload[3]);
    assert!(number("/tasks/2/slowdown/min") >= 1.0 && number("/tasks/3/slowdown/p50") < 1.5);
    assert!(number("/flow_slowdown/min") > 0.999);
    let groups = ["below_mtu", "below_bdp", "below_8_bdp", "larger"];
    let flows: f64 = groups.iter().map(|group| number(&format!("/by_size/{group}/flows"))).sum();
    assert_eq!(flows, number("/flows/completed"));
    assert!(report["config"]["workload"].as_str().unwrap().contains(workload[5]));
    let printed = run(&args);
    for expected in
        ["\n  slowdown  mean ", "\n   < MTU    ", "3 of 3 of all-reduce:ring", "\n            ideal "]
    {
        assert!(text(&printed.stdout).contains(expected), "{expected} in {}", text(&printed.stdout));
    }
}

#[test]
fn background_traffic_has_rows_of_its_own_and_is_left_out_of_completion_times() {
    let flows = [
        "--workload",
        "permutation:size=200KB",
        "--workload",
        "cbr:from=0,to=9,rate=40G,duration=50us,path=1",
        "--workload",
        "cbr:from=1,to=8,rate=10G,duration=50us",
    ];
    let args = [&FABRIC[..], &flows].concat();
    let report = json(&args);
    let row = |n: usize| {
        let row = &report["background"][n];
        let reached = row["goodput_gbps"].as_f64().unwrap() / row["rate_gbps"].as_f64().unwrap();
        assert!((0.9..=1.01).contains(&reached), "{row}");
        [&row["flow"], &row["src"], &row["dst"], &row["path"], &row["rate_gbps"]].map(Value::to_string)
    };
    assert_eq!(row(0), ["17", "0", "9", "1", "40.0"]);
    assert_eq!(row(1), ["18", "1", "8", "null", "10.0"]);
    assert_eq!((report["background"].as_array().unwrap().len(), &report["flows"]["total"]), (2, &18.into()));
    let last = report["fct_us"]["max"].as_f64().unwrap();
    assert!(last < 50.0, "the background lasts 50 µs, the last flow of the permutation {last} µs");
    assert!(
        text(&run(&args).stdout).contains("2 flows at constant rates, which reach "),
        "the table has them too"
    );
}

#[test]
fn sizes_come_from_a_file_of_ones_own() {
    let path = scratch("sizes.txt");
    fs::write(&path, "# two sizes\n1000 50\n9000 50\n9000 100\n").unwrap();
    let (path, table) = (path.to_str().unwrap(), scratch("sizes.csv"));
    let spec = format!("poisson:load=0.2,sizes={path},flows=200");
    json(&[&FABRIC[..], &["--workload", &spec, "--flows", table.to_str().unwrap()]].concat());
    let rows = fs::read_to_string(&table).unwrap();
    let sizes: Vec<&str> = rows.lines().skip(1).filter_map(|row| row.split(',').nth(3)).collect();
    assert_eq!(sizes.len(), 200);
    assert!(sizes.iter().all(|bytes| ["1000", "9000"].contains(bytes)), "{sizes:?}");
    fs::write(path, "1000 50\n9000 fifty\n").unwrap();
    let refused = run(&["--workload", &spec]);
    let expected = format!(
        "weft: --workload: {spec}: sizes: {path}:2: `fifty` is not a percentage; expected a number from 0 to 100, such \
         as 97.5\n"
    );
    assert_eq!((refused.status.code(), text(&refused.stderr)), (Some(2), &*expected));
}

#[test]
fn a_matrix_may_have_flows_of_more_than_four_gibibytes() {
    let path = scratch("large.cm");
    let matrix = "Nodes 2\nConnections 2\nTriggers 1\n0->1 id 1 start 0 size 4294967297 recv_done_trigger 1\n\
                  1->0 id 2 trigger 1 size 10\ntrigger id 1 oneshot delay 5\n";
    fs::write(&path, matrix).unwrap();
    let (path, table) = (path.to_str().unwrap(), scratch("large.csv"));
    let link = ["--link", "800G", "--mtu", "16000"];
    let report = json(&[&["--matrix", path, "--flows", table.to_str().unwrap()], &link[..]].concat());
    // 268,436 packets of 16,000 bytes: the messages are cut between packets.
    assert_eq!(report["packets"]["data"], 4_294_967_297u64.div_ceil(16_000) + 1);
    assert!(report.pointer("/flow_slowdown/max").unwrap().as_f64().unwrap() < 1.02, "{report}");
    let rows = fs::read_to_string(&table).unwrap();
    let rows: Vec<Vec<&str>> = rows.lines().skip(1).map(|row| row.split(',').collect()).collect();
    let us = |row: usize, column: usize| rows[row][column].parse::<f64>().unwrap();
    // The answer starts 5 µs after the flow has arrived, which is less than a round trip before its sender knows it.
    let pause = us(1, 4) - us(0, 5);
    assert!(pause > -5.0 && pause < 5.0, "{pause}");
    let refused = run(&["--matrix", path, "--on", "udp"]);
    assert_eq!(refused.status.code(), Some(2));
    let expected = "weft: --matrix: flow 1 has 4294967297 bytes; expected at most 4294967295 on kernel UDP\n";
    assert_eq!(text(&refused.stderr), expected);
}

#[test]
fn computation_and_triggers_work_in_real_time() {
    let spec = "all-reduce:ring,size=30KB,iterations=2,compute=20ms";
    let report = json(&["--workload", spec, "--hosts", "4", "--on", "udp"]);
    assert_eq!((&report["flows"]["completed"], &report["flow_slowdown"]), (&Value::from(48), &Value::Null));
}

#[test]
fn the_list_explains_each_generator() {
    for name in ["incast", "permutation", "all-to-all", "all-reduce", "poisson", "lognormal", "rpc", "bursts"]
    {
        let output = weft(&["list", "workloads", name]);
        let text = text(&output.stdout);
        assert!(
            text.starts_with(name) && text.contains(&format!("\n    {name}:")) || name == "permutation",
            "{text}"
        );
        assert!(text.contains("start=time: when it begins [default: 0]"), "{text}");
    }
    let sizes = weft(&["list", "workloads", "poisson"]);
    assert!(text(&sizes.stdout).contains("GoogleRPC2008: RPCs in a Google data centre"));
}
