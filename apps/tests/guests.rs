//! Network cards: two virtual machines that transfer through DPDK's drivers (`scripts/test-guests.sh`), and the
//! tests that this program runs inside of them.
#![cfg(feature = "dpdk")]

#[path = "../../stack/tests/skipped/mod.rs"]
mod skipped;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use weft_stack::port::dpdk::{DpdkPort, DpdkPortConfig, Eal, EalOptions, MbufPool, MbufPoolConfig, Spread};
use weft_stack::port::{BURST, Port, RxBurst, TxBurst};
use weft_stack::wire::checksum::checksum;
use weft_stack::worker::Steering;

/// The script's status when something is not to be had.
const NOT_HERE: i32 = 77;
/// Names the card, in a guest.
const CARD: &str = "WEFT_GUEST_CARD";
/// Receive queues of the server's card.
const QUEUES: u16 = 4;
/// Hosts that frames come from, of each IP version.
const PEERS: u8 = 32;
/// Source ports of each.
const ENTROPIES: u16 = 16;
/// How many of them must have been seen.
const SEEN: usize = 8;
/// How often each frame is sent: TAP devices and bridges drop some.
const ROUNDS: usize = 20;
/// A guest waits that long for frames: longer than the other one lives, which has its other tests to run before.
const PATIENCE: Duration = Duration::from_secs(900);
/// How long a card may take none of the frames that it is given.
const CARD_PATIENCE: Duration = Duration::from_secs(60);

#[test]
#[ignore = "boots two emulated machines, one minute to five: scripts/setup.sh --guests, then --ignored two_machines"]
fn two_machines_transfer_through_their_cards() {
    let directory = tempfile::tempdir().expect("there is room for logs");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/test-guests.sh");
    let mut command = Command::new(script);
    command.arg("--weft").arg(env!("CARGO_BIN_EXE_weft"));
    command.arg("--queues").arg(std::env::current_exe().expect("this program has a path"));
    command.arg("--directory").arg(directory.path());
    let output = command.output().expect("the script starts");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    for why in text.lines().filter_map(|line| line.strip_prefix("skipped: ")) {
        skipped::skipped(why);
    }
    if output.status.code() == Some(NOT_HERE) {
        return;
    }
    assert!(output.status.success(), "{}: {text}", output.status);
    let (client, server) = (reports(directory.path(), "client"), reports(directory.path(), "server"));
    // Of the tests that were not killed; in their order, for both cards.
    assert_eq!((client.len(), server.len()), (8, 8), "{text}");
    let bytes = [16 << 18, 20 * 100_000, 1000 * 64, 50 * 64];
    for (n, (client, server)) in client.iter().zip(&server).enumerate() {
        let card = ["0000:00:03.0", "0000:00:04.0"][n / 4];
        // Of its link the emulated 82574 says 1 Gbit/s, the emulated virtio card nothing.
        let expected = client["expected"]["goodput_gbps"].as_f64();
        match n / 4 {
            0 => assert_eq!(expected, None, "{client}"),
            _ => assert!(expected.is_some_and(|gbps| gbps > 0.0 && gbps < 1.0), "{client}"),
        }
        for report in [client, server] {
            assert_eq!(report["expected"]["goodput_gbps"].as_f64(), expected, "{report}");
            assert_eq!(report["port"], format!("dpdk:{card}"), "{report}");
            assert_eq!(report["server"]["verified_bytes"], bytes[n % 4], "{report}");
            assert_eq!(report["server"]["wrong_bytes"], 0, "{report}");
            assert_eq!(report["server"]["wrong_messages"], 0, "{report}");
        }
    }
}

/// The reports that `weft` has written in a guest.
fn reports(directory: &Path, role: &str) -> Vec<Value> {
    let path = directory.join(format!("{role}.results"));
    let text = std::fs::read_to_string(path).expect("the guest has written results");
    let objects = text.lines().filter(|line| line.starts_with('{'));
    objects.map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

#[test]
#[ignore = "runs in a guest"]
fn guest_receives_by_queues() {
    let Some((eal, card)) = card() else { return };
    let mut ports =
        DpdkPort::open_queues(eal, &card, QUEUES, Spread::Addresses, pool(eal), &config()).unwrap();
    // The script waits for this line before it starts the other guest.
    println!("queues: listening");
    let steering = Steering::over(QUEUES);
    let mut seen: BTreeMap<IpAddr, BTreeSet<u16>> = BTreeMap::new();
    let mut frames = [0u64; QUEUES as usize];
    let begin = Instant::now();
    let mut woken = [0; QUEUES as usize];
    while seen.len() < 2 * usize::from(PEERS)
        || seen.values().any(|ports| ports.len() < SEEN)
        || woken.contains(&0)
    {
        assert!(
            begin.elapsed() < PATIENCE,
            "by queue {frames:?}, which ended {woken:?} sleeps, of {} hosts: {seen:?}",
            seen.len()
        );
        // As workers do it: announced are only frames that come after this, so that the queues are looked into next.
        assert!(ports.iter_mut().all(|port| port.waitable().is_some()), "all queues announce frames");
        let mut received = 0;
        for (queue, port) in ports.iter_mut().enumerate() {
            let mut burst = RxBurst::new();
            received += port.receive(&mut burst);
            for (peer, own, entropy) in burst.drain().filter_map(|frame| read(&frame)) {
                assert_eq!(queue, usize::from(steering.queue(peer, own)), "{peer} port {entropy}");
                seen.entry(peer).or_default().insert(entropy);
                frames[queue] += 1;
            }
        }
        if received == 0 {
            sleep_until_one_announces(&mut ports);
        }
        for (port, woken) in ports.iter_mut().zip(&mut woken) {
            port.waited();
            *woken = port.woken();
        }
    }
    assert!(frames.iter().all(|count| *count > 0), "{frames:?}");
    println!(
        "queues: frames of {} hosts, by queue: {frames:?}; none in another's; sleeps ended by them: {woken:?}",
        seen.len()
    );
}

/// Sleeps until one of the queues announces a frame, or as long as nothing comes.
fn sleep_until_one_announces(ports: &mut [DpdkPort]) {
    const SECOND: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
    let announced = ports.iter_mut().filter_map(|port| port.waitable());
    let mut fds: Vec<_> = announced.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    // A signal ends it early, which is harmless.
    let _ = poll(&mut fds, Some(&SECOND));
}

#[test]
#[ignore = "runs in a guest"]
fn guest_sends_to_queues() {
    let Some((eal, card)) = card() else { return };
    let mut port = DpdkPort::open(eal, &card, pool(eal), &config()).unwrap();
    port.wait_for_link(Duration::from_secs(10)).unwrap();
    let from = port.capabilities().mac;
    for _ in 0..ROUNDS {
        for (peer, own) in (1..=PEERS).flat_map(pairs) {
            let mut burst = TxBurst::new(&port);
            for entropy in 0..ENTROPIES {
                let frame = frame(from, peer, own, 0xc000 + entropy * 17);
                let mut place = burst.reserve(frame.len()).expect("a buffer is free");
                place.copy_from_slice(&frame);
                place.commit();
            }
            let begin = Instant::now();
            while !burst.is_empty() {
                let waiting = burst.len();
                assert!(
                    begin.elapsed() < CARD_PATIENCE,
                    "the card does not take {waiting} frames of host {peer}"
                );
                port.transmit(&mut burst);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

const _: () = assert!(ENTROPIES as usize <= BURST);

/// DPDK with the card of this guest; none anywhere else.
fn card() -> Option<(Eal, String)> {
    let Ok(card) = std::env::var(CARD) else {
        skipped::skipped("this is no guest of scripts/test-guests.sh");
        return None;
    };
    Some((Eal::init(&EalOptions::nic(vec![card.clone()])).unwrap(), card))
}

fn pool(eal: Eal) -> MbufPool {
    let config = MbufPoolConfig { buffers: 8191, buffer_size: 2048, ..MbufPoolConfig::default() };
    MbufPool::create(eal, "queues", &config).unwrap()
}

fn config() -> DpdkPortConfig {
    DpdkPortConfig { mtu: 1500, ..DpdkPortConfig::default() }
}

/// Host `n` and the server, of both versions of IP.
fn pairs(n: u8) -> [(IpAddr, IpAddr); 2] {
    let v6 = |last| IpAddr::from([0xfd00, 7, 0, 0, 0, 0, 0, last]);
    [([10, 7, 3, n].into(), [10, 7, 0, 1].into()), (v6(0x300 + u16::from(n)), v6(1))]
}

/// A UDP datagram of 18 bytes in a broadcast Ethernet frame, without a UDP checksum: the receivers verify none.
fn frame(from: [u8; 6], src: IpAddr, dst: IpAddr, port: u16) -> Vec<u8> {
    const UDP: [u8; 6] = [0x12, 0xb7, 0, 26, 0, 0];
    let mut frame = [[0xff; 6], from].concat();
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut header = vec![0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0, 0];
            header.extend([src.octets(), dst.octets()].concat());
            let sum = checksum(&header).to_be_bytes();
            header[10..12].copy_from_slice(&sum);
            frame.extend([0x08, 0x00]);
            frame.extend(header);
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 26, 17, 64]);
            frame.extend([src.octets(), dst.octets()].concat());
        }
        _ => unreachable!("both are of one version"),
    }
    frame.extend(port.to_be_bytes());
    frame.extend(UDP);
    frame.extend([0; 18]);
    frame
}

/// Source, destination and source port of a frame of [`frame`]; `None` for frames that the guests' kernels send.
fn read(frame: &[u8]) -> Option<(IpAddr, IpAddr, u16)> {
    let part = |at: usize, len: usize| frame.get(at..at + len);
    let v4 = |at| part(at, 4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok()).map(IpAddr::from);
    let v6 = |at| part(at, 16).and_then(|bytes| <[u8; 16]>::try_from(bytes).ok()).map(IpAddr::from);
    let (src, dst, udp) = match part(12, 2)? {
        [0x08, 0x00] => (v4(26)?, v4(30)?, 34),
        [0x86, 0xdd] => (v6(22)?, v6(38)?, 54),
        _ => return None,
    };
    let ours = (1..=PEERS).flat_map(pairs).any(|pair| pair == (src, dst));
    let port = part(udp, 2)?;
    ours.then(|| (src, dst, u16::from_be_bytes([port[0], port[1]])))
}
