//! A UDP port over imperfect networks: trimmed packets, congestion marks, full buffers, paths with a smaller MTU,
//! reports of such paths that are forged, absent peers.

mod harness;
mod skipped;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use harness::{MTU, Results, WorkerPair, config_with, content, host, worker};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with};
use skipped::skipped;
use weft_stack::Span;
use weft_stack::cc::CcChoice;
use weft_stack::port::udp::{Notice, UdpConfig, UdpPort, mac_of};
use weft_stack::port::{BURST, Frame, FramePool, Port, PortCaps, PortCounters, RxBurst, Timestamps, TxBurst};
use weft_stack::spray::Entropy;
use weft_stack::wire::class::{DscpClasses, PacketClass, Priority, TrimPoint};
use weft_stack::wire::edit::mark_ce;
use weft_stack::wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, EthernetHeader};
use weft_stack::wire::ip::Ecn;
use weft_stack::wire::ipv4::Ipv4Header;
use weft_stack::wire::ipv6::Ipv6Header;
use weft_stack::wire::pds::DeliveryMode;
use weft_stack::wire::trim::{TrimFormat, TrimOutcome, TrimPolicy, trim_frame};
use weft_stack::wire::udp::{UET_UDP_PORT, UdpHeader, entropy_to_port};
use weft_stack::worker::LinkConfig;

/// Length of Ethernet, IPv4 and UDP headers, bytes.
const HEADERS: usize = 42;

fn ports(v6: bool, change: fn(UdpConfig) -> UdpConfig) -> [UdpPort; 2] {
    let address = if v6 { "::1" } else { "127.0.0.1" }.parse().unwrap();
    let open = |n| {
        let config = UdpConfig { alias: Some(host(n, v6).ip), ..UdpConfig::at(address) };
        UdpPort::open(&change(config.with_free_ports())).unwrap()
    };
    let (mut a, mut b) = (open(0), open(1));
    a.meet(&b.as_peer()).unwrap();
    b.meet(&a.as_peer()).unwrap();
    [a, b]
}

/// Writes headers for a datagram from 10.0.0.1 to `dst` with `ecn` in front of the payload, which is numbered.
fn dress(frame: &mut [u8], dst: Ipv4Addr, ecn: Ecn, number: u8) {
    let (src, len) = (Ipv4Addr::new(10, 0, 0, 1), (frame.len() - HEADERS) as u16);
    frame.fill(number);
    let (src_mac, dst_mac) = (mac_of(src.into()), mac_of(dst.into()));
    let ethernet = EthernetHeader { dst: dst_mac, src: src_mac, vlan: None, ethertype: ETHERTYPE_IPV4 };
    let mut at = ethernet.emit(frame).unwrap();
    let ip = Ipv4Header {
        dscp: DscpClasses::default().dscp(PacketClass::Trimmable(Priority::LOWEST)),
        ecn,
        identification: 0,
        dont_fragment: true,
        ttl: 64,
        protocol: 17,
        src,
        dst,
        payload_len: len + 8,
    };
    at += ip.emit(&mut frame[at..]).unwrap();
    dress_udp(&mut frame[at..], len);
}

/// Writes the header of a datagram with `len` bytes.
fn dress_udp(frame: &mut [u8], len: u16) {
    let (src_port, dst_port) = (entropy_to_port(Entropy(0)), UET_UDP_PORT);
    UdpHeader { src_port, dst_port, payload_len: len, checksum: 0 }.emit(frame).unwrap();
}

/// Sends `count` numbered datagrams of `len` bytes to `dst` in one burst. Returns how many remain in the burst.
fn send(port: &mut UdpPort, dst: Ipv4Addr, count: u8, len: usize) -> usize {
    let mut tx = TxBurst::new(port);
    for n in 0..count {
        let mut frame = tx.reserve(HEADERS + len).unwrap();
        dress(&mut frame, dst, Ecn::Ect0, n);
        frame.commit();
    }
    port.transmit(&mut tx);
    tx.len()
}

const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// A port whose link trims every fifth outgoing data packet, and marks every third.
struct Congested {
    inner: UdpPort,
    out: TxBurst,
    seen: u32,
    trimmed: u64,
    marked: u64,
}

impl Congested {
    fn new(inner: UdpPort) -> Congested {
        Congested { out: TxBurst::new(&inner), inner, seen: 0, trimmed: 0, marked: 0 }
    }

    fn treat(&mut self, frame: &mut Frame) {
        self.seen += 1;
        if self.seen.is_multiple_of(3) {
            self.marked += u64::from(mark_ce(frame).unwrap());
        }
        let policy = TrimPolicy { size: 128, format: TrimFormat::LengthRewritten, point: TrimPoint::Fabric };
        if self.seen.is_multiple_of(5)
            && let TrimOutcome::Trimmed(len) = trim_frame(frame, &DscpClasses::default(), &policy).unwrap()
        {
            frame.truncate(len);
            self.trimmed += 1;
        }
    }
}

impl Port for Congested {
    fn receive(&mut self, burst: &mut RxBurst) -> usize {
        self.inner.receive(burst)
    }

    fn transmit(&mut self, burst: &mut TxBurst) -> usize {
        let taken: Vec<Frame> = burst.take_front(self.out.room()).collect();
        let count = taken.len();
        for mut frame in taken {
            self.treat(&mut frame);
            self.out.push(frame).unwrap();
        }
        self.inner.transmit(&mut self.out);
        count
    }

    fn capabilities(&self) -> PortCaps {
        self.inner.capabilities()
    }

    fn pool(&self) -> FramePool {
        self.inner.pool()
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}

#[test]
fn frames_say_how_long_they_have_waited_for_the_port_to_be_read() {
    let [mut a, mut b] = ports(false, |config| config);
    assert_eq!(b.capabilities().timestamps, Timestamps::Kernel);
    let IpAddr::V4(dst) = b.ip() else { panic!("{}", b.ip()) };
    assert_eq!(send(&mut a, dst, 3, 1_000), 0);
    std::thread::sleep(Duration::from_millis(30));
    let mut burst = RxBurst::new();
    assert_eq!(b.receive(&mut burst), 3);
    for frame in burst.drain() {
        assert!((Span::from_ms(30)..Span::from_ms(1_000)).contains(&frame.waited()), "{}", frame.waited());
    }
}

/// Trimmed headers and marks cross the sockets, and both ends handle them as over any other port.
fn trims_and_marks_arrive(v6: bool) {
    const SIZES: [usize; 4] = [1, 4096, 100_000, 1 << 20];
    let [a, b] = ports(v6, |config| config);
    // A window that marks do not shrink: with only two packets in flight, a trimmed one may have to wait for a timer.
    let config = config_with(&CcChoice::parse("constant").unwrap(), MTU, true)
        .with_zones(|zone| zone.paths = a.entropies());
    let side = |n, port| worker(n, Congested::new(port), &config, LinkConfig::default(), v6);
    let mut pair = WorkerPair::new(side(0, a), side(1, b));
    let connection = pair.connect(0, DeliveryMode::Rud);
    for (tag, len) in (0..).zip(SIZES) {
        pair.post_receive(1, tag, len);
        pair.post_send(0, connection, tag, content(tag, len));
    }
    let (mut results, mut turns) = (Results::default(), 0);
    while results.sent.len() < SIZES.len() {
        pair.turn();
        results.collect(&mut pair);
        turns += 1;
        assert!(turns < 2_000_000, "{} of {} arrived", results.received.len(), SIZES.len());
    }
    for (_, tag, _, bytes) in &results.received {
        assert!(*bytes == content(*tag, SIZES[*tag as usize]), "message {tag}");
    }
    let (port, sender, receiver) = (pair.a.port(), pair.a.fep().counters(), pair.b.fep().counters());
    assert!(port.trimmed > 20 && port.marked > 20, "{} trimmed, {} marked", port.trimmed, port.marked);
    assert_eq!(receiver.trimmed_received, port.trimmed, "every trimmed header arrived");
    // A trimmed packet may also have been marked.
    assert!((port.marked - port.trimmed.min(port.marked)..=port.marked).contains(&receiver.ecn_received));
    assert!(sender.nacks_received > 20 && sender.data_retransmitted >= sender.nacks_received, "{sender:?}");
    assert_eq!(sender.timeouts, 0, "NACKs suffice");
    assert_eq!(pair.b.counters().malformed, 0);
}

#[test]
fn trims_and_marks_arrive_over_ipv4() {
    trims_and_marks_arrive(false);
}

#[test]
fn trims_and_marks_arrive_over_ipv6() {
    trims_and_marks_arrive(true);
}

#[test]
fn ecn_crosses_the_sockets() {
    let [mut a, mut b] = ports(false, |config| config);
    let codes = [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce];
    let mut tx = TxBurst::new(&a);
    for ecn in codes {
        let mut frame = tx.reserve(HEADERS + 1000).unwrap();
        dress(&mut frame, PEER, ecn, 0);
        frame.commit();
    }
    a.transmit(&mut tx);
    let frames = receive(&mut b, codes.len());
    assert_eq!(frames.iter().map(|frame| frame[15] & 3).collect::<Vec<_>>(), codes.map(|ecn| ecn as u8));
}

/// Receives until there are `count` frames, for ten seconds at most.
fn receive(port: &mut UdpPort, count: usize) -> Vec<Frame> {
    let (mut frames, mut rx, began) = (Vec::new(), RxBurst::new(), Instant::now());
    while frames.len() < count {
        assert!(began.elapsed() < Duration::from_secs(10), "{} of {count} arrived", frames.len());
        port.receive(&mut rx);
        frames.extend(rx.drain());
    }
    frames
}

/// Sends more than the receive buffer holds, and receives the frames that fit.
fn overflow(change: fn(UdpConfig) -> UdpConfig) -> [PortCounters; 2] {
    let [mut a, mut b] = ports(false, change);
    assert!(b.receive_buffer() < 200_000, "too large a buffer for this test");
    for _ in 0..20 {
        assert_eq!(send(&mut a, PEER, BURST as u8, 2000), 0);
    }
    let (mut rx, mut last) = (RxBurst::new(), 1);
    while last > 0 {
        last = b.receive(&mut rx);
        rx.clear();
    }
    [a.counters(), b.counters()]
}

const SMALL: usize = 30_000;

#[test]
fn losses_in_a_full_receive_buffer_are_counted() {
    let [a, b] = overflow(|config| UdpConfig { receive_buffer: SMALL, gso: false, gro: false, ..config });
    assert_eq!(a.tx_frames, 20 * BURST as u64);
    assert!(b.rx_missed > 0 && b.rx_frames > 0, "{b:?}");
    // The last datagrams are among the lost ones: counting them must not depend on a later arrival.
    assert_eq!(b.rx_frames + b.rx_missed, a.tx_frames);
}

#[test]
fn joined_datagrams_count_as_one_loss() {
    let [a, b] = overflow(|config| UdpConfig { receive_buffer: SMALL, ..config });
    assert!(b.rx_missed > 0 && b.rx_frames > 0, "{b:?}");
    assert!(b.rx_frames + b.rx_missed <= a.tx_frames, "no more than there were: {b:?}");
}

#[test]
fn one_call_receives_all_waiting_frames() {
    for joins in [false, true] {
        let [mut a, mut b] = if joins {
            ports(false, |config| config)
        } else {
            ports(false, |config| UdpConfig { gro: false, ..config })
        };
        assert_eq!(send(&mut a, PEER, 3, 1000), 0);
        let mut rx = RxBurst::new();
        // A worker that waits for the socket to become readable, after a call that found no frame, must have seen all
        // frames.
        assert_eq!((b.receive(&mut rx), b.receive(&mut rx)), (3, 0), "joined: {joins}");
    }
}

#[test]
fn a_peer_that_is_gone_does_not_disturb_other_peers() {
    let [mut a, mut b] = ports(false, |config| UdpConfig { sources: 1, ..config });
    let gone = UdpPort::open(
        &UdpConfig { alias: Some([10, 0, 0, 3].into()), ..UdpConfig::default() }.with_free_ports(),
    )
    .unwrap();
    a.meet(&gone.as_peer()).unwrap();
    drop(gone);
    let began = Instant::now();
    let mut sent = 0;
    // The kernel reports the first refusal instead of sending a later datagram.
    while a.udp_counters().unreachable == 0 {
        assert!(began.elapsed() < Duration::from_secs(10), "nothing is said of the peer");
        assert_eq!(send(&mut a, [10, 0, 0, 3].into(), 1, 100) + send(&mut a, PEER, 1, 100), 0);
        sent += 1;
    }
    let counters = a.counters();
    assert_eq!((counters.tx_frames, counters.tx_errors), (2 * sent, 0), "what was reported is past");
    assert!(a.notices().contains(&Notice::Unreachable { errno: libc_econnrefused() }), "{:?}", a.notices());
    assert_eq!(receive(&mut b, sent as usize).len(), sent as usize, "the other peer misses nothing");
}

/// Linux's number of `ECONNREFUSED`.
fn libc_econnrefused() -> i32 {
    111
}

/// Runs the rest of the test `name` in a network of its own, after the commands `prepare`; needs the right to make one.
fn in_own_network(name: &str, prepare: &str, rest: fn()) {
    const INSIDE: &str = "WEFT_TEST_OWN_NETWORK";
    if std::env::var_os(INSIDE).is_some() {
        return rest();
    }
    let test = std::env::current_exe().unwrap();
    let script = format!("{{ {prepare}; }} || exit 77; {INSIDE}=1 '{}' --exact {name}", test.display());
    let made = Command::new("unshare").args(["--map-root-user", "--net", "sh", "-c", &script]).output();
    let output = match made {
        Ok(output) => output,
        Err(error) => return skipped(&format!("unshare: {error}")),
    };
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        assert!(text.contains("1 passed"), "{text}");
    } else if text.contains("panicked") {
        panic!("{text}");
    } else {
        skipped(&format!("no network of its own: {text}"));
    }
}

#[test]
fn packets_too_long_for_the_interface_are_named() {
    let name = "packets_too_long_for_the_interface_are_named";
    in_own_network(name, "ip link set lo mtu 1500 up", too_long_for_the_interface);
}

fn too_long_for_the_interface() {
    let own = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let open = |mtu| UdpPort::open(&UdpConfig { mtu, ..UdpConfig::at(own) }.with_free_ports()).unwrap();
    let (mut long, mut short) = (open(4000), open(1500));
    let error = long.meet(&short.as_peer()).unwrap_err().to_string();
    assert!(error.contains("carries packets of 1500 bytes, and this port sends 4000"), "{error}");

    // They are sent nevertheless: two datagrams that are too long, each refused by itself, and one that fits.
    let mut tx = TxBurst::new(&long);
    for len in [3000, 3000, 1400] {
        let mut frame = tx.reserve(HEADERS + len).unwrap();
        dress(&mut frame, Ipv4Addr::LOCALHOST, Ecn::Ect0, 0);
        frame.commit();
    }
    assert_eq!(long.transmit(&mut tx), 3, "none stays in the burst for ever");
    assert_eq!((long.counters().tx_errors, long.counters().tx_frames), (2, 1));
    assert_eq!(long.notices(), [Notice::TooLong { packet: 3028, interface: Some(1500) }]);
    assert!(long.joins().0, "it was the interface's fault, not the device's");
    assert_eq!(send(&mut short, Ipv4Addr::LOCALHOST, 4, 1400), 0);
    assert_eq!(short.counters().tx_errors, 0);
}

/// Anybody can write a router's report that the path of a port's packets carries only shorter ones.
#[test]
fn a_forged_report_of_a_short_path_stops_nothing() {
    let name = "a_forged_report_of_a_short_path_stops_nothing";
    in_own_network(name, "ip link set lo up", || {
        forged_report(false);
        forged_report(true);
    });
}

fn forged_report(v6: bool) {
    const SHORT: u16 = 1300;
    let [mut a, mut b] = ports(v6, |config| UdpConfig { sources: 1, ..config });
    let ports = [a.as_peer().sources[0], b.local().port()];
    // The port reads 64 reports at once, and tries once more.
    for (reports, left) in [(0, 0), (1, 0), (100, 3)] {
        (0..reports).for_each(|_| forge_report(v6, ports, SHORT));
        let began = Instant::now();
        while reports > 0 && a.path_mtu(b.local()).unwrap() > usize::from(SHORT) {
            assert!(began.elapsed() < Duration::from_secs(10), "the kernel does not believe it");
        }
        let mut tx = TxBurst::new(&a);
        for n in 0..3 {
            let mut frame = tx.reserve(HEADERS + 20 * usize::from(v6) + 3000).unwrap();
            if v6 {
                dress_v6(&mut frame, n)
            } else {
                dress(&mut frame, PEER, Ecn::Ect0, n)
            }
            frame.commit();
        }
        a.transmit(&mut tx);
        assert_eq!((tx.len(), a.counters().tx_errors), (left, 0), "{reports} reports");
        a.transmit(&mut tx);
        assert_eq!((tx.len(), a.counters().tx_errors), (0, 0), "{reports} reports");
        receive(&mut b, 3);
    }
    assert_eq!(a.udp_counters().unreachable, 101);
    assert_eq!(a.notices(), [Notice::ShortPath { path: SHORT.into() }], "a true one would have to be known");

    let open =
        |n| UdpConfig { alias: Some(host(n, v6).ip), ..UdpConfig::at(a.local().ip()) }.with_free_ports();
    let [mut c, d] = [open(2), open(3)].map(|config| UdpPort::open(&config).unwrap());
    c.meet(&d.as_peer()).unwrap();
    assert_eq!(c.notices(), [Notice::ShortPath { path: SHORT.into() }]);
}

/// Writes headers for a datagram from the first host to the second in front of the payload, which is numbered.
fn dress_v6(frame: &mut [u8], number: u8) {
    let [src, dst] = [0, 1].map(|n| match host(n, true).ip {
        IpAddr::V6(ip) => ip,
        ip => panic!("{ip}"),
    });
    let len = (frame.len() - HEADERS - 20) as u16;
    frame.fill(number);
    let (src_mac, dst_mac) = (mac_of(src.into()), mac_of(dst.into()));
    let ethernet = EthernetHeader { dst: dst_mac, src: src_mac, vlan: None, ethertype: ETHERTYPE_IPV6 };
    let mut at = ethernet.emit(frame).unwrap();
    let dscp = DscpClasses::default().dscp(PacketClass::Trimmable(Priority::LOWEST));
    let ip = Ipv6Header {
        dscp,
        ecn: Ecn::Ect0,
        flow_label: 0,
        next_header: 17,
        hop_limit: 64,
        src,
        dst,
        payload_len: len + 8,
    };
    at += ip.emit(&mut frame[at..]).unwrap();
    dress_udp(&mut frame[at..], len);
}

/// Sends the report that a datagram between these ports of the loopback address was too long for a path of `mtu` bytes.
fn forge_report(v6: bool, ports: [u16; 2], mtu: u16) {
    let [hi, lo] = mtu.to_be_bytes();
    let udp: Vec<u8> = ports.into_iter().chain([1008, 0]).flat_map(u16::to_be_bytes).collect();
    let (family, protocol, mut report) = if v6 {
        let ip = [0x60, 0, 0, 0, 3, 0xf0, 17, 64];
        let own = Ipv6Addr::LOCALHOST.octets();
        let quoted = [&ip[..], &own, &own, &udp].concat();
        (AddressFamily::INET6, ipproto::ICMPV6, [&[2, 0, 0, 0, 0, 0, hi, lo], &quoted[..]].concat())
    } else {
        let ip = [0x45, 0, 4, 4, 0, 0, 0x40, 0, 64, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1];
        (AddressFamily::INET, ipproto::ICMP, [&[3, 4, 0, 0, 0, 0, hi, lo], &ip[..], &udp].concat())
    };
    let sum: u32 = report.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    // The kernel writes the checksum of ICMPv6 itself.
    report[2..4].copy_from_slice(&(!(sum % 0xffff) as u16).to_be_bytes());
    let socket = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol)).unwrap();
    let to = SocketAddr::new(if v6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() }, 0);
    assert_eq!(sendto(&socket, &report, SendFlags::empty(), &to), Ok(report.len()));
}

/// The way leads over a router, whose next link carries less than the port's own.
#[test]
fn a_router_with_a_shorter_link_is_named() {
    let prepare = "
        unshare --net sleep 60 & router=$!; trap \"kill $router; wait\" EXIT
        for try in $(seq 500); do
            [ \"$(readlink /proc/$router/ns/net)\" = \"$(readlink /proc/self/ns/net)\" ] || break; sleep 0.01
        done
        ip link add own mtu 9000 type veth peer name near mtu 9000 netns $router &&
        ip addr add 192.0.2.1/24 dev own && ip link set own up && ip route add 198.51.100.0/24 via 192.0.2.2 &&
        nsenter --net=/proc/$router/ns/net sh -c '
            ip addr add 192.0.2.2/24 dev near && ip link set near up && echo 1 > /proc/sys/net/ipv4/ip_forward &&
            ip link add far mtu 1400 type veth peer name end mtu 1400 && ip link set end up &&
            ip addr add 198.51.100.1/24 dev far && ip link set far up'";
    in_own_network("a_router_with_a_shorter_link_is_named", prepare, || {
        let own = UdpConfig { mtu: 4000, ..UdpConfig::at([192, 0, 2, 1].into()) };
        let (mut port, peer) = (UdpPort::open(&own).unwrap(), Ipv4Addr::new(198, 51, 100, 2));
        let began = Instant::now();
        while port.notices() != [Notice::ShortPath { path: 1400 }] {
            assert!(began.elapsed() < Duration::from_secs(10), "nothing is said of it: {:?}", port.notices());
            assert_eq!(send(&mut port, peer, 2, 3000), 0);
        }
        assert_eq!(port.counters().tx_errors, 0);
    });
}
