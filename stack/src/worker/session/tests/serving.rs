//! Workers on threads of their own that sleep, and applications of the same process that wake them.

use core::net::IpAddr;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::listener::event;
use super::*;
use crate::port::Port;
use crate::port::udp::{Peer, UdpConfig, UdpPort, mac_of};
use crate::worker::{AddressBook, Clock, HostAddr, Idle, LinkConfig, Strangers, Waker, Worker};

/// Longer than a test may take: a worker without a wake-up sleeps that long.
const SLEEP: Span = Span::from_ms(60_000);
/// Far longer than it takes to wake a thread.
const SOON: Duration = Duration::from_secs(20);

/// A worker that falls asleep at once, over kernel UDP.
struct Serving {
    waker: Waker,
    events: Receiver<ServerEvent>,
    thread: Option<JoinHandle<()>>,
}

fn worker(ip: IpAddr, port: UdpPort) -> Worker<UdpPort> {
    let config = (*config()).clone().with_zones(|zone| zone.pdc.rto_init = Span::from_ms(200));
    let config = Arc::new(config);
    let clock = Clock::new();
    let fep = Fep::new(Addr(0), config, Rng::new(3, 1), clock.now()).unwrap();
    let book = AddressBook::new(Addr(0), HostAddr { mac: mac_of(ip), ip }, 4, Strangers::Refuse).unwrap();
    let mut worker = Worker::new(fep, port, book, LinkConfig::default(), clock).unwrap();
    worker.set_idle(Idle::Adaptive { spin: Span::ZERO, yield_for: Span::ZERO, sleep: SLEEP });
    worker
}

impl Serving {
    /// Serves one application, as process 0, which reaches `peers`.
    fn start(ip: IpAddr, port: UdpPort, peers: Vec<Peer>) -> (Serving, Client) {
        let waker = Waker::new().unwrap();
        let mut worker = worker(ip, port);
        let mut server = SessionServer::new(&mut worker, 1, waker.clone());
        server.place_peers(Box::new(move |port: &mut UdpPort, ip| {
            let peer = peers.iter().find(|peer| peer.ip == ip).ok_or(crate::fep::PeerRefusal::Port)?;
            port.meet(peer).map_err(|_| crate::fep::PeerRefusal::Port)?;
            Ok(mac_of(ip))
        }));
        let client = server.open(&mut worker, &SMALL, Some(0)).unwrap();
        let (sender, events) = channel();
        let thread = thread::spawn(move || {
            server.run(worker, |event| {
                let _ = sender.send(event);
            })
        });
        (Serving { waker, events, thread: Some(thread) }, client)
    }

    fn await_sleep(&self) {
        let started = Instant::now();
        while !self.waker.is_asleep() {
            assert!(started.elapsed() < SOON, "it does not fall asleep");
            thread::sleep(Duration::from_millis(1));
        }
        // It is about to, at least.
        thread::sleep(Duration::from_millis(20));
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.waker.stop();
        let outcome = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || matches!(outcome, Some(Ok(()))));
    }
}

fn port(ip: IpAddr) -> UdpPort {
    UdpPort::open(&UdpConfig::at(ip).with_free_ports()).unwrap()
}

#[test]
fn commands_of_the_same_process_wake_a_sleeping_worker() {
    let ips: [IpAddr; 2] = [[127, 85, 1, 1].into(), [127, 85, 1, 2].into()];
    let ports = ips.map(port);
    let peers = [ports[0].as_peer(), ports[1].as_peer()];
    let [left, right] = ports;
    let (alice_host, mut alice) = Serving::start(ips[0], left, vec![peers[1].clone()]);
    let (bob_host, mut bob) = Serving::start(ips[1], right, vec![peers[0].clone()]);
    assert_eq!((alice.process(), bob.process()), (0, 0));
    let started = Instant::now();
    let ask = |client: &mut Client, host: &Serving, ip| {
        host.await_sleep();
        client.peer(ip, None, 1).unwrap();
        event(client).unwrap().report
    };
    let known = Report::Peer { operation: 0, addr: Addr(1) };
    assert_eq!(ask(&mut alice, &alice_host, ips[1]), known);
    assert_eq!(ask(&mut bob, &bob_host, ips[0]), known);
    // It takes nothing from the two peers that she may have.
    let port = CallError::Peer(crate::fep::PeerRefusal::Port);
    for _ in 0..2 {
        let nowhere = ask(&mut alice, &alice_host, [127, 85, 1, 9].into());
        assert!(matches!(nowhere, Report::Refused { error, .. } if error == port), "{nowhere:?}");
    }
    assert_eq!(ask(&mut alice, &alice_host, ips[1]), known, "it is in the book");
    for round in 0..5 {
        bob_host.await_sleep();
        bob.receive(extent(0, 1000), None, Matching::Untagged, round).unwrap();
        alice_host.await_sleep();
        let connection = alice.connect(Addr(1), ConnectOptions::default(), 2).unwrap();
        assert!(matches!(event(&mut alice).unwrap().report, Report::Connected { .. }));
        alice_host.await_sleep();
        alice.send(connection, extent(0, 1000), None, 0, 3).unwrap();
        let received = event(&mut bob).unwrap();
        assert!(
            matches!(received.report, Report::Received { result: Ok(()), len: 1000, .. }),
            "{received:?}"
        );
        assert!(matches!(event(&mut alice).unwrap().report, Report::Sent { result: Ok(()), .. }));
        alice.close(connection).unwrap();
        assert!(matches!(event(&mut alice).unwrap().report, Report::Closed { result: Ok(()), .. }));
    }
    assert!(started.elapsed() < Duration::from_secs(50), "nothing had to wait for the end of a sleep");

    // A client that is dropped wakes its worker too.
    alice_host.await_sleep();
    drop(alice);
    let ended = alice_host.events.recv_timeout(SOON);
    assert_eq!(ended, Ok(ServerEvent::Ended { process: 0, how: Ended::Left }));
    // And a worker that is stopped is noticed at once.
    drop(bob_host);
    assert_eq!(event(&mut bob), Err(ClientError::Gone));
}

#[test]
fn a_worker_thread_that_panics_is_noticed_by_its_application() {
    let ip = [127, 85, 2, 1].into();
    let waker = Waker::new().unwrap();
    let mut worker = worker(ip, port(ip));
    let mut server = SessionServer::new(&mut worker, 1, waker);
    server.place_peers(Box::new(|_, _| panic!("on purpose")));
    let mut client = server.open(&mut worker, &SMALL, None).unwrap();
    assert!(worker.port().capabilities().mtu() > 0);
    let thread = thread::spawn(move || server.run(worker, |_| ()));
    client.peer([127, 85, 2, 9].into(), None, 1).unwrap();
    assert!(thread.join().is_err());
    assert_eq!(event(&mut client), Err(ClientError::Gone));
}
