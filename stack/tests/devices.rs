//! Ports over devices that connect processes or reach the kernel's interfaces: memif, packet sockets, XDP sockets,
//! TAP, virtio. Tests that need privileges run in networks of their own.

mod device_lab;
mod port_suite;
mod skipped;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use device_lab::{Peer, in_own_network, task};
use port_suite::{Dress, Link, carries, conforms, conforms_across_threads};
use skipped::skipped;
use weft_stack::port::dpdk::{
    DpdkError, DpdkPort, DpdkPortConfig, Eal, EalOptions, MbufPool, MbufPoolConfig, Spread, buffer_size_for,
};
use weft_stack::port::{Attachment, Port, RxBurst, TxBurst};
use weft_stack::rng::Rng;

/// The longest wait for a peer.
const LINK: Duration = Duration::from_secs(20);

/// An EtherType for experiments, which the kernel's protocols leave alone.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// For links through the kernel, which removes VLAN tags from frames: at least 60 bytes, and no tag.
const PLAIN: Dress = Dress { headers: 60, write: |frame, _| frame[12..14].copy_from_slice(&ETHERTYPE) };

fn eal() -> Eal {
    Eal::get().unwrap_or_else(|| Eal::init(&EalOptions::default()).unwrap())
}

/// A number that no device or pool of this process has yet.
fn fresh() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn pool(buffers: u32, buffer_size: u16) -> MbufPool {
    let config = MbufPoolConfig { buffers, buffer_size, cache: 0, socket: None };
    MbufPool::create(eal(), &format!("pool{}", fresh()), &config).unwrap()
}

fn config(mtu: u16) -> DpdkPortConfig {
    DpdkPortConfig { mtu, promiscuous: true, ..DpdkPortConfig::default() }
}

fn memif(role: &str, socket: &Path) -> String {
    let socket = socket.display();
    format!("net_memif{},role={role},socket={socket},socket-abstract=no,bsize=9216,zero-copy=no", fresh())
}

fn open_memif(role: &str, socket: &Path, pool: MbufPool) -> DpdkPort {
    let device = memif(role, socket);
    let device = if role == "client" { device } else { device.replace(",zero-copy=no", "") };
    let mtu = (pool.buffer_size() - 14).min(9000) as u16;
    let config = DpdkPortConfig { peer_wait: LINK, ..config(mtu) };
    DpdkPort::open(eal(), &device, pool, &config).unwrap()
}

/// A link with both ends in this process.
fn memif_link(directory: &Path, pool: MbufPool) -> Link<DpdkPort, DpdkPort> {
    let socket = directory.join(format!("memif{}.sock", fresh()));
    let mut b = open_memif("server", &socket, pool);
    let mut a = open_memif("client", &socket, pool);
    a.wait_for_link(LINK).unwrap();
    b.wait_for_link(LINK).unwrap();
    // The client provides the buffers of both directions when it looks for frames.
    let mut rx = RxBurst::new();
    assert_eq!((a.receive(&mut rx), b.receive(&mut rx)), (0, 0));
    Link { a, b, frames: Some(1024), dress: Dress::NONE }
}

#[test]
fn memif_conforms() {
    let pool = pool(2047, 9216);
    let directory = tempfile::tempdir().unwrap();
    conforms(|| memif_link(directory.path(), pool));
}

/// Closes ends of memif while a thread of DPDK handles the loss of their peer.
#[test]
#[ignore = "a part of another test, in a process of its own"]
fn close_both_ends_at_once() {
    let pool = pool(255, 9216);
    let directory = tempfile::tempdir().unwrap();
    for round in 0..100u64 {
        let Link { a, b, .. } = memif_link(directory.path(), pool);
        let (first, second) = if round % 2 == 0 { (a, b) } else { (b, a) };
        drop(first);
        // Delays that hit every moment of the other thread's work.
        std::thread::sleep(Duration::from_micros(round % 60 / 2 * 10));
        drop(second);
        assert_eq!(pool.available(), 255);
        // DPDK may still handle interrupts of closed descriptors, so their numbers must not be reused yet.
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn both_ends_of_memif_can_close_at_once() {
    let program = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new(program);
    let output =
        command.args(["--exact", "close_both_ends_at_once", "--ignored", "--nocapture"]).output().unwrap();
    // DPDK logs an error if it sees that memory is freed twice.
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("Invalid memory"), "{}: {said}", output.status);
}

#[test]
fn memif_conforms_across_threads() {
    let directory = tempfile::tempdir().unwrap();
    conforms_across_threads(memif_link(directory.path(), pool(4095, 9216)), 100_000);
}

#[test]
fn payload_is_attached_to_frames_of_memif() {
    let directory = tempfile::tempdir().unwrap();
    let Link { mut a, mut b, .. } = memif_link(directory.path(), pool(511, 9216));
    let payload: Arc<[u8]> = (0..8000).map(|n| (n % 251) as u8).collect::<Vec<u8>>().into();
    let mut tx = TxBurst::new(&a);
    for len in [1, 64, 4096, 8000] {
        let mut frame = tx.reserve(90).unwrap();
        frame.fill(7);
        frame.attach(Attachment::bytes(Arc::clone(&payload), 0..len).unwrap()).unwrap();
        frame.commit();
    }
    assert_eq!(tx.payloads().attached, 4);
    assert_eq!(a.transmit(&mut tx), 4);
    let frames = receive(&mut b, 4);
    for (frame, len) in frames.iter().zip([1, 64, 4096, 8000]) {
        assert!(frame[..90] == [7; 90] && frame[90..] == payload[..len]);
    }
    assert_eq!((Arc::strong_count(&payload), b.gathered()), (1, 0));
}

/// Receives exactly `count` frames, in bounded time.
fn receive(port: &mut DpdkPort, count: usize) -> Vec<Vec<u8>> {
    let (mut rx, mut frames, begin) = (RxBurst::new(), Vec::new(), Instant::now());
    while frames.len() < count {
        assert!(begin.elapsed() < LINK, "{} of {count} frames; {:?}", frames.len(), port.counters());
        if port.receive(&mut rx) == 0 {
            std::thread::yield_now();
        }
        frames.extend(rx.drain().map(|frame| frame.to_vec()));
    }
    assert_eq!(frames.len(), count, "nothing arrives twice");
    frames
}

#[test]
fn devices_with_a_smaller_mtu_are_opened_if_that_is_allowed() {
    let directory = tempfile::tempdir().unwrap();
    let device = memif("server", &directory.path().join("less.sock"));
    let open = |or_less| {
        let wanted = DpdkPortConfig { or_less, ..config(65_000) };
        DpdkPort::open(eal(), &device, pool(255, 9216), &wanted)
    };
    assert!(open(false).is_err());
    let port = open(true).unwrap();
    assert_eq!(port.capabilities().max_frame, usize::from(port.facts().max_mtu) + 14);
}

#[test]
fn waiting_for_a_link_times_out_and_names_the_missing_peer() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nobody.sock");
    let bound = Duration::from_millis(30);
    let begin = Instant::now();
    let alone = DpdkPortConfig { peer_wait: bound, ..config(9000) };
    let client = DpdkPort::open(eal(), &memif("client", &socket), pool(255, 9216), &alone).unwrap_err();
    let server = open_memif("server", &socket, pool(255, 9216)).wait_for_link(bound).unwrap_err();
    assert!(begin.elapsed() >= 2 * bound);
    for (error, role, other) in [(client, "client", "server"), (server, "server", "client")] {
        assert!(matches!(error, DpdkError::NoLink { .. }), "{error}");
        let text = error.to_string();
        let missing = format!("{other} at the socket {}, to which this end is the {role}", socket.display());
        assert!(text.contains("after 30ms there is still no") && text.contains(&missing), "{text}");
    }
}

/// The file that shows that a [`peer`] at this socket has opened its port.
fn is_open(socket: &Path) -> PathBuf {
    socket.with_extension("open")
}

/// The other process: returns the frames it receives, until the link goes down.
#[test]
#[ignore = "a part of other tests, in a process of its own"]
fn peer() {
    let Some(task) = task() else { return };
    let (role, socket) = task.split_once(' ').unwrap();
    let mut port = open_memif(role, Path::new(socket), pool(2047, 9216));
    std::fs::write(is_open(Path::new(socket)), []).unwrap();
    port.wait_for_link(LINK).unwrap();
    let (mut rx, mut tx) = (RxBurst::new(), TxBurst::new(&port));
    while port.link_is_up() {
        if port.receive(&mut rx) == 0 {
            std::thread::yield_now();
        }
        for frame in rx.drain() {
            tx.push(frame).unwrap();
        }
        let begin = Instant::now();
        while !tx.is_empty() && begin.elapsed() < LINK && port.link_is_up() {
            port.transmit(&mut tx);
        }
    }
}

/// Sends frames of all lengths to a peer that returns them.
fn echo(port: &mut DpdkPort, seed: u64, rounds: usize) {
    let mut rng = Rng::new(seed, 0);
    let mut tx = TxBurst::new(port);
    for _ in 0..rounds {
        let frames: Vec<Vec<u8>> =
            (0..32).map(|_| (0..14 + rng.below(8987)).map(|_| rng.next_u64() as u8).collect()).collect();
        for frame in &frames {
            let mut place = tx.reserve(frame.len()).unwrap();
            place.copy_from_slice(frame);
            place.commit();
        }
        let begin = Instant::now();
        while !tx.is_empty() {
            assert!(begin.elapsed() < LINK, "the link takes nothing");
            port.transmit(&mut tx);
        }
        assert!(receive(port, 32) == frames);
    }
}

#[test]
fn memif_joins_two_processes_in_either_role() {
    for (own, other) in [("server", "client"), ("client", "server")] {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("memif.sock");
        let task = format!("{other} {}", socket.display());
        let (mut port, peer);
        if own == "server" {
            port = open_memif(own, &socket, pool(1023, 9216));
            peer = Peer::start("peer", &task);
        } else {
            peer = Peer::start("peer", &task);
            // Waiting for the socket is not enough: the driver's client connects once, and is refused until the server
            // has started.
            wait_for_file(&is_open(&socket));
            port = open_memif(own, &socket, pool(1023, 9216));
        }
        port.wait_for_link(LINK).unwrap();
        echo(&mut port, 1, 50);
        assert_eq!(port.counters().rx_frames, 50 * 32);
        assert_eq!((port.counters().rx_errors, port.counters().rx_missed), (0, 0));
        drop(port);
        peer.ends_well();
    }
}

#[test]
fn a_memif_server_that_was_killed_can_be_started_again() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("memif.sock");
    let peer = Peer::start("peer", &format!("server {}", socket.display()));
    wait_for_file(&socket);
    let open = || {
        DpdkPort::open(
            eal(),
            &memif("server", &socket).replace(",zero-copy=no", ""),
            pool(255, 9216),
            &config(9000),
        )
    };
    let refused = open().map(drop).unwrap_err();
    assert!(matches!(refused, DpdkError::Plug { .. }) && socket.exists(), "somebody serves there: {refused}");
    peer.kill();
    assert!(socket.exists(), "left behind");
    drop(open().unwrap());
}

fn wait_for_file(path: &Path) {
    let begin = Instant::now();
    while !path.exists() {
        assert!(begin.elapsed() < LINK, "no {}", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_memif_peer_that_is_killed_is_noticed_and_can_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("memif.sock");
    let task = format!("client {}", socket.display());
    let mut port = open_memif("server", &socket, pool(1023, 9216));
    for round in 0..3 {
        let peer = Peer::start("peer", &task);
        port.wait_for_link(LINK).unwrap();
        echo(&mut port, round, 5);
        peer.kill();
        let begin = Instant::now();
        while port.link_is_up() {
            assert!(begin.elapsed() < LINK, "its end is not noticed");
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut tx = TxBurst::new(&port);
        tx.reserve(60).unwrap().commit();
        assert_eq!((port.transmit(&mut tx), port.receive(&mut RxBurst::new())), (0, 0));
    }
}

const VETH: &str = "ip link add wa type veth peer name wb && sysctl -qw net.ipv6.conf.all.disable_ipv6=1; \
     ip link set wa mtu 9000 up && ip link set wb mtu 9000 up";

/// A packet socket's ring on `interface`, for frames of 9000 bytes.
fn af_packet(interface: &str, pool: MbufPool, mtu: u16) -> DpdkPort {
    let device = format!(
        "net_af_packet{},iface={interface},blocksz=36864,framesz=9216,framecnt=512,qdisc_bypass=0",
        fresh()
    );
    let port = DpdkPort::open(eal(), &device, pool, &config(mtu)).unwrap();
    port.wait_for_link(LINK).unwrap();
    port
}

#[test]
fn packet_sockets_carry_frames() {
    if !in_own_network("packet_sockets_carry_frames", VETH) {
        return;
    }
    let pool = pool(2047, 9216);
    carries(|| {
        let (a, b) = (af_packet("wa", pool, 9000), af_packet("wb", pool, 9000));
        Link { a, b, frames: None, dress: PLAIN }
    });
    assert_eq!(pool.available(), pool.capacity());
}

#[test]
fn packet_socket_errors_name_the_limits_of_their_interface() {
    if !in_own_network("packet_socket_errors_name_the_limits_of_their_interface", VETH) {
        return;
    }
    let pool = pool(255, 9216);
    let refused =
        |device: &str, mtu| DpdkPort::open(eal(), device, pool, &config(mtu)).unwrap_err().to_string();
    let wide = "net_af_packet90,iface=wa,blocksz=36864,framesz=9216";
    let text = refused(wide, 9001);
    let memif = refused("net_memif90,bsize=8192", 9000);
    assert!(memif.contains("46 to 8178 are possible: a header less than bsize"), "{memif}");
    assert!(text.starts_with(
        "device net_af_packet90: an MTU of 9001 was asked for, and 46 to 9000 are possible: what interface wa carries"
    ), "{text}");
    let narrow = refused("net_af_packet91,iface=wa,framesz=2048", 1969);
    assert!(narrow.contains("46 to 1968 are possible"), "{narrow}");
    let buffers = refused("net_af_packet94,iface=wa,blocksz=65536,framesz=16384", 1500);
    assert_eq!(
        buffers,
        "device net_af_packet94 needs buffers of 16352 bytes at least, and the pool's have 9216"
    );
    assert_eq!(buffer_size_for("net_af_packet0,iface=wa", 1500), 2016);
    assert_eq!(buffer_size_for("net_memif0,role=client,bsize=8192", 1500), 8192);
    let port = DpdkPort::open(eal(), "net_af_packet92,iface=wa", pool, &config(1500)).unwrap();
    let said: Vec<String> = port.notices().iter().map(ToString::to_string).collect();
    assert!(said.iter().any(|line| line.contains("one receive queue, so one worker")), "{said:?}");
    // Packet sockets distribute frames by flows.
    let device = "net_af_packet93,iface=wb,qpairs=2";
    let error = DpdkPort::open_queues(eal(), device, 2, Spread::Addresses, pool, &config(1500)).unwrap_err();
    assert!(matches!(error, DpdkError::Spread { .. }), "{error}");
    assert_eq!(DpdkPort::open_queues(eal(), device, 2, Spread::Any, pool, &config(1500)).unwrap().len(), 2);
}

/// The longest frames are full ones of standard Ethernet, because the kernel's XDP needs a frame to fit in a page.
#[test]
fn xdp_sockets_carry_frames() {
    // A pair of interfaces for each link, because the program of a closed XDP socket may stay attached.
    const SMALL: &str = "sysctl -qw net.ipv6.conf.all.disable_ipv6=1; for n in 0 1 2 3 4 5 6 7 8 9; do \
         ip link add wa$n type veth peer name wb$n && ip link set wa$n up && ip link set wb$n up || exit 77; done";
    if !in_own_network("xdp_sockets_carry_frames", SMALL) {
        return;
    }
    // The driver keeps the buffers that the kernel had when the port was closed, so each port has a pool of its own.
    Eal::init(&EalOptions { memory_mib: Some(1024), ..EalOptions::default() }).unwrap();
    let open = |interface: &str| {
        let device = format!("net_af_xdp{},iface={interface}", fresh());
        let port = DpdkPort::open(eal(), &device, pool(8191, 2048), &config(1500))?;
        port.wait_for_link(LINK)?;
        Ok::<_, DpdkError>(port)
    };
    if let Err(error) = open("wa9") {
        return skipped(&format!("XDP sockets: {error}"));
    }
    let mut pairs = 0..9;
    carries(|| {
        let n = pairs.next().unwrap();
        let [a, b] = ["wa", "wb"].map(|end| open(&format!("{end}{n}")).unwrap());
        Link { a, b, frames: None, dress: PLAIN }
    });
}

/// The kernel receives the frames that the TAP device sends on its interface; a packet socket there is the other end.
#[test]
fn tap_devices_carry_frames() {
    const QUIET: &str = "sysctl -qw net.ipv6.conf.default.disable_ipv6=1";
    if !in_own_network("tap_devices_carry_frames", QUIET) {
        return;
    }
    let pool = pool(4095, 9216);
    if let Err(error) = DpdkPort::open(eal(), "net_tap99,iface=wtry", pool, &config(1500)) {
        return skipped(&format!("TAP: {error}"));
    }
    carries(|| {
        let interface = format!("wtap{}", fresh());
        let device = format!("net_tap{},iface={interface}", fresh());
        let a = DpdkPort::open(eal(), &device, pool, &config(1500)).unwrap();
        a.wait_for_link(LINK).unwrap();
        Link { a, b: af_packet(&interface, pool, 1500), frames: None, dress: PLAIN }
    });
}

/// The driver of a virtual machine's network card, and the host's side of that card, joined by a socket.
#[test]
fn virtio_carries_frames() {
    let pool = pool(4095, 9216);
    let directory = tempfile::tempdir().unwrap();
    let link = || {
        let socket = directory.path().join(format!("vhost{}.sock", fresh()));
        let host = format!("net_vhost{},iface={}", fresh(), socket.display());
        let host = DpdkPort::open(eal(), &host, pool, &config(9000))?;
        wait_for_file(&socket);
        let guest = format!("net_virtio_user{},path={},queue_size=256", fresh(), socket.display());
        let guest = DpdkPort::open(eal(), &guest, pool, &config(9000))?;
        host.wait_for_link(LINK)?;
        Ok::<_, DpdkError>(Link { a: guest, b: host, frames: None, dress: PLAIN })
    };
    match link() {
        Ok(_) => carries(|| link().unwrap()),
        Err(error) => skipped(&format!("virtio over vhost-user: {error}")),
    }
}
