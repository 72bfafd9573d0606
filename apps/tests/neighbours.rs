//! A peer that is not there is named at once, on a link of the kernel in a network of its own: to who runs `weft perf`,
//! with what to do, and to applications of `weft serve`.
#![cfg(feature = "dpdk")]

#[path = "../../stack/tests/skipped/mod.rs"]
mod skipped;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use weft_stack::fep::ConnectOptions;
use weft_stack::packet::Addr;
use weft_stack::worker::session::{Client, Extent, Report, Request, SessionConfig};

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
    skipped::skipped(&format!("no network of its own: {why}"));
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
fn a_client_with_little_patience_reports_the_pending_address_request() {
    let command = client("net_af_packet0,iface=veth0", "10.9.0.1", "10.9.0.2", "1500ms");
    let Some((text, success)) = in_own_network(VETH, &command) else { return };
    assert!(!success);
    assert!(text.contains("10.9.0.2 has been asked for its Ethernet address"), "{text}");
    assert!(text.contains("waited for"), "{text}");
}

/// Runs a server with these options and, once it waits for clients, this client. Returns the output of both, and
/// whether the client succeeded.
fn with_server(setup: &str, options: &str, client: &str) -> Option<(String, bool)> {
    let said = tempfile::NamedTempFile::new().expect("a file");
    let (weft, said) = (env!("CARGO_BIN_EXE_weft"), said.path().display());
    let server =
        format!("'{weft}' perf server {options} --once --wait 50000ms --patience 20000ms > '{said}'");
    let until_it_waits = format!("until grep -q 'waiting for clients' '{said}'; do sleep 0.1; done");
    let both = format!(
        "{server} & {until_it_waits}; {client}; result=$?; kill -0 $! && echo SERVER_WAITS >&2; kill $!; exit $result"
    );
    in_own_network(setup, &both)
}

/// Questions and answers about addresses have the tag, or the other end would not hear them; packets have as much payload as
/// fits the MTU of the interfaces. Where the kernel has interfaces for VLANs, it adds and removes the tags of one end.
#[test]
fn both_ends_on_a_vlan() {
    let setup = format!(
        "{VETH} && {{ FAR='veth1 --vlan 7'; \
         if ip link add link veth1 name veth1.7 type vlan id 7; then ip link set veth1.7 up && FAR=veth1.7; fi; }}"
    );
    for (far, near, headers) in
        [("10.9.0.1", "10.9.0.2", 20 + 8 + 60), ("fd00:9::1", "fd00:9::2", 40 + 8 + 60)]
    {
        let ask = client("net_af_packet0,iface=veth0", near, far, "20000ms");
        let payload = 1500 - headers;
        let test = format!(
            "--port-mtu 1500 --payload {payload} --verify --size 20000 --count 50 --json /dev/stderr"
        );
        let server = format!("--ip {far} --payload {payload} --port dpdk:net_af_packet1,iface=$FAR");
        let ask = format!("{ask} --vlan 7:5 {test}");
        let Some((text, success)) = with_server(&setup, &server, &ask) else { return };
        assert!(success && text.contains("\"verified_bytes\":1000000"), "{text}");
    }
}

#[test]
fn a_host_on_another_vlan_does_not_answer() {
    for (there, here) in [("--vlan 7", "--vlan 8"), ("--vlan 7", ""), ("", "--vlan 8")] {
        let ask = client("net_af_packet0,iface=veth0", "10.9.0.2", "10.9.0.1", "20000ms");
        let server = format!("--port dpdk:net_af_packet1,iface=veth1 --ip 10.9.0.1 {there}");
        let Some((text, success)) = with_server(VETH, &server, &format!("{ask} {here}")) else { return };
        assert!(!success && text.contains("SERVER_WAITS"), "{text}");
        is_named(&text, "10.9.0.1");
    }
}

/// Set for this program when it runs in a network of its own: the server's socket.
const INSIDE: &str = "WEFT_TEST_ABSENT_PEER";
/// The line that this program prints there if the test succeeds.
const TOLD: &str = "the application was told";

#[test]
fn an_application_that_asks_for_an_absent_peer_is_told_so() {
    if let Some(socket) = std::env::var_os(INSIDE) {
        return application(std::path::Path::new(&socket));
    }
    let dir = tempfile::tempdir().expect("a directory");
    let (program, socket) = (std::env::current_exe().expect("a name"), dir.path().join("weft"));
    let command = format!(
        "{INSIDE}='{}' '{}' --nocapture --exact an_application_that_asks_for_an_absent_peer_is_told_so",
        socket.display(),
        program.display()
    );
    let Some((text, success)) = in_own_network(VETH, &command) else { return };
    // Without the word, no test of that name has run.
    assert!(success && text.contains(TOLD), "{text}");
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The application, and its server.
fn application(socket: &std::path::Path) {
    const LIMIT: Duration = Duration::from_secs(20);
    let options = "serve --port dpdk:net_af_packet0,iface=veth0 --ip 10.9.0.1 --peer 10.9.0.2 --socket";
    let mut server = Command::new(env!("CARGO_BIN_EXE_weft"));
    server.args(options.split(' ')).arg(socket).stdout(Stdio::piped());
    let mut server = Server(server.spawn().expect("weft starts"));
    let said = BufReader::new(server.0.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    assert!(said.into_iter().any(|line| line.contains("serving ")), "the server has ended");

    let mut client = Client::join(socket, &SessionConfig::default(), None, LIMIT).expect("it lets us in");
    let connection = client.connect(Addr(1), ConnectOptions::default(), 1).expect("room");
    client.send(connection, Extent { region: 0, offset: 0, len: 10 }, None, 0, 2).expect("room");
    let begin = Instant::now();
    let mut refused = || loop {
        assert!(begin.elapsed() < LIMIT, "nothing is said");
        client.wait(Duration::from_millis(100)).expect("the server lives");
        match client.poll().expect("the server lives").map(|event| event.report) {
            None => {}
            Some(Report::Refused { request, error, .. }) => return (request, error.to_string()),
            Some(other) => panic!("{other:?}"),
        }
    };
    let reports = [refused(), refused()];
    let connect = reports.iter().find(|(request, _)| *request == Request::Connect);
    let expected = "endpoint 1: no host on the link answers for 10.9.0.2: it was asked 3 times in 3 s";
    assert_eq!(connect.map(|(_, reason)| reason.as_str()), Some(expected), "{reports:?}");
    assert!(reports.iter().any(|(request, _)| *request == Request::Send), "{reports:?}");
    eprintln!("{TOLD}");
}
