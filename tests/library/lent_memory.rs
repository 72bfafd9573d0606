//! Memory that is lent for one message is nobody else's when the message has ended, once packets that wait and refer to it have
//! been dropped.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft::core::region::Region;
use weft::{Completion, Endpoint, MemorySlice, ReceiveBuffer, SendBuffer};

const LEN: usize = 64 << 10;
const BOUND: Duration = Duration::from_secs(60);

/// The two ends of a memif whose rings hold two frames.
fn pair(name: &str) -> (Endpoint, Endpoint) {
    let open = |ip: &str, role: &str| {
        let spec = format!("memif:@weft-{name}-{},role={role},rsize=1,ip={ip}", std::process::id());
        Endpoint::builder(spec).longest_payload().build().unwrap()
    };
    (open("10.0.0.1", "server"), open("10.0.0.2", "client"))
}

/// Memory that holds these bytes, and what counts who keeps it.
fn lend(bytes: Vec<u8>) -> (Region, Arc<()>) {
    let kept = Arc::new(());
    let mut bytes = bytes.into_boxed_slice();
    let (base, len) = (NonNull::new(bytes.as_mut_ptr()).unwrap(), bytes.len());
    // SAFETY: the bytes stay where they are as long as the owner keeps them, and nobody else uses them.
    let region = unsafe { Region::foreign(base, len, Box::new((bytes, kept.clone()))) }.unwrap();
    (region, kept)
}

fn connect(a: &mut Endpoint, b: &mut Endpoint) -> weft::ConnectionId {
    let peer = a.peer("10.0.0.2").unwrap();
    let connection = a.connect(peer).unwrap();
    // The link comes up, and the first message opens the connection.
    a.send(connection, vec![1]).unwrap();
    b.receive(vec![0]).unwrap();
    let (mut sent, mut received, begin) = (false, false, Instant::now());
    while !(sent && received) {
        assert!(begin.elapsed() < BOUND, "no message arrives");
        sent |= matches!(a.poll().unwrap(), Some(Completion::Sent { result: Ok(()), .. }));
        received |= matches!(b.poll().unwrap(), Some(Completion::Received { result: Ok(()), .. }));
    }
    connection
}

/// Ends the message of `len` bytes that `a` has posted, and returns the memory of the sender and what was received.
fn finish(a: &mut Endpoint, b: &mut Endpoint, len: usize) -> (MemorySlice, Vec<u8>) {
    b.receive(vec![0; len]).unwrap();
    let (mut sent, mut received, begin) = (None, None, Instant::now());
    loop {
        assert!(begin.elapsed() < BOUND, "the message does not end");
        if let Some(Completion::Sent { buffer: SendBuffer::Memory(memory), result, .. }) = a.poll().unwrap() {
            result.unwrap();
            sent = Some(memory);
        }
        if let Some(Completion::Received { buffer: ReceiveBuffer::Vec(bytes), result, .. }) =
            b.poll().unwrap()
        {
            result.unwrap();
            received = Some(bytes);
        }
        if let (Some(_), Some(_)) = (&sent, &received) {
            return (sent.unwrap(), received.unwrap());
        }
    }
}

fn bytes() -> Vec<u8> {
    (0..LEN).map(|at| (at % 251) as u8).collect()
}

#[test]
fn memory_that_is_lent_arrives_and_comes_back() {
    let (mut a, mut b) = pair("lent");
    let connection = connect(&mut a, &mut b);
    let (region, kept) = lend(bytes());
    let memory = MemorySlice::lent(region.slice(0, LEN as u32).unwrap());
    drop(region);
    a.send(connection, SendBuffer::Memory(memory)).unwrap();
    let (memory, received) = finish(&mut a, &mut b, LEN);
    assert_eq!(received, bytes());
    assert!(!memory.is_shared(), "a packet refers to it");
    drop(memory);
    assert_eq!(Arc::strong_count(&kept), 1, "somebody keeps the memory");
}

#[test]
fn packets_that_wait_and_refer_to_memory_are_dropped_on_request_and_sent_again() {
    let (mut a, mut b) = pair("recalled");
    let connection = connect(&mut a, &mut b);
    let (region, _kept) = lend(bytes());
    let memory = MemorySlice::lent(region.slice(0, LEN as u32).unwrap());
    let unused = region.holders();
    a.send(connection, SendBuffer::Memory(memory)).unwrap();
    // The peer takes nothing: packets fill the ring, and others wait.
    for _ in 0..10 {
        assert!(a.poll().unwrap().is_none());
    }
    assert!(region.holders() > unused, "no packet waits");
    a.worker_mut().unwrap().recall();
    assert_eq!(region.holders(), unused, "a packet still waits");
    assert_eq!(finish(&mut a, &mut b, LEN).1, bytes());
}
