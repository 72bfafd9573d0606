//! `weft run --on loopback` as its users see it.

#[cfg(feature = "dpdk")]
use serde_json::Value;
use std::process::{Command, Output};

fn loopback(args: &[&str]) -> Output {
    let line = [&["run", "--on", "loopback"], args].concat();
    Command::new(env!("CARGO_BIN_EXE_weft")).args(line).output().expect("weft starts")
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("UTF-8")
}

#[cfg(feature = "dpdk")]
fn report(args: &[&str]) -> Value {
    let output = loopback(&[args, &["--json", "-"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("DPDK prints nothing on standard output")
}

#[cfg(feature = "dpdk")]
#[test]
fn a_transfer_over_mbufs_arrives_whole() {
    let report = report(&["--workload", "permutation", "--hosts", "2", "--size", "16MiB"]);
    assert_eq!(report["flows"]["total"], 2, "one each way");
    assert_eq!(report["flows"]["completed"], 2);
    assert_eq!(report["packets"]["data"], 2 * (16 << 20) / 4096);
    assert_eq!(report["packets"]["dropped"], 0);
    assert!(report["packets"]["acks"].as_u64() > Some(1000), "{report}");
    assert!(report["goodput_gbps"].as_f64() > Some(0.0));
    assert_eq!((&report["bound_us"], &report["slowdown_max"]), (&Value::from(0.0), &Value::Null));
    let config = &report["config"];
    assert_eq!((&config["on"], &config["payload"]), (&Value::from("loopback"), &Value::from("real")));
}

#[cfg(feature = "dpdk")]
#[test]
fn only_the_first_pair_runs() {
    let report = report(&["--workload", "incast:5", "--size", "100KB"]);
    assert_eq!(report["flows"]["total"], 1);
    let pair = report["config"]["pair"].as_array().expect("the hosts are named");
    assert_eq!(pair.len(), 2);
}

#[cfg(feature = "dpdk")]
#[test]
fn all_algorithms_and_sizes_run() {
    for cc in ["nscc", "smartt", "dctcp", "swift", "lswift", "mswift", "rccc", "nscc+rccc", "constant"] {
        let report = report(&["--workload", "all-to-all:2", "--hosts", "3", "--size", "1MB", "--cc", cc]);
        assert_eq!(report["flows"]["completed"], 2, "{cc}: there and back, although one waits for a trigger");
    }
    for (size, mtu, packets) in
        [("0", "4096", 1), ("1", "64", 1), ("100000", "64", 1563), ("1MB", "9000", 112), ("1MB", "16383", 62)]
    {
        let report = report(&["--workload", "incast:1", "--size", size, "--mtu", mtu]);
        assert_eq!(report["packets"]["data"], packets, "{size} bytes in packets of {mtu}");
    }
}

#[cfg(feature = "dpdk")]
#[test]
fn the_table_names_the_run_and_its_port() {
    let output = loopback(&["--workload", "permutation", "--hosts", "2", "--size", "1MB"]);
    let text = std::str::from_utf8(&output.stdout).expect("UTF-8");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(text.starts_with("permutation: the flows between hosts ") && text.contains("net_ring"), "{text}");
    assert!(text.contains("2 of 2 done"), "{text}");
    assert_eq!(stderr(&output), "");
}

#[cfg(feature = "dpdk")]
#[test]
fn a_run_that_is_cut_off_lists_the_waiting_flows() {
    let output = loopback(&["--workload", "incast:1", "--size", "1GB", "--until", "5ms"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("1 of 1 flows unfinished") && stderr(&output).contains("PSN"));
}

#[cfg(not(feature = "dpdk"))]
#[test]
fn without_dpdk_it_says_so() {
    let output = loopback(&["--workload", "permutation"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("built without its feature `dpdk`"), "{}", stderr(&output));
}
