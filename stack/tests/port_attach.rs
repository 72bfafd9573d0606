//! Payload attached to frames by reference: which port copies it, how often, and how long its memory is kept.

use std::sync::Arc;

use weft_stack::packet::Payload;
use weft_stack::port::dpdk::{DpdkPort, DpdkPortConfig, Eal, EalOptions, MbufPool, MbufPoolConfig, Notice};
use weft_stack::port::memif::{MemifConfig, MemifPort, SocketName};
use weft_stack::port::memory::{MemoryConfig, MemoryPort, pair};
use weft_stack::port::{Attachment, Payloads, Port, ReserveError, RxBurst, TxBurst};
use weft_stack::region::Region;

const HEADERS: usize = 100;
const PAYLOAD: usize = 4096;

fn eal() -> Eal {
    Eal::init(&EalOptions::default()).unwrap()
}

fn pool(name: &str, buffers: u32) -> MbufPool {
    let config = MbufPoolConfig { buffers, cache: 0, ..MbufPoolConfig::default() };
    MbufPool::create(eal(), name, &config).unwrap()
}

fn rings(name: &str, pool: MbufPool) -> (DpdkPort, DpdkPort) {
    DpdkPort::ring_pair(eal(), name, 64, pool, &DpdkPortConfig::default()).unwrap()
}

fn memory() -> (MemoryPort, MemoryPort) {
    pair(&MemoryConfig::default()).unwrap()
}

fn content(len: usize) -> Arc<[u8]> {
    (0..len).map(|n| (n * 31 % 253) as u8).collect::<Vec<u8>>().into()
}

/// Writes headers filled with `fill`, followed by the payload.
fn write(tx: &mut TxBurst, fill: u8, payload: impl Into<Attachment>) {
    let mut frame = tx.reserve(HEADERS).unwrap();
    frame.fill(fill);
    frame.attach(payload.into()).unwrap();
    assert_eq!(frame[..HEADERS], [fill; HEADERS]);
    frame.commit();
}

fn receive(port: &mut impl Port) -> Vec<Vec<u8>> {
    let (mut rx, mut frames) = (RxBurst::new(), Vec::new());
    while port.receive(&mut rx) > 0 {
        frames.extend(rx.drain().map(|frame| frame.to_vec()));
    }
    frames
}

fn expected(fill: u8, payload: &[u8]) -> Vec<u8> {
    [&[fill; HEADERS], payload].concat()
}

#[test]
fn devices_that_send_from_several_buffers_read_the_memory_itself() {
    let pool = pool("itself", 255);
    let (mut a, mut b) = rings("itself", pool);
    assert!(a.capabilities().multi_segment);
    let payload = content(PAYLOAD);
    let mut tx = TxBurst::new(&a);
    for n in 0..20 {
        write(&mut tx, n, Attachment::bytes(Arc::clone(&payload), 0..PAYLOAD).unwrap());
    }
    assert_eq!(tx.payloads(), Payloads { attached: 20, copied: 0 });
    assert_eq!((tx[0].len(), tx[0].total_len(), tx[0].is_attached()), (HEADERS, HEADERS + PAYLOAD, true));
    assert_eq!(a.transmit(&mut tx), 20);
    assert_eq!(a.counters().tx_bytes, 20 * (HEADERS + PAYLOAD) as u64);
    assert_eq!(Arc::strong_count(&payload), 21, "the memory is kept as long as the device may read it");

    let frames = receive(&mut b);
    assert!((0..20).zip(&frames).all(|(n, frame)| *frame == expected(n, &payload)));
    assert_eq!((frames.len(), b.gathered()), (20, 20), "one copy a frame, at the receiver");
    assert_eq!(b.counters().rx_bytes, a.counters().tx_bytes);
    assert_eq!(Arc::strong_count(&payload), 1);
    drop((a, b, tx));
    assert_eq!(pool.available(), pool.capacity());
}

#[test]
fn other_ports_copy_attached_payload_once() {
    let (mut a, mut b) = memory();
    assert!(!a.capabilities().multi_segment);
    let payload = content(PAYLOAD);
    let mut tx = TxBurst::new(&a);
    write(&mut tx, 7, Arc::clone(&payload));
    assert_eq!(tx.payloads(), Payloads { attached: 0, copied: 1 });
    assert_eq!((tx[0].total_len(), Arc::strong_count(&payload)), (HEADERS + PAYLOAD, 1));
    a.transmit(&mut tx);
    assert_eq!(receive(&mut b), [expected(7, &payload)]);
}

#[test]
fn memory_of_other_processes_can_be_attached() {
    let (mut a, mut b) = rings("regions", pool("regions", 255));
    let region = Region::allocate(PAYLOAD).unwrap();
    let slice = region.slice(1000, 2000).unwrap();
    let bytes = content(2000);
    slice.write(0, &bytes);
    let mut tx = TxBurst::new(&a);
    write(&mut tx, 1, slice.clone());
    let mut frame = tx.reserve(HEADERS).unwrap();
    frame.fill(2);
    frame.append(Payload::Region(slice.bytes(0, 2000))).unwrap();
    frame.commit();
    assert_eq!(tx.payloads(), Payloads { attached: 1, copied: 1 });
    slice.write(0, &[9]);
    a.transmit(&mut tx);
    let late = [&[9], &bytes[1..]].concat();
    assert_eq!(
        receive(&mut b),
        [expected(1, &late), expected(2, &bytes)],
        "the one is read late, the other at once"
    );
}

#[test]
fn unsent_frames_release_their_memory() {
    let pool = pool("let_go", 63);
    let (mut a, b) = rings("let_go", pool);
    let payload = content(500);
    let kept = || Arc::strong_count(&payload) - 1;
    let mut tx = TxBurst::new(&a);
    let mut frame = tx.reserve(HEADERS).unwrap();
    frame.attach(Arc::clone(&payload).into()).unwrap();
    assert_eq!(kept(), 1);
    frame.truncate(HEADERS);
    assert_eq!((kept(), frame.total_len(), frame.is_attached()), (0, HEADERS, false));
    frame.attach(Arc::clone(&payload).into()).unwrap();
    drop(frame);
    assert_eq!(kept(), 0, "an abandoned frame");
    write(&mut tx, 1, Arc::clone(&payload));
    tx.clear();
    assert_eq!(kept(), 0, "a burst that is cleared");
    for n in 0..10 {
        write(&mut tx, n, Arc::clone(&payload));
    }
    a.transmit(&mut tx);
    assert_eq!(kept(), 10);
    drop((a, b));
    assert_eq!(kept(), 0, "frames in the device when it is closed");
    drop(tx);
    assert_eq!(pool.available(), pool.capacity());
}

#[test]
fn frames_are_no_longer_than_the_port_sends() {
    let (a, _b) = rings("no_longer", pool("no_longer", 63));
    let max = a.capabilities().max_frame;
    let payload = content(max);
    let mut tx = TxBurst::new(&a);
    let part = |len| Attachment::bytes(Arc::clone(&payload), 0..len).unwrap();
    let mut frame = tx.reserve(HEADERS).unwrap();
    let too_long = ReserveError::TooLong { len: max + 1, max };
    assert_eq!(frame.attach(part(max - HEADERS + 1)), Err(too_long));
    assert_eq!(frame.append(Payload::Bytes(&payload[..max - HEADERS + 1])), Err(too_long));
    assert_eq!((frame.total_len(), Arc::strong_count(&payload)), (HEADERS, 1));
    assert_eq!(frame.attach(part(0)), Ok(()));
    assert!(!frame.is_attached());
    assert_eq!(frame.attach(part(max - HEADERS)), Ok(()));
    assert_eq!(frame.attach(part(0)), Err(ReserveError::Attached));
    assert_eq!(frame.append(Payload::Bytes(&[])), Err(ReserveError::Attached));
}

/// If no mbuf is left to refer to the payload, the payload is copied into the frame, which has room for it.
#[test]
fn payload_is_copied_if_no_mbuf_can_refer_to_it() {
    let pool = pool("short_of", 7);
    let (mut a, mut b) = rings("short_of", pool);
    let payload = content(PAYLOAD);
    let mut tx = TxBurst::new(&a);
    for n in 0..4 {
        write(&mut tx, n, Arc::clone(&payload));
    }
    assert_eq!(tx.payloads(), Payloads { attached: 3, copied: 1 });
    assert_eq!(tx.reserve(HEADERS).unwrap_err(), ReserveError::PoolEmpty);
    a.transmit(&mut tx);
    let mut rx = RxBurst::new();
    // There is no buffer to gather the first three frames in: they are lost, and counted.
    assert_eq!(b.receive(&mut rx), 3);
    assert_eq!((b.counters().rx_errors, b.gathered()), (1, 2));
    rx.clear();
    drop((a, b, tx));
    assert_eq!((pool.available(), Arc::strong_count(&payload)), (7, 1));
}

/// A burst made for a port that can attach payload, handed to a port that cannot.
#[test]
fn ports_that_cannot_attach_drop_such_frames_and_count_them() {
    let (a, _b) = rings("cannot", pool("cannot", 63));
    let (mut other, mut there) = memory();
    let payload = content(100);
    let mut tx = TxBurst::new(&a);
    write(&mut tx, 1, Arc::clone(&payload));
    let mut plain = tx.reserve(HEADERS).unwrap();
    plain.fill(2);
    plain.commit();
    assert_eq!(other.transmit(&mut tx), 2);
    assert_eq!((other.counters().tx_errors, other.counters().tx_frames), (1, 1));
    assert_eq!(receive(&mut there), [[2; HEADERS]]);
    assert_eq!(Arc::strong_count(&payload), 1);

    write(&mut tx, 3, payload);
    let frame = tx.take_front(1).next().unwrap();
    let refused = TxBurst::new(&other).push(frame).unwrap_err();
    assert_eq!((refused.reason, refused.frame.total_len()), (ReserveError::Attached, HEADERS + 100));
}

/// A burst made for a port whose frames are no mbufs, handed to a device.
#[test]
fn devices_send_all_of_frames_that_are_no_mbufs() {
    let directory = tempfile::tempdir().unwrap();
    let socket = SocketName::Path(directory.path().join("socket"));
    let other = MemifPort::open(&MemifConfig::server(socket)).unwrap();
    let (mut a, mut b) = rings("no_mbufs", pool("no_mbufs", 63));
    let payload = content(PAYLOAD);
    let mut tx = TxBurst::new(&other);
    write(&mut tx, 1, Attachment::bytes(Arc::clone(&payload), 0..PAYLOAD).unwrap());
    assert!(tx[0].is_attached());
    assert_eq!(a.transmit(&mut tx), 1);
    assert!(receive(&mut b) == [expected(1, &payload)], "the frame has its payload");
    assert_eq!(Arc::strong_count(&payload), 1);
}

#[test]
fn notices_name_the_work_done_in_software() {
    let (ring, _b) = rings("facts", pool("facts", 63));
    assert_eq!(ring.facts().driver, "net_ring");
    assert!(ring.facts().multi_segment && ring.facts().max_mtu >= 9000);
    assert!(!ring.notices().iter().any(|notice| matches!(notice, Notice::CopiesPayload { .. })));

    let null = DpdkPort::open(eal(), "net_null0", pool("null", 255), &DpdkPortConfig::default()).unwrap();
    let said: Vec<String> = null.notices().iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "net_null: IPv4 and UDP checksums are computed in software",
            "net_null: checksums are verified in software",
            "net_null: no frames of several buffers: payload is copied once",
            "net_null: timestamps of the device: none; the worker's clock is read instead",
            "net_null: frames are not announced: an idle worker looks every 50 µs instead of sleeping",
        ]
    );
}
