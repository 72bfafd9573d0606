//! Faults in what is sent, whose payload is not the port's.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::*;
use crate::port::memif::{MemifConfig, MemifPort, SocketName};
use crate::port::memory::{MemoryConfig, MemoryPort, pair};
use crate::port::{Attachment, Port};
use crate::region::{Region, SharedRegion};

const HEAD: usize = 50;
const PAYLOAD: u32 = 2000;

/// A client that mistreats what it sends, its registered memory, and the server.
fn link(faults: Faults) -> (FaultyPort<MemifPort>, Region, MemifPort) {
    link_of(10, faults)
}

/// The same with rings of 2^`log2_ring` slots.
fn link_of(log2_ring: u8, faults: Faults) -> (FaultyPort<MemifPort>, Region, MemifPort) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = SocketName::Abstract(format!("weft-faulty-{}-{number}", std::process::id()));
    let client = MemifConfig { log2_ring, ..MemifConfig::client(name.clone()) };
    let mut client = MemifPort::open(&client).unwrap();
    let memory = SharedRegion::allocate(BURST * PAYLOAD as usize).unwrap();
    assert!(client.register(&memory));
    let server = MemifPort::open(&MemifConfig::server(name)).unwrap();
    [&client, &server].into_iter().for_each(|port| port.wait_for_link(Duration::from_secs(20)).unwrap());
    let client = FaultyPort::sending(client, faults, Rng::new(1, 0)).unwrap();
    (client, memory.region().clone(), server)
}

/// Sends a frame of `number`, with payload of `number` in its place of `memory`.
fn send(port: &mut FaultyPort<MemifPort>, memory: &Region, number: u8) {
    let mut tx = TxBurst::new(port);
    put(&mut tx, memory, number);
    assert_eq!((port.transmit(&mut tx), tx.len()), (1, 0));
}

/// Puts such a frame into a burst.
fn put(tx: &mut TxBurst, memory: &Region, number: u8) {
    let payload = memory.slice(u64::from(number) * u64::from(PAYLOAD), PAYLOAD).unwrap();
    payload.write(0, &[number; PAYLOAD as usize]);
    let mut frame = tx.reserve(HEAD).unwrap();
    frame.fill(number);
    frame.attach(Attachment::from(payload)).unwrap();
    frame.commit();
}

/// The whole memory becomes something else.
fn scribble(memory: &Region) {
    memory.slice(0, memory.len() as u32).unwrap().write(0, &[0xee; BURST * PAYLOAD as usize]);
}

/// The byte that each arrived frame's head consists of, and the byte that its payload consists of.
fn arrived(port: &mut MemifPort) -> Vec<(u8, u8)> {
    whole(port).iter().map(|frame| (all_of(&frame[..HEAD]), all_of(&frame[HEAD..]))).collect()
}

fn whole(port: &mut MemifPort) -> Vec<Vec<u8>> {
    let (mut rx, mut frames) = (RxBurst::new(), Vec::new());
    while port.receive(&mut rx) > 0 {
        frames.extend(rx.drain().map(|frame| frame.to_vec()));
    }
    assert!(frames.iter().all(|frame| frame.len() == HEAD + PAYLOAD as usize));
    frames
}

fn all_of(bytes: &[u8]) -> u8 {
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

#[test]
fn frames_go_on_with_the_memory_they_refer_to() {
    for faults in [Faults { duplicate: 1.0, ..Faults::default() }, Faults::default()] {
        let (mut a, memory, mut b) = link(faults);
        assert!(a.capabilities().in_memory && a.capabilities().multi_segment);
        send(&mut a, &memory, 1);
        scribble(&memory);
        let times = 1 + faults.duplicate as usize;
        assert_eq!(arrived(&mut b), vec![(1, 0xee); times], "read where it lies, each time");
        assert_eq!(a.counters().tx_frames, times as u64);
    }
}

#[test]
fn frames_held_back_are_read_when_they_leave() {
    let (mut a, memory, mut b) = link(Faults { delay: 1.0, delay_frames: 2, ..Faults::default() });
    send(&mut a, &memory, 1);
    a.set_faults(Faults::default()).unwrap();
    assert_eq!((a.held_attached(), a.waitable().is_none()), (1, true));
    scribble(&memory);
    send(&mut a, &memory, 2);
    assert_eq!(arrived(&mut b), [(2, 2)]);
    // Nothing to be sent lets one pass as well.
    assert_eq!(a.transmit(&mut TxBurst::new(&a)), 0);
    assert_eq!((arrived(&mut b), a.held_attached()), (vec![(1, 0xee)], 0));
}

#[test]
fn frames_held_back_are_lost_when_their_memory_is_recalled() {
    let (mut a, memory, mut b) = link(Faults { delay: 1.0, delay_frames: 2, ..Faults::default() });
    (1..4).for_each(|number| send(&mut a, &memory, number));
    let mut tx = TxBurst::new(&a);
    tx.reserve(HEAD + PAYLOAD as usize).unwrap().commit();
    a.transmit(&mut tx);
    assert_eq!(arrived(&mut b), [(1, 1), (2, 2)], "the third, and one that refers to nothing, are held");
    a.recall();
    assert_eq!((a.held_attached(), a.inner().link_is_up()), (0, true));
    for _ in 0..3 {
        a.transmit(&mut TxBurst::new(&a));
    }
    assert_eq!(whole(&mut b).len(), 1);
}

#[test]
fn frames_that_wait_for_room_are_lost_when_their_memory_is_recalled() {
    // Two slots a frame.
    let (mut a, memory, mut b) = link_of(2, Faults::default());
    let mut tx = TxBurst::new(&a);
    (0..5).for_each(|number| put(&mut tx, &memory, number));
    assert_eq!((a.transmit(&mut tx), tx.len()), (5, 0));
    assert!(a.waitable().is_none(), "nothing announces the room that they wait for");
    assert_eq!(arrived(&mut b), [(0, 0), (1, 1)]);
    a.recall();
    assert!(a.inner().link_is_up() && a.waitable().is_some());
    for _ in 0..3 {
        a.transmit(&mut TxBurst::new(&a));
        assert_eq!(arrived(&mut b), []);
    }
}

#[test]
fn damage_is_done_to_a_copy() {
    let (mut a, memory, mut b) = link(Faults { corrupt: 1.0, ..Faults::default() });
    assert!(!a.capabilities().in_memory);
    for number in 0..20 {
        send(&mut a, &memory, number);
        let frame = whole(&mut b).pop().unwrap();
        let flipped: u32 = frame.iter().map(|byte| (byte ^ number).count_ones()).sum();
        assert_eq!(flipped, 1);
        let place = memory.slice(u64::from(number) * u64::from(PAYLOAD), PAYLOAD).unwrap();
        let mut bytes = vec![0; PAYLOAD as usize];
        place.read(0, &mut bytes);
        assert_eq!(all_of(&bytes), number, "the application's memory is as it was");
    }
    assert_eq!(a.fault_counts().corrupted, 20);
}

#[test]
fn a_port_opened_without_damage_refuses_to_damage_frames_later() {
    let (mut a, ..) = link(Faults { drop: 1.0, ..Faults::default() });
    let error = a.set_faults(Faults { corrupt: 0.1, ..Faults::default() }).unwrap_err();
    assert_eq!(error, FaultsError { name: "corrupt", value: 0.1, most: 0.0 });
}

/// Frames that a full device has no room for wait, and none is lost or comes out of order.
#[test]
fn frames_wait_for_room_in_a_full_device() {
    let (a, mut b) = pair(&MemoryConfig { ring: 4, ..MemoryConfig::default() }).unwrap();
    let faults = Faults { duplicate: 1.0, ..Faults::default() };
    let mut a = FaultyPort::<MemoryPort>::sending(a, faults, Rng::new(1, 0)).unwrap();
    let (mut tx, mut rx, mut seen, mut next) = (TxBurst::new(&a), RxBurst::new(), Vec::new(), 0);
    while seen.len() < 200 {
        while next < 100
            && let Ok(mut frame) = tx.reserve(20)
        {
            frame.fill(next);
            frame.commit();
            next += 1;
        }
        a.transmit(&mut tx);
        assert!(b.receive(&mut rx) > 0, "after {}", seen.len());
        seen.extend(rx.drain().map(|frame| all_of(&frame)));
    }
    assert_eq!(seen, (0..100).flat_map(|number| [number, number]).collect::<Vec<_>>());
}
