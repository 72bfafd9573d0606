//! The same transfer over DPDK rings, memif and kernel UDP, with each fault and with all together: every byte arrives
//! as it was sent. All of it also works for a user without privileges.

mod harness;
mod skipped;

use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;
use std::time::Duration;

use harness::{MTU, Results, START, WorkerPair, config, content, host, worker};
use weft_stack::port::Port;
use weft_stack::port::dpdk::{DpdkPort, DpdkPortConfig, Eal, EalOptions, MbufPool, MbufPoolConfig};
use weft_stack::port::faulty::{FaultCounts, Faults, FaultyPort};
use weft_stack::port::memif::{MemifConfig, MemifPort, SocketName};
use weft_stack::port::udp::{UdpConfig, UdpPort};
use weft_stack::rng::Rng;
use weft_stack::wire::pds::DeliveryMode;
use weft_stack::worker::LinkConfig;

const NONE: Faults =
    Faults { drop: 0.0, corrupt: 0.0, duplicate: 0.0, reorder: 0.0, delay: 0.0, delay_frames: 0 };

const CASES: [(&str, Faults); 7] = [
    ("no faults", NONE),
    ("1 % loss", Faults { drop: 0.01, ..NONE }),
    ("10 % loss", Faults { drop: 0.1, ..NONE }),
    ("5 % duplication", Faults { duplicate: 0.05, ..NONE }),
    ("5 % reordering", Faults { reorder: 0.05, delay: 0.02, delay_frames: 40, ..NONE }),
    ("2 % bit corruption", Faults { corrupt: 0.02, ..NONE }),
    (
        "all at once",
        Faults { drop: 0.1, corrupt: 0.02, duplicate: 0.05, reorder: 0.05, delay: 0.02, delay_frames: 40 },
    ),
];

/// Lengths of the messages, which go both ways at once: 3 MiB each way.
const SIZES: [usize; 7] = [0, 1, MTU as usize - 1, MTU as usize + 1, 1 << 20, 1 << 20, 1 << 20];

/// More turns than the slowest case takes, by far.
const MAX_TURNS: u32 = 2_000_000;

/// The longest wait until both ends of a link are up.
const LINK: Duration = Duration::from_secs(20);

/// This variable is set in the process that has no privileges: see [`a_user_without_privileges_can_use_every_link`].
const NOBODY: &str = "WEFT_TEST_NOBODY";
const NOBODY_ID: u32 = 65_534;

/// Sends with each kind of fault over links from `open`, which returns two ports and their number of entropies.
fn survives_all<P: Port>(mut open: impl FnMut() -> ([P; 2], u16)) {
    assert_no_privileges_if_asked();
    for (name, faults) in CASES {
        for v6 in [false, true] {
            let (ports, paths) = open();
            let config = config(false).with_zones(|zone| zone.paths = paths);
            let mut ends = (0..).zip(ports).map(|(n, port)| {
                let port = FaultyPort::new(port, faults, Rng::new(7, n)).unwrap();
                worker(n as u32, port, &config, LinkConfig::default(), v6)
            });
            let mut pair = WorkerPair::new(ends.next().unwrap(), ends.next().unwrap());
            survives(name, &mut pair, faults);
        }
    }
}

fn survives<P: Port>(name: &str, pair: &mut WorkerPair<FaultyPort<P>, FaultyPort<P>>, faults: Faults) {
    let connections = [pair.connect(0, DeliveryMode::Rud), pair.connect(1, DeliveryMode::Rod)];
    for side in [0, 1] {
        for (tag, len) in (0..).zip(SIZES) {
            pair.post_receive(1 - side, tag, len);
            pair.post_send(side, connections[side as usize], tag, content(tag, len));
        }
    }
    let (mut results, mut turns) = (Results::default(), 0);
    while results.sent.len() + results.received.len() < 4 * SIZES.len() {
        pair.turn();
        results.collect(pair);
        turns += 1;
        let arrived = results.received.len();
        assert!(
            turns < MAX_TURNS,
            "{name}: {arrived} of {} after {}",
            2 * SIZES.len(),
            pair.now.since(START)
        );
    }
    assert!(results.sent.iter().all(|(.., result)| result.is_ok()), "{name}: {:?}", results.sent);
    let mut arrived: Vec<_> = results.received.iter().map(|(side, tag, ..)| (*side, *tag)).collect();
    arrived.sort_unstable();
    let expected: Vec<_> =
        [0, 1].into_iter().flat_map(|side| (0..SIZES.len() as u64).map(move |tag| (side, tag))).collect();
    assert_eq!(arrived, expected, "{name}: every message once");
    for (_, tag, _, bytes) in &results.received {
        assert!(*bytes == content(*tag, SIZES[*tag as usize]), "{name}: message {tag}");
    }
    assert_faults_struck(name, [pair.a.port().fault_counts(), pair.b.port().fault_counts()], faults);
}

/// Checks that each fault of the case has struck, since otherwise the case would show nothing.
fn assert_faults_struck(name: &str, [a, b]: [FaultCounts; 2], faults: Faults) {
    for (p, struck) in [
        (faults.drop, a.dropped + b.dropped),
        (faults.corrupt, a.corrupted + b.corrupted),
        (faults.duplicate, a.duplicated + b.duplicated),
        (faults.reorder, a.reordered + b.reordered),
        (faults.delay, a.delayed + b.delayed),
    ] {
        assert_eq!(p > 0.0, struck > 0, "{name}: probability {p}, {struck} times");
    }
}

fn eal() -> Eal {
    Eal::init(&EalOptions::default()).expect("DPDK starts without huge pages and privileges")
}

fn pool(name: &str, buffer_size: u16) -> MbufPool {
    let config = MbufPoolConfig { buffers: 4095, buffer_size, cache: 0, socket: None };
    MbufPool::create(eal(), name, &config).unwrap()
}

#[test]
fn messages_arrive_over_rings() {
    let pool = pool("rings", MbufPoolConfig::default().buffer_size);
    let mut links = 0;
    survives_all(|| {
        links += 1;
        let name = format!("path{links}");
        let (a, b) = DpdkPort::ring_pair(eal(), &name, 512, pool, &DpdkPortConfig::default()).unwrap();
        ([a, b], 64)
    });
}

#[test]
fn messages_arrive_over_memif() {
    let directory = tempfile::tempdir().unwrap();
    let mut links = 0;
    survives_all(|| {
        let socket = SocketName::Path(directory.path().join(format!("{links}.sock")));
        let configs = [MemifConfig::client(socket.clone()), MemifConfig::server(socket)];
        let ports = configs.map(|config| MemifPort::open(&config).unwrap());
        ports.iter().for_each(|port| port.wait_for_link(LINK).unwrap());
        links += 1;
        (ports, 64)
    });
}

#[test]
fn messages_arrive_over_kernel_udp() {
    let mut links = 0;
    survives_all(|| {
        // `survives_all` opens links for IPv4 and IPv6 in turn.
        let v6 = links % 2 == 1;
        links += 1;
        let address = if v6 { "::1" } else { "127.0.0.1" }.parse().unwrap();
        let [mut a, mut b] = [0, 1].map(|n| {
            let config = UdpConfig { alias: Some(host(n, v6).ip), ..UdpConfig::at(address) };
            UdpPort::open(&config.with_free_ports()).unwrap()
        });
        a.meet(&b.as_peer()).unwrap();
        b.meet(&a.as_peer()).unwrap();
        let paths = a.entropies();
        ([a, b], paths)
    });
}

/// Checks in the process of [`a_user_without_privileges_can_use_every_link`] that it has no privileges at all.
fn assert_no_privileges_if_asked() {
    if std::env::var_os(NOBODY).is_none() {
        return;
    }
    let user = rustix::process::geteuid().as_raw();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    assert_eq!((user, u64::from_str_radix(capabilities, 16)), (NOBODY_ID, Ok(0)));
}

#[test]
fn a_user_without_privileges_can_use_every_link() {
    if !rustix::process::geteuid().is_root() {
        return skipped::skipped("only root can become nobody");
    }
    // The user `nobody` can read the program here, and make sockets.
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("real_path");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    for path in [directory.path(), &program] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        chown(path, Some(NOBODY_ID), Some(NOBODY_ID)).unwrap();
    }
    let id = NOBODY_ID.to_string();
    let output = Command::new("timeout")
        .args(["-k", "5", "300", "setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"])
        .args(["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"])
        .arg(&program)
        .args(["messages_arrive_over_", "--test-threads", "1", "--nocapture"])
        .env(NOBODY, "1")
        .env("TMPDIR", directory.path())
        .env("XDG_RUNTIME_DIR", directory.path())
        .current_dir(directory.path())
        .output()
        .expect("timeout and setpriv are there");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("3 passed"), "{}: {text}", output.status);
}
