//! Tests of the command `weft testbed`: switches in a process of their own, hosts that attach with the options that
//! `status` prints, links that change, and switches that are killed.

use crate::lab::{FABRIC, Lab, Process, json, stderr_of, until};
#[cfg(feature = "dpdk")]
use crate::lab::{no_namespaces, skipped};
use serde_json::Value;
#[cfg(feature = "dpdk")]
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

/// The output of `weft testbed status`.
fn status(lab: &Lab, name: &str) -> Value {
    json(&lab.run(&["testbed", "status", "--json", "--name", name]))
}

/// Starts switches in the background, and returns their status.
fn up(lab: &Lab, name: &str, args: &[&str]) -> Value {
    let output = lab.run(&[&["testbed", "up", "--detach", "--name", name], args].concat());
    assert!(output.status.success(), "{}", stderr_of(&output));
    status(lab, name)
}

fn down(lab: &Lab, name: &str) -> String {
    let output = lab.run(&["testbed", "down", "--name", name]);
    assert!(output.status.success(), "{}", stderr_of(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Ends a testbed when the test ends, even if it fails.
struct Down<'a>(&'a Lab, &'a str);

impl Drop for Down<'_> {
    fn drop(&mut self) {
        drop(self.0.run(&["testbed", "down", "--name", self.1]));
    }
}

fn set(lab: &Lab, name: &str, words: &[&str]) -> Output {
    lab.run(&[&["testbed", "set", "--name", name, "link"], words].concat())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// `weft` at a host of a testbed: `words`, the options of its port, and `more`.
fn at_host(lab: &Lab, status: &Value, host: usize, words: &[&str], more: &[&str]) -> Process {
    let facts = &status["hosts"][host];
    let mtu = facts["mtu"].to_string();
    let mut line = words.to_vec();
    line.extend(["--port", text(&facts["port"]), "--port-mtu", &mtu]);
    if let Some(ip) = facts["ip"].as_str() {
        line.extend(["--ip", ip]);
    }
    line.extend(more);
    let command = lab.command(&line);
    let Some(namespace) = facts["namespace"].as_str() else { return Process::start(command) };
    let mut inside = Command::new("ip");
    inside.args(["netns", "exec", namespace]).arg(command.get_program()).args(command.get_args());
    Process::start(inside)
}

/// `weft perf` at a host, with the options in the testbed's status.
fn perf(lab: &Lab, status: &Value, host: usize, words: &[&str], more: &[&str]) -> Process {
    let end: Vec<&str> = text(&status["end_options"]).split(' ').collect();
    at_host(lab, status, host, &[&["perf"], words].concat(), &[&end, more].concat())
}

fn server(lab: &Lab, status: &Value, host: usize, more: &[&str]) -> Process {
    perf(lab, status, host, &["server"], more)
}

fn client(lab: &Lab, status: &Value, host: usize, to: usize, more: &[&str]) -> Process {
    let called = text(&status["hosts"][to]["called"]).to_owned();
    perf(lab, status, host, &["client", &called], more)
}

const PATIENT: &[&str] = &["--patience", "60000ms"];

/// Sends 20 messages of 50 kB from host 9 to host 0, and compares all bytes.
fn some_messages_arrive(lab: &Lab, status: &Value) {
    let server = server(lab, status, 0, &[PATIENT, &["--once", "--wait", "60000ms"]].concat());
    let test = ["--size", "50000", "--count", "20", "--verify", "--json", "-"];
    let report = json(&client(lab, status, 9, 0, &[PATIENT, &test].concat()).output());
    assert_eq!(report["server"]["verified_bytes"], 20 * 50_000, "{report}");
    assert_eq!(report["server"]["wrong_bytes"], 0, "{report}");
    let output = server.output();
    assert!(output.status.success(), "{}", stderr_of(&output));
}

/// 60 messages of 100 kB from host 9 to host 0.
struct Transfer {
    server: Process,
    client: Process,
}

impl Transfer {
    /// A transfer of which some packets have been sent.
    fn under_way(lab: &Lab, name: &str, bed: &Value) -> Transfer {
        let server = server(lab, bed, 0, &[PATIENT, &["--once", "--wait", "60000ms"]].concat());
        let test = ["--size", "100000", "--count", "60", "--verify", "--json", "-"];
        let client = client(lab, bed, 9, 0, &[PATIENT, &test].concat());
        until("messages are on their way", || status(lab, name)["hosts"][9]["sent"].as_u64() > Some(50));
        Transfer { server, client }
    }

    /// Checks that all bytes arrive as they were sent. Returns the client's report.
    fn completes(self) -> Value {
        let report = json(&self.client.output());
        assert_eq!(report["server"]["verified_bytes"], 60 * 100_000, "{report}");
        assert_eq!(report["server"]["wrong_bytes"], 0, "{report}");
        let output = self.server.output();
        assert!(output.status.success(), "{}", stderr_of(&output));
        report
    }
}

/// Checks that a testbed of any kind comes up, carries messages, survives a link failure, and leaves nothing behind.
fn assert_works_and_leaves_nothing(name: &str, kind: &str, expected_hosts: usize) {
    let lab = Lab::new();
    let bed = up(&lab, name, &[FABRIC, "--hosts", kind]);
    let _down = Down(&lab, name);
    assert_eq!((&bed["hosts_by"], &bed["slow"]), (&kind.into(), &2_000.into()), "{bed}");
    assert_eq!(bed["hosts"].as_array().map(Vec::len), Some(expected_hosts));
    some_messages_arrive(&lab, &bed);
    let after = status(&lab, name);
    assert!(after["frames"]["sent"].as_u64() > Some(20 * 13), "{after}");
    assert!(after["hosts"][9]["sent"].as_u64() > Some(20 * 13), "{after}");
    assert_eq!((&after["frames"]["starved"], &after["frames"]["dropped"]), (&0.into(), &0.into()), "{after}");
    assert_eq!(down(&lab, name), "down\n");
    let left = std::fs::read_dir(lab.runtime()).expect("it is there").count();
    assert_eq!(left, 0, "nothing is left behind");
}

#[test]
fn hosts_attach_over_udp() {
    assert_works_and_leaves_nothing("tudp", "udp", 16);
}

#[cfg(feature = "dpdk")]
#[test]
fn hosts_attach_over_memif() {
    assert_works_and_leaves_nothing("tmemif", "memif", 16);
}

#[cfg(feature = "dpdk")]
#[test]
fn hosts_attach_from_namespaces_and_no_namespace_is_left() {
    if let Some(why) = no_namespaces() {
        return skipped(&why);
    }
    let name = format!("v{}", std::process::id() % 1_000_000);
    let namespaces = || Path::new("/run/netns").join(format!("{name}-h0")).exists();
    assert_works_and_leaves_nothing(&name, "veth", 16);
    assert!(!namespaces());
    let lab = Lab::new();
    let small = lab.file("small.toml", "topology = \"leaf-spine:hosts=4,leaves=2\"\nslow = 4000\n");
    let bed = up(&lab, &name, &[&small, "--hosts", "veth"]);
    let _down = Down(&lab, &name);
    kill(&bed);
    assert!(namespaces(), "the kernel keeps them");
    let output = lab.run(&["testbed", "up", "--detach", "--name", &name, &small, "--hosts", "veth"]);
    assert!(output.status.success(), "what was left is no obstacle: {}", stderr_of(&output));
    kill(&status(&lab, &name));
    assert_eq!(down(&lab, &name), "removed what was left\n");
    assert!(!namespaces());
}

/// Kills the switches with SIGKILL, and waits until they are gone.
fn kill(bed: &Value) {
    let pid = bed["pid"].to_string();
    let done = Command::new("kill").args(["-9", &pid]).status();
    assert!(done.expect("there is kill").success());
    // The process remains until init has waited for it.
    until("the switches are gone", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    });
}

#[test]
fn links_fail_and_heal_under_transfers() {
    let (lab, name) = (Lab::new(), "tlinks");
    let bed = up(&lab, name, &[FABRIC]);
    let _down = Down(&lab, name);
    let transfer = Transfer::under_way(&lab, name, &bed);
    for words in ["tier=0 switch=0 link=1 down", "tier=0 switch=2 link=3 drop=0.2", "host=9 corrupt=0.02"] {
        let output = set(&lab, name, &words.split(' ').collect::<Vec<_>>());
        assert!(output.status.success(), "{}", stderr_of(&output));
    }
    let links = status(&lab, name)["links"].clone();
    assert_eq!(links.as_array().map(Vec::len), Some(3), "{links}");
    assert!(links.to_string().contains("tier=0 switch=0 link=1: down"), "{links}");
    until("packets are lost", || status(&lab, name)["frames"]["lost"].as_u64() > Some(5));
    for link in ["tier=0 switch=0 link=1", "tier=0 switch=2 link=3", "host=9"] {
        let output = set(&lab, name, &[link, "up"]);
        assert!(output.status.success(), "{}", stderr_of(&output));
    }
    assert_eq!(status(&lab, name)["links"], Value::Array(Vec::new()));
    transfer.completes();
}

/// Sends messages over a link that damages every tenth frame, and compares all bytes.
fn assert_damage_is_never_delivered(name: &str, kind: &str) {
    let lab = Lab::new();
    let bed = up(&lab, name, &[FABRIC, "--hosts", kind]);
    let _down = Down(&lab, name);
    let output = set(&lab, name, &["host=9", "corrupt=0.1"]);
    assert!(output.status.success(), "{}", stderr_of(&output));
    some_messages_arrive(&lab, &bed);
    let after = status(&lab, name);
    assert!(after["frames"]["corrupted"].as_u64() > Some(5), "{after}");
}

#[test]
fn damage_is_never_delivered_over_udp() {
    assert_damage_is_never_delivered("tdamageu", "udp");
}

#[cfg(feature = "dpdk")]
#[test]
fn damage_is_never_delivered_over_memif() {
    assert_damage_is_never_delivered("tdamagem", "memif");
}

#[test]
fn hosts_notice_that_the_switches_are_gone_and_the_switches_come_up_again() {
    let (lab, name) = (Lab::new(), "tkill");
    let bed = up(&lab, name, &[FABRIC]);
    let _down = Down(&lab, name);
    let server = server(&lab, &bed, 0, &["--patience", "2000ms", "--once"]);
    let client = client(&lab, &bed, 9, 0, &["--patience", "2000ms", "--duration", "600000ms"]);
    until("messages are on their way", || status(&lab, name)["hosts"][9]["sent"].as_u64() > Some(50));
    kill(&bed);
    // `output` has a bound on its wait; both give up within twice their patience.
    let (client, server) = (client.output(), server.output());
    assert_eq!(client.status.code(), Some(1));
    assert!(stderr_of(&client).contains("nothing heard of"), "{}", stderr_of(&client));
    assert_eq!(server.status.code(), Some(1), "{}", stderr_of(&server));
    let said = lab.run(&["testbed", "status", "--name", name]);
    assert_eq!(said.status.code(), Some(1));
    assert!(stderr_of(&said).contains("tkill was killed"), "{}", stderr_of(&said));
    let again = up(&lab, name, &[FABRIC]);
    assert_ne!(again["pid"], bed["pid"]);
    some_messages_arrive(&lab, &again);
}

#[test]
fn transfers_over_udp_resume_when_the_switches_are_back() {
    let (lab, name) = (Lab::new(), "tback");
    let bed = up(&lab, name, &[FABRIC]);
    let _down = Down(&lab, name);
    let transfer = Transfer::under_way(&lab, name, &bed);
    kill(&bed);
    let again = up(&lab, name, &[FABRIC]);
    assert_eq!(again["hosts"][0]["called"], bed["hosts"][0]["called"], "hosts find it where it was");
    let report = transfer.completes();
    assert!(report["client"]["timeouts"].as_u64() > Some(0), "it has missed the switches: {report}");
}

#[test]
fn a_file_describes_the_fabric_and_its_errors_are_named() {
    let (lab, name) = (Lab::new(), "tfile");
    let file = lab.file(
        "bed.toml",
        "topology = \"leaf-spine:hosts=4,leaves=2,link=10G\"\nslow = 3000\nmtu = 1024\ntrim = false\n\
         queue = \"20pkt\"\nlink-event = [\"1ms host=3 fail\"]\n",
    );
    let bed = up(&lab, name, &[&file]);
    let _down = Down(&lab, name);
    assert_eq!((bed["slow"].as_u64(), bed["hosts"].as_array().map(Vec::len)), (Some(3_000), Some(4)));
    assert!(text(&bed["end_options"]).starts_with("--payload 1024 --trim off --link 3333333bps "), "{bed}");
    let twice = lab.run(&["testbed", "up", "--name", name, &file]);
    assert_eq!(twice.status.code(), Some(1));
    let said = stderr_of(&twice);
    assert!(
        said.contains("tfile is up already") && said.contains("weft testbed down --name tfile"),
        "{said}"
    );
    let refusal = |output: Output| {
        assert_eq!(output.status.code(), Some(2), "{}", stderr_of(&output));
        stderr_of(&output).to_owned()
    };
    assert!(refusal(set(&lab, name, &["host=4", "down"])).contains("expected a host below 4"));
    let said = refusal(set(&lab, name, &["host=1", "broken"]));
    assert!(said.contains("`broken`: expected fail or down, restore or up, rate=R"), "{said}");
    let many = lab.file("many.toml", "topology = \"leaf-spine:hosts=256,leaves=4\"\n");
    let output = lab.run(&["testbed", "up", "--detach", "--name", "tmany", &many]);
    assert!(stderr_of(&output).contains("expected at most 250 hosts"), "{}", stderr_of(&output));
    assert!(!lab.runtime().join("tmany").exists(), "it leaves nothing");
    let bad = lab.file("bad.toml", "topology = \"leaf-spine:hosts=4,leaves=2\"\nhosts = 3\n");
    let said = refusal(lab.run(&["testbed", "up", "--name", "tbad", &bad]));
    assert!(said.contains("bad.toml:2: unknown key 'hosts'; expected one of: topology, "), "{said}");
    assert!(refusal(lab.run(&["testbed", "up", "--name", "Nine chars"])).contains("lower-case letters"));
    let none = lab.run(&["testbed", "status", "--name", "tnone"]);
    assert!(
        stderr_of(&none).contains("tnone is not up; expected weft testbed up --name tnone"),
        "{}",
        stderr_of(&none)
    );
    assert_eq!(down(&lab, "tnone"), "was not up\n");
}

#[test]
fn of_several_testbeds_started_at_once_under_one_name_only_one_comes_up() {
    let (lab, name) = (Lab::new(), "tonce");
    let _down = Down(&lab, name);
    let fabric = |hosts: usize| {
        let text = format!("topology = \"leaf-spine:hosts={hosts},leaves=2\"\n");
        lab.file(&format!("of{hosts}.toml"), &text)
    };
    for _ in 0..4 {
        let start = |hosts| {
            let file = fabric(hosts);
            (hosts, lab.start(&["testbed", "up", "--detach", "--name", name, &file]))
        };
        let starts = [4, 6, 8, 10].map(start);
        let ends = starts.map(|(hosts, process)| (hosts, process.output()));
        let (up, refused): (Vec<_>, Vec<_>) = ends.into_iter().partition(|(_, end)| end.status.success());
        let [(hosts, said)] = &up[..] else { panic!("{} of them are up", up.len()) };
        let bed = status(&lab, name);
        assert_eq!(bed["hosts"].as_array().map(Vec::len), Some(*hosts), "{bed}");
        assert!(String::from_utf8_lossy(&said.stdout).contains(&format!("leaf-spine:hosts={hosts},")));
        let why = format!("tonce is up already (process {}); expected another --name", bed["pid"]);
        for (_, end) in &refused {
            assert!(end.status.code() == Some(1) && stderr_of(end).contains(&why), "{}", stderr_of(end));
        }
        down(&lab, name);
    }
}

#[test]
fn the_name_option_may_come_before_or_after_the_link() {
    let (lab, name) = (Lab::new(), "twhere");
    let bed = up(&lab, name, &[FABRIC]);
    let _down = Down(&lab, name);
    assert_eq!(bed["links"], Value::Array(Vec::new()));
    for (words, links) in [
        (&["link", "--name", name, "host=1", "down"][..], "[\"host=1: down\"]"),
        (&["link", "host=1", "drop=0.5", "--name", name], "[\"host=1: down, drop=0.5\"]"),
        (&["--name", name, "link", "host=1", "up"], "[]"),
    ] {
        let output = lab.run(&[&["testbed", "set"], words].concat());
        assert!(output.status.success(), "{words:?}: {}", stderr_of(&output));
        assert_eq!(status(&lab, name)["links"].to_string(), links, "{words:?}");
    }
}

#[test]
fn in_the_foreground_it_ends_with_a_signal() {
    let (lab, name) = (Lab::new(), "tfront");
    let process = lab.start(&["testbed", "up", "--name", name, FABRIC]);
    let control = lab.runtime().join(name).join("control.sock");
    until("the switches listen", || control.exists());
    assert_eq!(status(&lab, name)["pid"].as_u64(), Some(process.pid().into()));
    let done = Command::new("kill").args(["-TERM", &process.pid().to_string()]).status();
    assert!(done.expect("there is kill").success());
    let output = process.output();
    assert!(output.status.success(), "{}", stderr_of(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("weft perf client "), "it says what to type");
    assert!(!control.exists());
}

/// The doctor's finding on trimming from host 2 to host 0, whose link is forty times slower than the others.
fn trimming(lab: &Lab, name: &str, bed: &Value) -> (String, String) {
    let output = set(lab, name, &["host=0", "rate=5M"]);
    assert!(output.status.success(), "{}", stderr_of(&output));
    let _answering = at_host(lab, bed, 0, &["doctor", "--answer", "--wait", "60000ms"], &[]);
    let peer = text(&bed["hosts"][0]["called"]);
    let mut found = None;
    // The answering doctor may take a while to start.
    until("the other end answers", || {
        let output = at_host(lab, bed, 2, &["doctor", "--path", peer, "--json", "-"], &[]).output();
        let list: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", stderr_of(&output)));
        let finding = |check| list.as_array()?.iter().find(|finding| finding["check"] == check);
        found = finding("trimming").cloned();
        found.is_some()
    });
    let found = found.expect("it was waited for");
    (text(&found["state"]).to_owned(), text(&found["seen"]).to_owned())
}

/// A fabric of 4 hosts at 200 Mbit/s.
fn small_fabric(lab: &Lab, trim: bool) -> String {
    let text = format!("topology = \"leaf-spine:hosts=4,leaves=2\"\nslow = 500\ntrim = {trim}\n");
    lab.file("small.toml", &text)
}

/// Checks that the doctor counts exactly the packets that the switches have trimmed.
fn assert_trimming_is_seen(name: &str, kind: &str) {
    let lab = Lab::new();
    let bed = up(&lab, name, &[&small_fabric(&lab, true), "--hosts", kind]);
    let _down = Down(&lab, name);
    let (state, seen) = trimming(&lab, name, &bed);
    let frames = &status(&lab, name)["frames"];
    let counted = format!(" arrived whole, {} trimmed, 0 not at all", frames["trimmed"]);
    assert!(state == "ok" && seen.ends_with(&counted), "{state}: {seen}: {frames}");
    assert!(frames["trimmed"].as_u64() > Some(0), "{frames}");
}

/// Checks that the doctor reports drops as bad in a fabric that does not trim.
fn assert_drops_are_seen(name: &str, kind: &str) {
    let lab = Lab::new();
    let bed = up(&lab, name, &[&small_fabric(&lab, false), "--hosts", kind]);
    let _down = Down(&lab, name);
    let (state, seen) = trimming(&lab, name, &bed);
    let frames = &status(&lab, name)["frames"];
    assert!(
        state == "bad" && seen.contains("the fabric") && seen.contains(" 0 trimmed, "),
        "{state}: {seen}"
    );
    assert!(frames["dropped"].as_u64() > Some(0) && frames["trimmed"] == 0, "{frames}");
}

#[test]
fn the_doctor_sees_trimming_over_memif() {
    assert_trimming_is_seen("dtrim", "memif");
}

#[test]
fn the_doctor_sees_drops_over_memif() {
    assert_drops_are_seen("ddrop", "memif");
}

#[test]
fn the_doctor_sees_trimming_over_udp() {
    assert_trimming_is_seen("dtrimu", "udp");
}

#[cfg(feature = "dpdk")]
#[test]
fn the_doctor_sees_trimming_and_drops_over_veth() {
    if let Some(why) = no_namespaces() {
        return skipped(&why);
    }
    let name = format!("d{}", std::process::id() % 1_000_000);
    assert_trimming_is_seen(&name, "veth");
    assert_drops_are_seen(&name, "veth");
}

/// The next completion of a message, which must come.
fn message(endpoint: &mut weft::Endpoint) -> weft::Completion {
    let begin = std::time::Instant::now();
    loop {
        let done = endpoint.wait(Duration::from_secs(1)).expect("the server is there");
        match done {
            Some(done @ (weft::Completion::Sent { .. } | weft::Completion::Received { .. })) => return done,
            _ => assert!(begin.elapsed() < Duration::from_secs(60), "no message"),
        }
    }
}

#[test]
fn programs_run_at_the_hosts_of_a_testbed_with_servers() {
    let (lab, name) = (Lab::new(), "texec");
    let file = lab.file(
        "bed.toml",
        "topology = \"leaf-spine:hosts=4,leaves=2,spines=2\"\nslow = 500\n\
         link-event = [\"0us host=3 dir=down trim=0.5\"]\n",
    );
    let plain = up(&lab, name, &[&file]);
    let exec = |variables: &[(&str, &str)], options: &[&str]| {
        let words =
            [&["testbed", "exec", "--name", name], options, &["--", "sh", "-c", "echo $FI_WEFT_PORT"]];
        let mut command = lab.command(&words.concat());
        command.envs(variables.iter().copied()).output().expect("it runs")
    };
    let none = exec(&[], &["--host", "0"]);
    assert!(
        stderr_of(&none).contains("expected weft testbed up --serve --name texec"),
        "{}",
        stderr_of(&none)
    );
    assert!(plain["hosts"][0]["serve"].is_null());
    down(&lab, name);

    let bed = up(&lab, name, &[&file, "--serve"]);
    let _down = Down(&lab, name);
    let server = |host: usize| format!("serve:{}", text(&bed["hosts"][host]["serve"]));
    for (variable, rank, host) in [("OMPI_COMM_WORLD_RANK", "0", 0), ("PMI_RANK", "6", 2)] {
        let said = exec(&[(variable, rank)], &[]);
        assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), server(host), "{}", stderr_of(&said));
    }
    for (variables, options, why) in [
        (&[][..], &["--host", "4"][..], "expected a host below 4"),
        (&[], &[], "expected --host N, or a rank in one of OMPI_COMM_WORLD_RANK"),
        (&[("PMI_RANK", "x")], &[], "PMI_RANK=x: expected a number"),
    ] {
        let said = exec(variables, options);
        assert!(said.status.code() == Some(2) && stderr_of(&said).contains(why), "{}", stderr_of(&said));
    }

    // From host 0 to host 3, and from host 3 to itself; half of what goes to host 3 over its link is trimmed.
    let [mut from, mut to] = [0, 3].map(|host| weft::Endpoint::builder(server(host)).build().expect("joins"));
    let bytes: Vec<u8> = (0..200_000u32).map(|n| ((n * 7) >> 2) as u8).collect();
    let called = |host: usize| text(&bed["hosts"][host]["called"]);
    assert_eq!(to.ip().map(|ip| ip.to_string()).as_deref(), Some(called(3)));
    let process = weft::ConnectOptions::default().process(to.process());
    let knows = to.peer(called(0)).expect("a peer");
    assert_ne!(knows, weft::Addr(0));
    let peer = from.peer(called(3)).expect("a peer");
    let connection = from.connect_with(peer, process).expect("a connection");
    from.send(connection, bytes.clone()).expect("it is posted");
    let own = to.peer(called(3)).expect("itself");
    let connection = to.connect_with(own, process).expect("a connection");
    to.receive(vec![0; 200_000]).expect("it is posted");
    assert_eq!(message(&mut to).message().as_deref(), Some(&bytes[..]));
    assert!(matches!(message(&mut from), weft::Completion::Sent { result: Ok(()), .. }));
    to.receive(vec![0; 5]).expect("it is posted");
    to.send(connection, b"hello").expect("it is posted");
    let both = [message(&mut to), message(&mut to)];
    assert!(both.iter().any(|done| done.message().as_deref() == Some(b"hello")), "{both:?}");
    let trimmed = status(&lab, name)["frames"]["trimmed"].as_u64();
    assert!(trimmed > Some(20), "of 49 packets, and those sent again: {trimmed:?}");

    // The servers do not outlive the switches.
    kill(&bed);
    until("the server is gone", || from.wait(Duration::from_millis(10)).is_err());
}
