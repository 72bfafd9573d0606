//! Transfers with the algorithms that steer by delay, over every real port: payload arrives unchanged, and the trace splits
//! the delay into that of the fabric and that of the hosts.

use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

const ALGORITHMS: [&str; 3] = ["swift", "lswift", "mswift"];
/// Messages and their bytes.
const COUNT: u64 = 100;
const SIZE: u64 = 100_000;

/// A server that does not outlive its test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `weft perf` with these arguments.
fn weft(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.arg("perf").args(args);
    command
}

/// The arguments of a client: the test, and the file for its trace.
fn test<'a>(cc: &'a str, trace: &'a str) -> Vec<&'a str> {
    let test = ["--count", "100", "--size", "100KB", "--verify", "--patience", "20000ms", "--json", "-"];
    [&test[..], &["--cc", cc, "--trace", trace]].concat()
}

/// All messages have arrived, and each byte was compared.
fn assert_complete(output: &Output, cc: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{cc}: {said}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("nothing else on standard output");
    let server = &report["server"];
    assert_eq!(
        (&server["arrived"], &server["verified_bytes"]),
        (&COUNT.into(), &(COUNT * SIZE).into()),
        "{cc}"
    );
    assert_eq!((&server["wrong_messages"], &server["wrong_bytes"]), (&0.into(), &0.into()), "{cc}");
}

/// The trace has the time in hosts of most RTTs, as a part of them: at the receiver on all ports, at the sender where the
/// port says when frames have arrived.
fn assert_split(trace: &Path, timestamps: bool, cc: &str) {
    let text = std::fs::read_to_string(trace).expect("written");
    let (mut rtts, mut remote, mut local, mut in_fabric, mut too_long) = (0, 0, 0, 0, 0);
    for line in text.lines().filter(|line| line.contains("\"ack_received\"") && line.contains("rtt_ps")) {
        let event: Value = serde_json::from_str(line).expect("JSON");
        let part = |name: &str| event[name].as_u64().unwrap_or(0);
        let hosts = part("remote_ps") + part("local_ps");
        // Where a thread is kept from running between reading one clock and the next, hosts seem to take longer.
        too_long += u32::from(hosts > part("rtt_ps") + 1_000_000);
        rtts += 1;
        remote += u32::from(part("remote_ps") > 0);
        local += u32::from(part("local_ps") > 0);
        in_fabric += u32::from(part("rtt_ps") > hosts);
    }
    assert!(rtts > 20, "{cc}: {rtts} acknowledgements have an RTT");
    assert!(too_long * 10 < rtts, "{cc}: in {too_long} of {rtts} the hosts took longer than the whole RTT");
    assert!(remote * 2 > rtts, "{cc}: {remote} of {rtts} say how long the receiver took");
    assert!(in_fabric * 2 > rtts, "{cc}: {in_fabric} of {rtts} RTTs have a part in the fabric");
    match timestamps {
        true => assert!(local > 20, "{cc}: {local} of {rtts} say how long they waited at the sender"),
        false => assert_eq!(local, 0, "{cc}: the port has no timestamps"),
    }
}

fn between_two_ends_here(port: &str, timestamps: bool) {
    let directory = tempfile::tempdir().expect("there is room for a trace");
    let trace = directory.path().join("t.jsonl");
    for cc in ALGORITHMS {
        let args = [&["pair", "--port", port][..], &test(cc, trace.to_str().expect("UTF-8"))].concat();
        assert_complete(&weft(&args).output().expect("weft starts"), cc);
        assert_split(&trace, timestamps, cc);
    }
}

#[test]
fn over_kernel_udp() {
    between_two_ends_here("udp", true);
}

#[cfg(feature = "dpdk")]
#[test]
fn over_the_rings_of_dpdk() {
    between_two_ends_here("ring", false);
}

#[test]
fn over_memif() {
    let directory = tempfile::tempdir().expect("there is room for a socket");
    let (socket, trace) = (directory.path().join("memif.sock"), directory.path().join("t.jsonl"));
    let link = |role| format!("memif:{},role={role}", socket.display());
    let (there, here) = (link("server"), link("client"));
    for cc in ALGORITHMS {
        let end = ["server", "--port", &there, "--ip", "10.0.0.1", "--once", "--wait", "60000ms"];
        let server = weft(&[&end[..], &["--cc", cc, "--patience", "20000ms"]].concat())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut server = Server(server.expect("weft starts"));
        let end = ["client", "10.0.0.1", "--port", &here, "--ip", "10.0.0.2"];
        let args = [&end[..], &test(cc, trace.to_str().expect("UTF-8"))].concat();
        assert_complete(&weft(&args).output().expect("weft starts"), cc);
        assert!(server.0.wait().expect("it ends").success(), "{cc}");
        assert_split(&trace, false, cc);
    }
}
