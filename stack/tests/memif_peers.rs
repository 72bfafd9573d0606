//! Weft's own memif with DPDK's driver as the peer, in either role.

mod port_suite;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use port_suite::{Dress, Link, conforms, conforms_across_threads};
use weft_stack::port::dpdk::{DpdkPort, DpdkPortConfig, Eal, EalOptions, MbufPool, MbufPoolConfig};
use weft_stack::port::memif::{MemifConfig, MemifPort, SocketName};
use weft_stack::port::{Port, RxBurst, TxBurst};
use weft_stack::region::SharedRegion;

/// The longest wait for a peer.
const LINK: Duration = Duration::from_secs(20);
const MTU: u16 = 9000;

fn eal() -> Eal {
    Eal::get().unwrap_or_else(|| Eal::init(&EalOptions::default()).unwrap())
}

/// A number that no device or pool of this process has yet.
fn fresh() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// All pools of this process come from one memory.
fn pool() -> MbufPool {
    pool_of(4095)
}

fn pool_of(buffers: u32) -> MbufPool {
    let config = MbufPoolConfig { buffers, buffer_size: 9216, cache: 0, socket: None };
    MbufPool::create(eal(), &format!("pool{}", fresh()), &config).unwrap()
}

fn socket(directory: &Path) -> PathBuf {
    directory.join(format!("memif{}.sock", fresh()))
}

fn dpdk(role: &str, socket: &Path, pool: MbufPool, peer_wait: Duration) -> DpdkPort {
    let socket = socket.display();
    let device = format!("net_memif{},role={role},socket={socket},socket-abstract=no,bsize=9216", fresh());
    let config = DpdkPortConfig { mtu: MTU, promiscuous: true, peer_wait, ..DpdkPortConfig::default() };
    DpdkPort::open(eal(), &device, pool, &config).unwrap()
}

fn ours(config: MemifConfig) -> MemifPort {
    MemifPort::open(&MemifConfig { mtu: MTU.into(), ..config }).unwrap()
}

/// DPDK's server reads payload from the application's memory: the frame arrives in two parts, from two regions.
#[test]
fn dpdks_server_reads_registered_memory() {
    let directory = tempfile::tempdir().unwrap();
    let socket = socket(directory.path());
    let mut b = dpdk("server", &socket, pool_of(511), LINK);
    let mut a = ours(MemifConfig::client(SocketName::Path(socket)));
    let memory = SharedRegion::allocate(64 * 4096).unwrap();
    assert!(a.register(&memory));
    a.wait_for_link(LINK).unwrap();
    b.wait_for_link(LINK).unwrap();
    look(&mut a);
    look(&mut b);
    let content: Vec<u8> = (0..64 * 4096).map(|n| (n % 251) as u8).collect();
    memory.region().slice(0, 64 * 4096).unwrap().write(0, &content);
    let (mut tx, mut rx) = (TxBurst::new(&a), RxBurst::new());
    let mut seen = 0;
    let begin = Instant::now();
    // Several times around the ring.
    for round in 0..200 {
        for n in 0..16 {
            let mut frame = tx.reserve(98).unwrap();
            frame.fill(n as u8);
            frame.attach(memory.region().slice(4096 * n, 4096).unwrap().into()).unwrap();
            frame.commit();
        }
        while seen < 16 * (round + 1) {
            assert!(begin.elapsed() < LINK, "{seen} frames");
            a.transmit(&mut tx);
            b.receive(&mut rx);
            for frame in rx.drain() {
                let n = seen % 16;
                assert_eq!((frame.len(), &frame[..98]), (98 + 4096, &[n as u8; 98][..]), "frame {seen}");
                assert!(frame[98..] == content[4096 * n..][..4096], "frame {seen}");
                seen += 1;
            }
        }
    }
    a.recall();
    assert!(a.link_is_up(), "all of it has been taken in");
}

/// Receives once: the peer's driver provides the buffers of both directions when it looks for frames.
fn look(port: &mut impl Port) {
    assert_eq!(port.receive(&mut RxBurst::new()), 0);
}

fn as_client(directory: &Path, pool: MbufPool) -> Link<MemifPort, DpdkPort> {
    let socket = socket(directory);
    let mut b = dpdk("server", &socket, pool, LINK);
    let mut a = ours(MemifConfig::client(SocketName::Path(socket)));
    a.wait_for_link(LINK).unwrap();
    b.wait_for_link(LINK).unwrap();
    look(&mut a);
    look(&mut b);
    Link { a, b, frames: Some(1024), dress: Dress::NONE }
}

fn as_server(directory: &Path, pool: MbufPool) -> Link<MemifPort, DpdkPort> {
    let socket = socket(directory);
    let mut a = ours(MemifConfig::server(SocketName::Path(socket.clone())));
    let mut b = dpdk("client", &socket, pool, LINK);
    b.wait_for_link(LINK).unwrap();
    a.wait_for_link(LINK).unwrap();
    look(&mut b);
    look(&mut a);
    Link { a, b, frames: Some(1024), dress: Dress::NONE }
}

#[test]
fn our_client_conforms_with_dpdks_server() {
    let (pool, directory) = (pool(), tempfile::tempdir().unwrap());
    conforms(|| as_client(directory.path(), pool));
}

#[test]
fn our_server_conforms_with_dpdks_client() {
    let (pool, directory) = (pool(), tempfile::tempdir().unwrap());
    conforms(|| as_server(directory.path(), pool));
}

#[test]
fn both_roles_conform_across_threads() {
    let (pool, directory) = (pool(), tempfile::tempdir().unwrap());
    conforms_across_threads(as_client(directory.path(), pool), 100_000);
    conforms_across_threads(as_server(directory.path(), pool), 100_000);
}

#[test]
fn without_a_link_dpdks_driver_keeps_frames_and_ours_drops_them() {
    let (pool, directory) = (pool_of(511), tempfile::tempdir().unwrap());
    let mut theirs = dpdk("server", &socket(directory.path()), pool, LINK);
    let mut ours = ours(MemifConfig::server(SocketName::Path(socket(directory.path()))));
    let mut tx = TxBurst::new(&theirs);
    let mut frame = tx.reserve(100).unwrap();
    frame.fill(0);
    frame.commit();
    assert_eq!((theirs.transmit(&mut tx), tx.len()), (0, 1));
    assert_eq!((ours.transmit(&mut tx), tx.len(), ours.counters().tx_no_link), (1, 0, 1));
}

#[test]
fn both_peers_notice_when_the_other_leaves() {
    let (pool, directory) = (pool(), tempfile::tempdir().unwrap());
    for link in [as_client, as_server] {
        let Link { a, b, .. } = link(directory.path(), pool);
        let peer = a.peer().unwrap();
        assert!(peer.starts_with("DPDK ") && peer.contains("net_memif"), "{peer}");
        drop(b);
        let begin = Instant::now();
        while a.link_is_up() {
            assert!(begin.elapsed() < LINK, "the link is still up");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(a.peer(), None);
    }
}
