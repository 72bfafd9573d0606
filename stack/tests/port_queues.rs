//! Devices with several queues, each a port of its own.

use weft_stack::port::dpdk::{
    DpdkError, DpdkPort, DpdkPortConfig, Eal, EalOptions, MbufPool, MbufPoolConfig, Spread,
};
use weft_stack::port::{Port, RxBurst, TxBurst};

fn eal() -> Eal {
    Eal::init(&EalOptions::default()).unwrap()
}

fn pool(name: &str) -> MbufPool {
    let config = MbufPoolConfig { buffers: 1023, buffer_size: 9216, cache: 0, ..MbufPoolConfig::default() };
    MbufPool::create(eal(), name, &config).unwrap()
}

fn send(port: &mut DpdkPort, content: &[u8]) {
    let mut tx = TxBurst::new(port);
    let mut frame = tx.reserve(content.len()).unwrap();
    frame.copy_from_slice(content);
    frame.commit();
    assert_eq!(port.transmit(&mut tx), 1);
}

fn received(port: &mut DpdkPort) -> Vec<Vec<u8>> {
    let mut rx = RxBurst::new();
    port.receive(&mut rx);
    rx.drain().map(|frame| frame.to_vec()).collect()
}

#[test]
fn each_queue_of_rings_is_a_link_of_its_own() {
    let pool = pool("rings");
    let mut links = DpdkPort::ring_pairs(eal(), "rings", 3, 16, pool, &DpdkPortConfig::default()).unwrap();
    for (n, (a, b)) in links.iter_mut().enumerate() {
        assert_eq!((a.queue(), b.queue()), (n as u16, n as u16));
        send(a, &[n as u8; 60]);
        send(b, &[10 + n as u8; 60]);
    }
    for (n, (a, b)) in links.iter_mut().enumerate() {
        assert_eq!(received(b), [[n as u8; 60]]);
        assert_eq!(received(a), [[10 + n as u8; 60]]);
        assert_eq!((a.counters().tx_frames, a.counters().rx_frames), (1, 1), "each counts its own");
    }
    // A queue may be closed before the others; frames in it stay with the device.
    let mut first = links.remove(0);
    send(&mut first.0, &[7; 60]);
    drop(first);
    send(&mut links[0].0, &[8; 60]);
    assert_eq!(received(&mut links[0].1), [[8; 60]]);
    drop(links);
    assert_eq!(pool.available(), pool.capacity());
}

#[test]
fn several_threads_use_a_queue_each() {
    let links =
        DpdkPort::ring_pairs(eal(), "workers", 2, 64, pool("workers"), &DpdkPortConfig::default()).unwrap();
    std::thread::scope(|scope| {
        for (n, (mut a, mut b)) in links.into_iter().enumerate() {
            scope.spawn(move || {
                for round in 0..20_000u32 {
                    let content = [&[n as u8; 56][..], &round.to_be_bytes()].concat();
                    send(&mut a, &content);
                    assert_eq!(received(&mut b), [content]);
                }
            });
        }
    });
}

#[test]
fn devices_that_hash_addresses_choose_queues_by_them() {
    let pool = pool("hashes");
    let open = |queues, spread| {
        DpdkPort::open_queues(eal(), "net_null1", queues, spread, pool, &DpdkPortConfig::default())
    };
    let ports = open(2, Spread::Addresses).unwrap();
    assert_eq!(ports.iter().map(DpdkPort::queue).collect::<Vec<_>>(), [0, 1]);
    assert!(ports[0].facts().hashes_addresses);
    drop(ports);
    let max = open(1, Spread::Addresses).unwrap()[0].facts().queues;
    for queues in [0, max + 1] {
        let error = open(queues, Spread::Addresses).unwrap_err();
        assert_eq!(error, DpdkError::Queues { device: "net_null1".into(), queues, max });
    }
    assert!(open(2, Spread::Any).is_ok(), "a failure leaves the device as it was");
}

#[test]
fn devices_that_cannot_hash_addresses_are_refused_unless_any_spread_will_do() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("memif.sock");
    let device = format!("net_memif5,role=server,socket={},socket-abstract=no,bsize=9216", socket.display());
    let pool = pool("refused");
    let open = |spread| DpdkPort::open_queues(eal(), &device, 2, spread, pool, &DpdkPortConfig::default());
    let error = open(Spread::Addresses).unwrap_err();
    assert_eq!(error, DpdkError::Spread { device: "net_memif5".into(), driver: "net_memif".into() });
    assert!(error.to_string().contains("Use one queue"), "{error}");
    assert_eq!(open(Spread::Any).unwrap().len(), 2);
}
