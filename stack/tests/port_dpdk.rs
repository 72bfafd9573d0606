//! The conformance suite and further tests over DPDK's virtual devices, in one process without privileges.

mod capture;
mod port_suite;

use capture::{read_capture, write_capture};
use port_suite::{Dress, LEN, Link, conforms, conforms_across_threads, numbered, write};
use weft_stack::port::dpdk::{
    DpdkError, DpdkPort, DpdkPortConfig, Eal, EalOptions, MbufPool, MbufPoolConfig,
};
use weft_stack::port::{Port, RxBurst, TxBurst};
use weft_stack::rng::Rng;

fn eal() -> Eal {
    Eal::init(&EalOptions::default()).expect("DPDK starts without huge pages and privileges")
}

fn pool(name: &str, buffers: u32, cache: u32) -> MbufPool {
    let config = MbufPoolConfig { buffers, cache, ..MbufPoolConfig::default() };
    MbufPool::create(eal(), name, &config).unwrap()
}

fn config() -> DpdkPortConfig {
    DpdkPortConfig::default()
}

fn ring_link(name: &str, frames: u32, pool: MbufPool) -> Link<DpdkPort, DpdkPort> {
    let (a, b) = DpdkPort::ring_pair(eal(), name, frames, pool, &config()).unwrap();
    Link { a, b, frames: Some(frames as usize), dress: Dress::NONE }
}

#[test]
fn rings_conform() {
    let pool = pool("conform", 1023, 0);
    conforms(|| ring_link("conform", 256, pool));
}

#[test]
fn rings_of_odd_size_conform_with_caches() {
    let pool = pool("odd", 511, 64);
    let _lcore = eal().register_thread().unwrap();
    conforms(|| ring_link("odd", 45, pool));
}

#[test]
fn rings_conform_across_threads() {
    conforms_across_threads(ring_link("threads", 64, pool("threads", 511, 0)), 200_000);
}

#[test]
fn the_null_device_discards_and_generates_frames() {
    let pool = pool("null", 511, 0);
    let mut port = DpdkPort::open(eal(), "net_null0", pool, &config()).unwrap();
    let mut tx = TxBurst::new(&port);
    for _ in 0..100 {
        while tx.room() > 0 {
            write(&mut tx, &numbered(0));
        }
        assert_eq!(port.transmit(&mut tx), 32);
    }
    let mut rx = RxBurst::new();
    assert_eq!(port.receive(&mut rx), 32);
    assert!(rx.iter().all(|frame| frame.len() == 64));
    rx.clear();
    let counters = port.counters();
    assert_eq!((counters.tx_frames, counters.tx_bytes), (3200, 3200 * LEN as u64));
    assert_eq!((counters.rx_frames, counters.rx_bytes), (32, 32 * 64));
    drop(port);
    assert_eq!(pool.available(), pool.capacity());
}

/// Frames of all lengths, with random content.
fn random_frames(seed: u64, count: usize) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(seed, 0);
    let mut lengths = vec![14, 60, 64, 1514, 4178, 9014];
    lengths.extend((0..count).map(|_| 14 + rng.below(9001) as usize));
    lengths.into_iter().map(|len| (0..len).map(|_| rng.next_u64() as u8).collect()).collect()
}

fn receive_all(port: &mut DpdkPort) -> Vec<Vec<u8>> {
    let (mut rx, mut frames) = (RxBurst::new(), Vec::new());
    loop {
        let errors = port.counters().rx_errors;
        if port.receive(&mut rx) == 0 && port.counters().rx_errors == errors {
            return frames;
        }
        frames.extend(rx.drain().map(|frame| frame.to_vec()));
    }
}

#[test]
fn transmitted_frames_are_captured_byte_for_byte() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.pcap");
    let pool = pool("pcap_tx", 255, 0);
    let mut port = DpdkPort::pcap(eal(), 1, None, path.to_str(), pool, &config()).unwrap();
    let frames = random_frames(1, 200);
    let mut tx = TxBurst::new(&port);
    for burst in frames.chunks(32) {
        burst.iter().for_each(|frame| write(&mut tx, frame));
        assert_eq!(port.transmit(&mut tx), burst.len());
    }
    assert_eq!(receive_all(&mut port), Vec::<Vec<u8>>::new());
    assert!(read_capture(&path) == frames, "in the file before the port is closed");
    drop((port, tx));
    assert!(read_capture(&path) == frames);
    assert_eq!(pool.available(), pool.capacity());
}

#[test]
fn captured_frames_are_received_byte_for_byte() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("in.pcap");
    let frames = random_frames(2, 200);
    write_capture(&path, &frames);
    let pool = pool("pcap_rx", 255, 0);
    let mut port = DpdkPort::pcap(eal(), 2, path.to_str(), None, pool, &config()).unwrap();
    assert!(receive_all(&mut port) == frames);
    assert_eq!(port.counters().rx_frames, frames.len() as u64);
    assert_eq!(port.counters().rx_errors, 0);
    drop(port);
    assert_eq!(pool.available(), pool.capacity());
}

/// 9100 bytes fit the buffer but exceed the MTU; 20,000 bytes arrive in several buffers.
#[test]
fn captured_frames_beyond_the_mtu_are_dropped_and_counted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("long.pcap");
    write_capture(&path, &[numbered(1), vec![1; 9100], numbered(2), vec![2; 20_000], numbered(3)]);
    let pool = pool("pcap_long", 255, 0);
    let mut port = DpdkPort::pcap(eal(), 3, path.to_str(), None, pool, &config()).unwrap();
    assert_eq!(receive_all(&mut port), [numbered(1), numbered(2), numbered(3)]);
    assert_eq!(port.counters().rx_errors, 2);
    drop(port);
    assert_eq!(pool.available(), pool.capacity());
}

#[test]
fn a_device_can_be_opened_again_only_after_it_is_closed() {
    let pool = pool("again", 255, 0);
    let open = || DpdkPort::open(eal(), "net_null7,size=100", pool, &config());
    for _ in 0..3 {
        let port = open().unwrap();
        assert_eq!(open().unwrap_err(), DpdkError::InUse { device: "net_null7".into() });
        drop(port);
    }
}

#[test]
fn invalid_ports_are_refused() {
    let pool = pool("refused", 255, 0);
    let open =
        |device: &str, config: &DpdkPortConfig| DpdkPort::open(eal(), device, pool, config).unwrap_err();
    let unknown = open("net_nonsense0", &config());
    assert!(matches!(unknown, DpdkError::Plug { .. }));
    assert!(unknown.to_string().contains("no driver of this name; expected one of net_memif"), "{unknown}");
    assert!(matches!(open("", &config()), DpdkError::Plug { .. }));
    assert_eq!(open("net_null\0", &config()), DpdkError::NulByte);
    let absent = DpdkPort::pcap(eal(), 9, Some("/nonexistent.pcap"), None, pool, &config());
    assert!(matches!(absent.unwrap_err(), DpdkError::Plug { .. }));
    let comma = DpdkPort::pcap(eal(), 9, None, Some("a,b.pcap"), pool, &config());
    assert_eq!(comma.unwrap_err(), DpdkError::Path("a,b.pcap".into()));

    let long = DpdkPortConfig { mtu: 9300, ..config() };
    assert_eq!(
        open("net_null8", &long),
        DpdkError::Buffers { device: "net_null8".into(), buffer: 9216, min: 9314, max: usize::MAX }
    );
    let short = DpdkPortConfig { mtu: 20, ..config() };
    assert!(matches!(open("net_null8", &short), DpdkError::Mtu { mtu: 20, .. }));
    let works_after_failures = DpdkPort::open(eal(), "net_null8", pool, &config());
    assert!(works_after_failures.is_ok());

    let empty = DpdkPort::ring_pair(eal(), "empty", 0, pool, &config());
    assert_eq!(empty.unwrap_err(), DpdkError::RingSize(0));
    assert_eq!(pool.available(), pool.capacity());
}

#[test]
fn ring_pairs_have_names_of_their_own() {
    let pool = pool("names", 255, 0);
    let open = || DpdkPort::ring_pair(eal(), "names", 16, pool, &config());
    let pair = open().unwrap();
    assert!(matches!(open().unwrap_err(), DpdkError::Call { call: "rte_ring_create", .. }));
    drop(pair);
    assert!(open().is_ok());
}

#[test]
fn dpdk_starts_once() {
    let eal = eal();
    assert!(eal.version().starts_with("DPDK "), "{}", eal.version());
    assert!(Eal::get().is_some());
    let others = EalOptions { memory_mib: Some(64), ..EalOptions::default() };
    assert_eq!(Eal::init(&others).unwrap_err(), DpdkError::AlreadyStarted);
}
