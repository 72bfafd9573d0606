//! `weft perf` as its users see it: real processes over kernel UDP on the loopback interface, and both ends
//! in one process over every link there is.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::net::UdpSocket;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn weft(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.arg("perf").args(args).env("RUST_BACKTRACE", "0");
    command
}

/// A process that does not outlive its test.
struct Process(Option<Child>);

impl Process {
    fn start(args: &[&str]) -> Process {
        let child = weft(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("weft starts");
        Process(Some(child))
    }

    fn server(args: &[&str]) -> Process {
        Process::start(&[&["server", "--patience", "20000ms", "--wait", "60000ms"], args].concat())
    }

    fn signal(&self, signal: Signal) {
        let id = Pid::from_child(self.0.as_ref().expect("it runs"));
        kill_process(id, signal).expect("it runs");
    }

    fn output(mut self) -> Output {
        self.0.take().expect("it runs").wait_with_output().expect("it ends")
    }

    /// The standard error of the process if it has ended. Do not call this again after it has returned `Some`.
    fn ended(&mut self) -> Option<String> {
        let child = self.0.as_mut().expect("it runs");
        child.try_wait().expect("it is a child").is_some().then(|| {
            let output = self.0.take().expect("it runs").wait_with_output();
            stderr(&output.expect("it has ended")).to_owned()
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("UTF-8")
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).expect("standard output is one JSON document and nothing else")
}

/// Address `n` of network `net`, which is one test's own.
fn ip(net: u8, n: u8) -> String {
    format!("127.91.{net}.{n}")
}

fn port(net: u8, n: u8) -> String {
    format!("udp:{}", ip(net, n))
}

fn client(net: u8, n: u8, args: &[&str]) -> Output {
    let (server, port) = (ip(net, 1), port(net, n));
    // Longer than this machine ever takes the processor away.
    let common = ["client", &server, "--port", &port, "--patience", "20000ms", "--json", "-"];
    weft(&[&common, args].concat()).output().expect("weft starts")
}

/// Checks the reports of both ends of a test of `count` messages, all of which must have arrived.
fn complete(report: &Value, count: u64) {
    let end = &report["server"];
    assert_eq!(end["arrived"], count, "{report}");
    for end in [end, &report["client"]] {
        assert_eq!(
            (&end["wrong_messages"], &end["wrong_bytes"]),
            (&Value::from(0), &Value::from(0)),
            "{report}"
        );
        assert!(end["seconds"].as_f64() > Some(0.0), "{report}");
    }
}

#[test]
fn both_ends_report_the_verified_bytes() {
    let server = Process::server(&["--port", &port(1, 1), "--once"]);
    let args = ["--size", "100KB", "--count", "50", "--connections", "3", "--verify"];
    let report = json(&client(1, 2, &args));
    complete(&report, 50);
    assert_eq!(report["server"]["verified_bytes"], 50 * 100_000, "every byte of every message");
    assert_eq!(report["client"]["bytes"], 50 * 100_000);
    assert!(report["server"]["packets"].as_u64() >= Some(50 * 25), "{report}");
    assert_eq!(report["expected"]["goodput_gbps"], Value::Null, "the loopback interface has no rate");
    let output = server.output();
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(
        text.contains("waiting for clients at 127.91.1.1") && text.contains("5000000 bytes checked, 0 wrong"),
        "{text}"
    );
}

#[test]
fn each_message_of_a_rate_test_is_a_packet() {
    let _server = Process::server(&["--port", &port(2, 1)]);
    let report = json(&client(2, 2, &["--mode", "rate", "--count", "5000", "--link", "10G"]));
    complete(&report, 5000);
    let packets = report["server"]["packets"].as_u64().expect("a number");
    // And a few of what client and server tell each other.
    assert!((5000 - 512..5010).contains(&packets), "{report}");
    // 64 bytes, 102 of headers at most, 24 of Ethernet, at 10 Gbit/s.
    let expected = report["expected"]["messages_per_s"].as_f64().expect("the rate was given");
    assert!((6.5e6..7e6).contains(&expected), "{expected}");
}

#[test]
fn round_trips_are_told_apart() {
    let _server = Process::server(&["--port", &port(3, 1)]);
    let report = json(&client(3, 2, &["--mode", "latency", "--size", "1000", "--count", "300", "--verify"]));
    complete(&report, 300);
    let l = &report["latency"];
    assert_eq!(
        (&l["samples"], &report["client"]["verified_bytes"]),
        (&Value::from(300), &Value::from(300_000))
    );
    let quantiles: Vec<f64> = ["min_us", "p50_us", "p90_us", "p99_us", "p999_us", "max_us"]
        .iter()
        .map(|name| l[name].as_f64().expect("a number"))
        .collect();
    assert!(quantiles[0] > 0.0 && quantiles.is_sorted(), "{l}");
}

#[test]
fn a_test_of_a_duration_measures_that_long() {
    let _server = Process::server(&["--port", &port(4, 1)]);
    let args = ["--size", "10KB", "--duration", "200ms", "--warmup", "100ms", "--verify"];
    let report = json(&client(4, 2, &args));
    let seconds = report["client"]["seconds"].as_f64().expect("a number");
    assert!(seconds >= 0.2, "{report}");
    let (arrived, measured) = (&report["server"]["arrived"], &report["client"]["messages"]);
    complete(&report, arrived.as_u64().expect("a number"));
    assert!(arrived.as_u64() > measured.as_u64(), "the warm-up counts as arrived only: {report}");
}

#[test]
fn messages_of_all_sizes_pass() {
    let _server = Process::server(&["--port", &port(5, 1)]);
    for size in ["0", "1", "4095", "4096", "4097", "3MB"] {
        let report = json(&client(5, 2, &["--size", size, "--count", "9", "--connections", "2", "--verify"]));
        complete(&report, 9);
    }
}

/// A client at address 2 whose test runs until it is killed.
fn long_client(net: u8, args: &[&str]) -> Process {
    let (server, port) = (ip(net, 1), port(net, 2));
    let long = ["client", &server, "--port", &port, "--duration", "60000ms", "--patience", "20000ms"];
    let start = || Process::start(&[&long, args].concat());
    let mut running = start();
    // It has the server as soon as another client is refused, or has to make room for it before it has answered.
    let deadline = Instant::now() + Duration::from_secs(60);
    let lost_to = |said: &str, to: u8| {
        let to = ip(net, to);
        said.contains(&format!("busy with {to}"))
            || said.contains(&format!("{to} has asked before it answered"))
    };
    loop {
        assert!(Instant::now() < deadline, "the client never gets the server");
        let output = client(net, 3, &["--count", "1"]);
        if !output.status.success() {
            assert!(lost_to(stderr(&output), 2), "{}", stderr(&output));
            return running;
        }
        // The other one may have had the server at the moment at which the first one came.
        if let Some(said) = running.ended() {
            assert!(lost_to(&said, 3), "{said}");
            running = start();
        }
    }
}

#[test]
fn an_interrupted_client_reports_its_measurements() {
    let _server = Process::server(&["--port", &port(12, 1)]);
    let directory = tempfile::tempdir().expect("there is room for a file");
    let file = directory.path().join("report.json");
    std::fs::write(&file, "earlier").expect("there is room for a file");
    loop {
        let running = long_client(12, &["--size", "10KB", "--verify", "--json", &file.to_string_lossy()]);
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(std::fs::read_to_string(&file).expect("the file stays"), "earlier");
        running.signal(Signal::INT);
        let output = running.output();
        assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
        if !stderr(&output).contains("before anything was measured") {
            assert!(stderr(&output).contains("interrupted by SIGINT: the report ends there"));
            assert!(String::from_utf8_lossy(&output.stdout).contains("goodput, Gbit/s"));
            break;
        }
    }
    let text = std::fs::read_to_string(&file).expect("it has been written");
    let report: Value = serde_json::from_str(&text).expect("one JSON document");
    assert!(report["client"]["messages"].as_u64() > Some(0), "{report}");
    let seconds = report["client"]["seconds"].as_f64();
    assert!(seconds > Some(0.0) && seconds < Some(60.0), "{report}");
    // The server may not have answered in time.
    if !report["server"].is_null() {
        complete(&report, report["client"]["arrived"].as_u64().expect("a number"));
    }
}

#[test]
fn an_interrupted_server_reports_received_messages_and_ends_the_test() {
    let server = Process::server(&["--port", &port(13, 1), "--json", "-"]);
    let running = long_client(13, &["--size", "10KB"]);
    std::thread::sleep(Duration::from_millis(500));
    server.signal(Signal::TERM);
    let output = server.output();
    assert!(output.status.success(), "{}", stderr(&output));
    // The client that looks whether the server is taken may have had it first, with a report of its own.
    let reports = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
    let report = reports.last().expect("a report").expect("a JSON document");
    assert!(report["server"]["arrived"].as_u64() > Some(0), "{report}");
    let output = running.output();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let said = "127.91.13.1 has ended the test: the server was interrupted";
    assert!(stderr(&output).contains(said), "{}", stderr(&output));
}

#[test]
fn the_server_accepts_a_client_after_another_one_has_died() {
    let _server =
        Process::start(&["server", "--wait", "60000ms", "--port", &port(6, 1), "--patience", "1000ms"]);
    let mut dying = long_client(6, &[]);
    dying.0.as_mut().expect("it runs").kill().expect("it can be killed");
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        assert!(Instant::now() < deadline, "the server is never free again");
        let output = client(6, 3, &["--count", "20", "--verify"]);
        if output.status.success() {
            return complete(&json(&output), 20);
        }
        assert!(stderr(&output).contains("busy with"), "{}", stderr(&output));
    }
}

/// A host that nobody knows goes on sending datagrams that mean nothing. They are no reason for a client that is through
/// to stay for its patience, as the other end's would be.
#[test]
fn nonsense_does_not_keep_a_client_that_is_through() {
    let _server = Process::server(&["--port", &port(41, 1)]);
    let noise = UdpSocket::bind((ip(41, 9), 0)).expect("the address is this test's own");
    let over = Arc::new(AtomicBool::new(false));
    let sender = std::thread::spawn({
        let over = over.clone();
        move || {
            while !over.load(Ordering::SeqCst) {
                // Before the client is there, and after it has gone, the kernel refuses them.
                let _ = noise.send_to(&[0; 40], (ip(41, 2), 4793));
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let begin = Instant::now();
    let test = ["--size", "10KB", "--count", "20", "--rto", "20ms", "--patience", "60000ms"];
    complete(&json(&client(41, 2, &test)), 20);
    let took = begin.elapsed();
    over.store(true, Ordering::SeqCst);
    sender.join().expect("the thread ends");
    assert!(took < Duration::from_secs(30), "the client stayed for {took:?}");
}

#[test]
fn a_silent_peer_is_named_with_what_waits_for_it() {
    let begin = Instant::now();
    let (server, own) = (ip(7, 1), port(7, 2));
    let output =
        weft(&["client", &server, "--port", &own, "--patience", "300ms"]).output().expect("weft starts");
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    let expected = "nothing heard of 127.91.7.1 for 300 ms while waiting for its answer to the request";
    assert!(
        said.contains(expected) && said.contains("no message to it waits for an acknowledgement"),
        "{said}"
    );
    assert!(begin.elapsed() < Duration::from_secs(30));
    let output = weft(&["server", "--port", &port(7, 1), "--wait", "200ms"]).output().expect("weft starts");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no client has come within 200 ms"), "{}", stderr(&output));
}

#[test]
fn a_server_refuses_a_test_that_it_cannot_run_and_gives_the_reason() {
    let _server = Process::server(&["--port", &port(8, 1), "--memory", "1MiB"]);
    let refusal = |args: &[&str]| {
        let output = client(8, 2, args);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        stderr(&output).to_owned()
    };
    let said = refusal(&["--size", "1MiB", "--count", "1"]);
    assert!(
        said.contains("127.91.8.1 will not run the test") && said.contains("of 1048576 (--memory"),
        "{said}"
    );
    let said = refusal(&["--size", "10KB", "--count", "1", "--cc", "rccc"]);
    assert!(said.contains("--cc rccc uses credit, and the server's uses no credit"), "{said}");
}

#[test]
fn packets_that_the_other_ends_port_does_not_take_are_refused_with_both_lengths() {
    let _server = Process::server(&["--port", &port(10, 1), "--port-mtu", "1500"]);
    let output = client(10, 2, &["--count", "1"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let said = "127.91.10.1 will not run the test: packets of the client carry 4096 bytes, and the server's port takes \
                packets with 1412: start the client with --payload 1412, or both with the same --port-mtu";
    assert!(stderr(&output).contains(said), "{}", stderr(&output));
    let args = ["--payload", "1412", "--size", "5000", "--count", "9", "--verify"];
    complete(&json(&client(10, 2, &args)), 9);

    let _server = Process::server(&["--port", &port(11, 1)]);
    let short = ["--port-mtu", "1500", "--size", "3000", "--count", "9", "--verify"];
    let output = client(11, 2, &[&short[..], &["--mode", "latency"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let said = "packets of the server carry 4096 bytes, and the client's port takes packets with 1412";
    assert!(stderr(&output).contains(said), "{}", stderr(&output));
    complete(&json(&client(11, 2, &short)), 9);
}

#[test]
fn both_ends_in_one_process() {
    let run = |link: &str, args: &[&str]| {
        let common = ["pair", "--port", link, "--patience", "20000ms", "--verify", "--json", "-"];
        json(&weft(&[&common, args].concat()).output().expect("weft starts"))
    };
    let links = if cfg!(feature = "dpdk") { &["memory", "ring", "udp"][..] } else { &["memory", "udp"] };
    for link in links {
        for threads in ["1", "2"] {
            let report = run(link, &["--threads", threads, "--size", "50000", "--count", "40"]);
            complete(&report, 40);
            assert_eq!(report["one_core"], threads == "1");
            let cpu = &report["client"]["cpu"];
            assert!(cpu["ns_per_packet"].as_f64() > Some(0.0), "{report}");
            assert_eq!(report["server"]["cpu"].is_null(), threads == "1", "two threads are counted apart");
        }
        complete(&run(link, &["--mode", "latency", "--count", "100"]), 100);
    }
}

#[test]
fn two_processes_over_memif() {
    let directory = tempfile::tempdir().expect("there is room for a socket");
    let socket = directory.path().join("memif.sock");
    let link = |role| format!("memif:{},role={role}", socket.display());
    let server = Process::server(&["--port", &link("server"), "--ip", "10.0.0.1", "--once"]);
    let client = link("client");
    let test = ["--size", "100KB", "--count", "200", "--connections", "2", "--verify"];
    let end =
        ["client", "10.0.0.1", "--port", &client, "--ip", "10.0.0.2", "--patience", "20000ms", "--json", "-"];
    let report = json(&weft(&[&end[..], &test].concat()).output().expect("weft starts"));
    complete(&report, 200);
    assert_eq!(report["server"]["verified_bytes"], 200 * 100_000);
    assert_eq!(report["test"]["payload"], 4096, "the link carries full packets");
    let output = server.output();
    assert!(output.status.success(), "{}", stderr(&output));
}

/// Each end chooses its own tag: on a link without address resolution, packets may arrive with another tag or none.
#[test]
fn processes_with_and_without_vlans_over_memif() {
    const MTU: [&str; 2] = ["--port-mtu", "1500"];
    for (there, here) in [
        (&["--vlan", "7:5"][..], &["--vlan", "7:5"][..]),
        (&["--vlan", "7"], &[]),
        (&[], &["--vlan", "4094"]),
    ] {
        let directory = tempfile::tempdir().expect("there is room for a socket");
        let socket = directory.path().join("memif.sock");
        let link = |role| format!("memif:{},role={role}", socket.display());
        let (far, near) = (link("server"), link("client"));
        let server = ["--port", &far, "--ip", "10.0.0.1", "--once", "--payload", "1000"];
        let server = Process::server(&[&server, there, &MTU].concat());
        let client = ["client", "10.0.0.1", "--port", &near, "--ip", "10.0.0.2", "--patience", "20000ms"];
        let test = ["--size", "100KB", "--count", "50", "--payload", "1000", "--verify", "--json", "-"];
        let report = json(&weft(&[&client, here, &MTU, &test].concat()).output().expect("weft starts"));
        complete(&report, 50);
        assert_eq!(report["server"]["verified_bytes"], 50 * 100_000, "{there:?} and {here:?}");
        let output = server.output();
        assert!(output.status.success(), "{}", stderr(&output));
    }
}

#[test]
fn a_server_that_is_told_to_end_leaves_no_socket() {
    let directory = tempfile::tempdir().expect("there is room for a socket");
    let socket = directory.path().join("memif.sock");
    let link = format!("memif:{},role=server", socket.display());
    for (signal, once, status) in
        [(Signal::TERM, false, 0), (Signal::INT, false, 0), (Signal::TERM, true, 143)]
    {
        let mut args = vec!["server", "--port", &link, "--ip", "10.0.0.1", "--wait", "60000ms"];
        args.extend(once.then_some("--once"));
        let server = Process::start(&args);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !socket.exists() {
            assert!(Instant::now() < deadline, "the server does not come");
            std::thread::sleep(Duration::from_millis(5));
        }
        server.signal(signal);
        let output = server.output();
        assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
        assert!(!socket.exists(), "{signal:?}");
    }
}

#[test]
fn peers_of_a_zone_have_a_congestion_control_of_their_own() {
    let test = ["--size", "10KB", "--count", "20", "--verify"];
    let own = port(40, 1);
    let zones = ["--port", &own, "--zone", "far=127.91.40.128/25,rtt=30ms", "--cc", "nscc,far=rccc"];
    let _server = Process::server(&zones);
    complete(&json(&client(40, 2, &test)), 20);
    let refused = client(40, 130, &test);
    assert!(stderr(&refused).contains("nscc uses no credit, and the server's uses credit"), "{refused:?}");
    complete(&json(&client(40, 131, &[&["--cc", "rccc"][..], &test].concat())), 20);
    let zone = ["--zone", "here=127.91.40.0/25,rtt=30ms", "--link", "10G", "--cc", "rccc,here=constant"];
    let report = json(&client(40, 3, &[&zone[..], &test].concat()));
    complete(&report, 20);
    assert_eq!(report["test"]["cc"], "constant");
    // 10 Gbit/s for 30 ms.
    assert!(report["congestion"]["window"].as_u64() >= Some(37_000_000), "{report}");
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let refusal = |args: &[&str]| {
        let output = weft(args).output().expect("weft starts");
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        stderr(&output).to_owned()
    };
    let own = port(9, 1);
    let base = ["client", "127.91.9.2", "--port", &own];
    assert!(refusal(&["client", "127.91.9.2", "--port", "tcp:1"]).contains("expected udp:ADDRESS"));
    assert!(refusal(&["client", "here", "--port", &own]).contains("expected IP, IP/MAC or IP:PORT"));
    let long = refusal(&[&base[..], &["--mode", "rate", "--size", "10000"]].concat());
    assert!(long.contains("more than one packet"), "{long}");
    assert!(refusal(&[&base[..], &["--cc", "none"]].concat()).contains("--cc"));
    let payload = refusal(&[&base[..], &["--payload", "9000", "--port-mtu", "4000"]].concat());
    assert!(payload.contains("--payload: the port's MTU leaves"), "{payload}");
    assert!(refusal(&["client", "--cout", "1"]).contains("(see weft perf client --help)"));
    assert!(refusal(&[&base[..], &["--count", "1", "--duration", "1ms"]].concat()).contains("--duration"));
    let zone = refusal(&[&base[..], &["--cc", "nscc,far=rccc"]].concat());
    assert!(zone.contains("--cc: unknown zone 'far'; there are none"), "{zone}");
    let zone = refusal(&[&base[..], &["--zone", "far=127.91.0.1/16"]].concat());
    assert!(zone.contains("is no prefix of IP addresses"), "{zone}");
    assert!(refusal(&[&base[..], &["--vlan", "4095"]].concat()).contains("an id of 1 to 4094"));
}
