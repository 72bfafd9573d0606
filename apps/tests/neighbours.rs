//! A peer that is not there is named at once, with what to do, on a link of the kernel in a network of its own.
#![cfg(all(target_os = "linux", feature = "dpdk"))]

use std::process::Command;
use std::time::{Duration, Instant};

/// How the setup says that there can be no such link here.
const NOT_HERE: i32 = 77;

/// Runs a shell command in a network of its own, after `setup`. `None`, and why, if there can be none.
fn in_own_network(setup: &str, command: &str) -> Option<(String, bool)> {
    let script = format!("{{ ip link set lo up && {setup}; }} || exit {NOT_HERE}; {command}");
    let output = Command::new("timeout")
        .args(["-k", "5", "60", "unshare", "--net", "--map-root-user", "sh", "-c", &script])
        .output();
    let why = match output {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            if output.status.code() != Some(NOT_HERE) && !text.contains("unshare failed") {
                return Some((text, output.status.success()));
            }
            text
        }
        Err(error) => error.to_string(),
    };
    println!("skipped: no network of its own: {why}");
    assert!(std::env::var_os("CI").is_none(), "not to be skipped here: {why}");
    None
}

/// The client of a test with a server that does not exist.
fn client(device: &str, ip: &str, server: &str, patience: &str) -> String {
    let weft = env!("CARGO_BIN_EXE_weft");
    format!("'{weft}' perf client {server} --port dpdk:{device} --ip {ip} --patience {patience}")
}

const VETH: &str =
    "ip link add veth0 type veth peer name veth1 && ip link set veth0 up && ip link set veth1 up";

fn is_named(text: &str, server: &str) {
    let asked = format!("{server}: no host on the link answers for {server}: it was asked 3 times");
    assert!(text.contains(&asked) && text.contains(&format!("{server}/MAC")), "{text}");
}

#[test]
fn an_absent_peer_is_named_on_a_packet_socket() {
    for (ip, server) in [("10.9.0.1", "10.9.0.2"), ("fd00:9::1", "fd00:9::2")] {
        let command = client("net_af_packet0,iface=veth0", ip, server, "20000ms");
        let begin = Instant::now();
        let Some((text, success)) = in_own_network(VETH, &command) else { return };
        assert!(!success);
        is_named(&text, server);
        assert!(begin.elapsed() < Duration::from_secs(19), "it did not wait for its patience to run out");
    }
}

#[test]
fn an_absent_peer_is_named_on_a_tap() {
    let setup = "test -w /dev/net/tun";
    let command = client("net_tap0,iface=weft0", "10.9.0.1", "10.9.0.2", "20000ms");
    let Some((text, success)) = in_own_network(setup, &command) else { return };
    assert!(!success);
    is_named(&text, "10.9.0.2");
}

#[test]
fn who_has_little_patience_hears_how_far_it_got() {
    let command = client("net_af_packet0,iface=veth0", "10.9.0.1", "10.9.0.2", "1500ms");
    let Some((text, success)) = in_own_network(VETH, &command) else { return };
    assert!(!success);
    assert!(text.contains("10.9.0.2 has been asked for its Ethernet address"), "{text}");
    assert!(text.contains("waited for"), "{text}");
}
