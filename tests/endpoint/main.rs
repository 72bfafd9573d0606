//! One application, over every port and in every place of the worker that this crate offers. Through `weft serve` it runs in
//! the tests of the command.

#[allow(dead_code, reason = "some of it is for the tests of the command")]
mod body;

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use body::{Pair, Side};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weft::core::port::Port as _;
use weft::{BuildError, Builder, CallError, Completion, ConnectOptions, Endpoint, Error, Failure, Limits};

fn side(builder: Builder, address: &str) -> Side {
    Side::new(builder.memory(16 << 20).build().unwrap(), address)
}

/// Over kernel UDP, between two addresses of 127.`net`.0.0/16 that no other run of these tests uses at the same time.
fn udp(net: u8, with: impl Fn(Builder) -> Builder) -> Pair {
    let side = |n: u8| {
        let address = format!("127.{net}.{}.{n}", std::process::id() % 256);
        side(with(Endpoint::builder(format!("udp:{address}"))), &address)
    };
    Pair { left: side(1), right: side(2) }
}

/// Over memif, at a socket of this process's own.
fn memif(name: &str, with: impl Fn(Builder) -> Builder) -> Pair {
    let side = |n: u8, role: &str| {
        let spec = format!("memif:@weft-{name}-{},role={role}", std::process::id());
        let builder = Endpoint::builder(spec).ip([10, 0, 0, n].into());
        side(with(builder), &format!("10.0.0.{n}"))
    };
    Pair { left: side(1, "server"), right: side(2, "client") }
}

/// Through `weft serve` the same application runs in the tests of the command.
#[test]
fn an_application_runs_over_another_network_by_another_name_alone() {
    let (id, dir) = (std::process::id(), tempfile::tempdir().unwrap());
    let udp = |n: u8| format!("127.46.{}.{n}", id % 256);
    let memif = |role| format!("memif:@weft-name-{id},role={role}");
    let mut names = vec![
        [(format!("udp:{}", udp(1)), udp(1)), (format!("udp:{}", udp(2)), udp(2))],
        [
            (memif("server,ip=10.0.0.1"), "10.0.0.1".to_owned()),
            (memif("client,ip=10.0.0.2"), "10.0.0.2".to_owned()),
        ],
    ];
    if cfg!(feature = "dpdk") {
        let socket = dir.path().join("memif");
        let dpdk = |n: u8, role: &str| {
            let arguments = format!("role={role},socket={},socket-abstract=no", socket.display());
            (format!("dpdk:net_memif8{n},{arguments},ip=10.0.0.{n}"), format!("10.0.0.{n}"))
        };
        names.push([dpdk(1, "server"), dpdk(2, "client")]);
        let ring = |n: u8| (format!("dpdk:ring:endpoint,ip=10.0.0.{n}"), format!("10.0.0.{n}"));
        names.push([ring(1), ring(2)]);
    }
    for [left, right] in names {
        let side = |(name, address): (String, String)| Side::new(body::open(&name), address);
        body::exchange(&mut Pair { left: side(left), right: side(right) });
    }
}

#[test]
fn an_application_runs_over_kernel_udp() {
    body::exchange(&mut udp(31, |builder| builder));
}

#[test]
fn an_application_runs_over_kernel_udp_with_the_worker_on_a_thread() {
    body::exchange(&mut udp(32, |builder| builder.on_thread(None)));
}

#[test]
fn an_application_with_a_number_of_its_own_runs_over_kernel_udp() {
    body::exchange(&mut udp(51, |builder| builder.process(9)));
    body::exchange(&mut udp(52, |builder| builder.process(10).on_thread(None)));
}

#[test]
fn an_application_runs_over_memif() {
    body::exchange(&mut memif("exchange", |builder| builder));
}

#[test]
fn an_application_runs_over_memif_with_the_worker_on_a_thread() {
    body::exchange(&mut memif("thread", |builder| builder.on_thread(Some(0))));
}

#[cfg(feature = "dpdk")]
#[test]
fn an_application_runs_over_dpdk_s_own_memif() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("memif");
    let open = |n: u8, role: &str| {
        let arguments = format!("role={role},socket={},socket-abstract=no", socket.display());
        let builder = Endpoint::builder(format!("dpdk:net_memif7{n},{arguments}"));
        side(builder.ip([10, 0, 0, n].into()), &format!("10.0.0.{n}"))
    };
    body::exchange(&mut Pair { left: open(1, "server"), right: open(2, "client") });
}

#[test]
fn a_full_endpoint_gives_the_buffer_back() {
    let limits = Limits { sends: 5, ..Limits::default() };
    body::back_pressure(&mut udp(33, |builder| builder.limits(limits)));
}

#[test]
fn a_full_session_gives_the_buffer_back() {
    body::back_pressure(&mut udp(34, |builder| builder.memory(1 << 20).on_thread(None)));
}

#[test]
fn a_wait_ends_at_its_bound_and_at_a_completion() {
    for (net, thread) in [(35, false), (36, true)] {
        let mut pair = udp(net, |builder| if thread { builder.on_thread(None) } else { builder });
        let connection = pair.connect();
        let begin = Instant::now();
        assert!(pair.right.endpoint.wait(Duration::from_millis(50)).unwrap().is_none());
        assert!(begin.elapsed() >= Duration::from_millis(50) && begin.elapsed() < Duration::from_secs(2));
        pair.right.endpoint.receive(vec![0; 10]).unwrap();
        pair.left.endpoint.send(connection, b"wake").unwrap();
        std::thread::scope(|scope| {
            let right = scope.spawn(|| pair.right.endpoint.wait(Duration::from_secs(20)).unwrap());
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_secs(20) {
                if let Some(Completion::Sent { result, .. }) =
                    pair.left.endpoint.wait(Duration::from_millis(10)).unwrap()
                {
                    result.unwrap();
                    break;
                }
            }
            assert_eq!(right.join().unwrap().unwrap().message().unwrap(), &b"wake"[..]);
        });
    }
}

/// Waits with the system's own call, as a loop that serves other descriptors too.
fn next_by_descriptor(endpoint: &mut Endpoint) -> Completion {
    let begin = Instant::now();
    loop {
        if let Some(completion) = endpoint.poll().unwrap() {
            return completion;
        }
        assert!(begin.elapsed() < Duration::from_secs(20));
        if endpoint.arm().unwrap() {
            let mut fds = [PollFd::from_borrowed_fd(endpoint.as_fd(), PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 20, tv_nsec: 0 })).unwrap();
            assert!(fds[0].revents().contains(PollFlags::IN), "it became readable within 20 s");
        }
    }
}

#[test]
fn the_descriptor_becomes_readable_when_there_is_something_to_poll() {
    for thread in [false, true] {
        let name = if thread { "epoll-thread" } else { "epoll" };
        let mut pair = memif(name, |builder| if thread { builder.on_thread(None) } else { builder });
        let connection = pair.connect();
        pair.right.endpoint.receive(vec![0; 10]).unwrap();
        std::thread::scope(|scope| {
            let right = scope.spawn(|| next_by_descriptor(&mut pair.right.endpoint));
            std::thread::sleep(Duration::from_millis(50));
            pair.left.endpoint.send(connection, b"wake").unwrap();
            assert!(matches!(
                next_by_descriptor(&mut pair.left.endpoint),
                Completion::Sent { result: Ok(()), .. }
            ));
            assert_eq!(right.join().unwrap().message().unwrap(), &b"wake"[..]);
        });
    }
}

/// An endpoint at a link in memory whose other end never answers.
fn alone() -> (Endpoint, weft::core::port::memory::MemoryPort) {
    use weft::core::port::memory::{MemoryConfig, pair};
    use weft::core::{Settings, Setup, worker::Strangers};
    use weft::port::{AnyPort, OpenPort};
    let (here, there) = pair(&MemoryConfig::default()).unwrap();
    let open = OpenPort::in_process(AnyPort::Memory(Box::new(here)), 1);
    let settings = Settings { payload: Some(1024), ..Settings::default() };
    let setup = Setup::new(&settings, &open.facts(&settings)).unwrap();
    let (worker, _) = setup.worker(open, weft::Addr(0), &[], Strangers::Learn).unwrap();
    (Endpoint::from_worker(worker, weft::Memory::default()).unwrap(), there)
}

#[test]
fn a_peer_without_an_answer_is_unreachable_after_three_seconds() {
    let (mut endpoint, _link) = alone();
    let peer = endpoint.peer("127.0.0.9").unwrap();
    let connection = endpoint.connect(peer).unwrap();
    endpoint.send(connection, b"held".to_vec()).unwrap();
    let (begin, mut held) = (Instant::now(), None);
    let why = loop {
        match endpoint.wait(Duration::from_secs(20)).unwrap().expect("an answer") {
            Completion::Sent { result, buffer, .. } => held = Some((result, buffer.len())),
            Completion::Closed { result, .. } => break result.unwrap_err(),
            other => panic!("{other:?}"),
        }
    };
    assert!(begin.elapsed() > Duration::from_secs(2) && begin.elapsed() < Duration::from_secs(8));
    assert!(matches!(why, Error::Refused(CallError::Unreachable { .. })), "{why:?}");
    assert_eq!(held, Some((Err(why), 4)), "the message comes back with the same reason");
    // The endpoint knows the peer now, and asks it again.
    assert!(matches!(endpoint.connect(peer), Err(Error::Refused(CallError::Unreachable { .. }))));
}

/// They are given up some in a turn.
#[test]
fn many_connections_to_a_peer_without_an_answer_end_once_each() {
    let (mut endpoint, _link) = alone();
    let peer = endpoint.peer("127.0.0.9").unwrap();
    let connections: Vec<_> = (0..200).map(|_| endpoint.connect(peer).unwrap()).collect();
    let mut ended = Vec::new();
    while ended.len() < connections.len() {
        match endpoint.wait(Duration::from_secs(20)).unwrap().expect("all end") {
            Completion::Closed { connection, .. } => ended.push(connection),
            other => panic!("{other:?}"),
        }
        if ended.len() == 1 {
            endpoint.abort(connections[199]).expect("its turn has not come");
        }
    }
    assert!(endpoint.poll().unwrap().is_none());
    assert!(connections.iter().all(|connection| ended.contains(connection)));
}

#[test]
fn messages_to_a_process_that_does_not_exist_are_refused() {
    let mut pair = udp(37, |builder| builder.process(5));
    assert_eq!(pair.left.endpoint.process(), 5);
    let address = pair.right.address.clone();
    let peer = pair.left.endpoint.peer(address.as_str()).unwrap();
    let other = ConnectOptions { process: 6, ..ConnectOptions::default() };
    let connection = pair.left.endpoint.connect_with(peer, other).unwrap();
    let send = pair.left.endpoint.send(connection, b"anybody?").unwrap();
    let (_, result) = pair.send_ended(send);
    assert!(matches!(result, Err(Error::Send(weft::SendError::Answered(_)))), "{result:?}");
}

#[test]
fn two_endpoints_shut_down_after_the_last_message() {
    let mut pair = udp(38, |builder| builder);
    let connection = pair.connect();
    pair.right.endpoint.receive(vec![0; 10]).unwrap();
    pair.left.endpoint.send(connection, b"bye").unwrap();
    let Pair { left, right } = pair;
    std::thread::scope(|scope| {
        scope.spawn(|| left.endpoint.shutdown(Duration::from_secs(10)).unwrap());
        scope.spawn(|| {
            let mut endpoint = right.endpoint;
            assert!(endpoint.wait(Duration::from_secs(10)).unwrap().unwrap().message().is_some());
            endpoint.shutdown(Duration::from_secs(10)).unwrap();
        });
    });
}

/// A peer whose last acknowledgement was lost sends again within a retransmission timeout, of 100 ms here.
#[test]
fn an_endpoint_with_an_open_peer_stays_for_a_silence_of_two_timeouts() {
    for (net, thread) in [(47, false), (48, true)] {
        let mut pair = udp(net, |builder| if thread { builder.on_thread(None) } else { builder });
        let connection = pair.connect();
        let receive = pair.right.endpoint.receive(vec![0; 10]).unwrap();
        let send = pair.left.endpoint.send(connection, b"last").unwrap();
        pair.sent(send);
        pair.received(receive);
        let begin = Instant::now();
        pair.right.endpoint.shutdown(Duration::from_secs(10)).unwrap();
        let taken = begin.elapsed();
        assert!(taken >= Duration::from_millis(200) && taken < Duration::from_secs(5), "{taken:?}");
    }
}

/// The peer has a connection that is idle, and would send its next message on it.
#[test]
fn an_endpoint_that_comes_at_the_address_of_one_that_was_shut_down_gets_the_next_message() {
    let mut pair = udp(53, |builder| builder);
    let connection = pair.connect();
    let receive = pair.right.endpoint.receive(vec![0; 10]).unwrap();
    let send = pair.left.endpoint.send(connection, b"first").unwrap();
    pair.sent(send);
    pair.received(receive);
    let Pair { mut left, right } = pair;
    let ended = std::thread::scope(|scope| {
        let left = scope.spawn(|| left.endpoint.wait(Duration::from_secs(10)).unwrap());
        right.endpoint.shutdown(Duration::from_secs(10)).unwrap();
        left.join().unwrap()
    });
    let Some(Completion::Closed { result, .. }) = ended else { panic!("{ended:?}") };
    assert!(matches!(result, Err(Error::Connection(Failure::ClosedByPeer { .. }))), "{result:?}");
    let mut pair =
        Pair { left, right: side(Endpoint::builder(format!("udp:{}", right.address)), &right.address) };
    let connection = pair.connect();
    let receive = pair.right.endpoint.receive(vec![0; 10]).unwrap();
    let send = pair.left.endpoint.send(connection, b"second").unwrap();
    pair.sent(send);
    assert_eq!(pair.received(receive).message().unwrap(), &b"second"[..]);
}

/// Broadcasts and other frames that belong to no connection must not keep an endpoint from going.
#[test]
fn frames_that_belong_to_no_connection_do_not_hold_up_a_shutdown() {
    let Pair { left: Side { mut endpoint, address, .. }, .. } = udp(49, |builder| builder);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            while !ended.load(Ordering::Relaxed) {
                let _ = socket.send_to(b"noise", (address.as_str(), weft::core::wire::udp::UET_UDP_PORT));
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let frames = |endpoint: &Endpoint| endpoint.worker().unwrap().port().counters().rx_frames;
        let begin = Instant::now();
        while frames(&endpoint) < 3 && begin.elapsed() < Duration::from_secs(10) {
            endpoint.wait(Duration::from_millis(10)).unwrap();
        }
        let heard = frames(&endpoint);
        let outcome = endpoint.shutdown(Duration::from_secs(3));
        ended.store(true, Ordering::Relaxed);
        assert!(heard >= 3, "the noise arrives");
        outcome.unwrap();
    });
}

/// A congestion control that brings its worker down.
struct Fatal;

impl weft::cc::SenderCc for Fatal {
    fn on_ack(&mut self, _: weft::Time, _: &weft::cc::AckSample) {
        panic!("the worker's thread dies");
    }
    fn on_nack(&mut self, _: weft::Time, _: &weft::cc::NackSample) {}
    fn on_timeout(&mut self, _: weft::Time, _: &weft::cc::LossSample) {}
    fn window(&self) -> weft::cc::Window {
        weft::cc::Window(1 << 20)
    }
    fn expected_rtt(&self) -> weft::Span {
        weft::Span::from_us(100)
    }
    fn snapshot(&self) -> weft::cc::CcSnapshot {
        weft::cc::CcSnapshot::default()
    }
}

#[test]
fn a_worker_thread_that_dies_completes_all_operations_with_an_error() {
    let fatal = weft::cc::CcChoice::custom("fatal", std::sync::Arc::new(|_: &_| Box::new(Fatal) as _));
    let pair = udp(42, |builder| builder.cc_choice(fatal.clone()).on_thread(None));
    let Pair { left: Side { endpoint: mut left, .. }, right: Side { endpoint: mut right, address, .. } } =
        pair;
    right.receive(vec![0; 10]).unwrap();
    left.receive(vec![0; 10]).unwrap();
    let peer = left.peer(address.as_str()).unwrap();
    let connection = left.connect(peer).unwrap();
    left.send(connection, b"fatal").unwrap();
    let (begin, mut ends) = (Instant::now(), Vec::new());
    let error = loop {
        match left.wait(Duration::from_secs(20)) {
            Ok(Some(Completion::Connected { .. })) => {}
            Ok(Some(Completion::Sent { result, buffer, .. })) => ends.push((result, buffer.len())),
            Ok(Some(Completion::Received { result, buffer, .. })) => ends.push((result, buffer.len())),
            Ok(Some(Completion::Closed { result, .. })) => ends.push((result, 0)),
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert!(begin.elapsed() < Duration::from_secs(5), "it ends at once");
    ends.sort_by_key(|(_, len)| *len);
    assert_eq!(
        (error, ends),
        (Error::Gone, vec![(Err(Error::Gone), 0), (Err(Error::Gone), 5), (Err(Error::Gone), 10)])
    );
}

#[test]
fn options_without_effect_are_refused_by_name() {
    let refused = |builder: Builder| builder.build().unwrap_err().to_string();
    let serve = || Endpoint::builder("serve:/nowhere");
    assert!(refused(serve().cc("nscc")).starts_with("cc has no effect on serve:/nowhere: "));
    assert!(refused(serve().on_thread(None)).starts_with("on_thread has no effect"));
    assert!(refused(serve()).starts_with("/nowhere: "), "it cannot be joined");
    let session = weft::core::worker::session::SessionConfig::default();
    assert!(
        refused(Endpoint::builder("udp:127.39.0.1").session(session)).starts_with("session has no effect")
    );
    assert!(refused(Endpoint::builder("udp:127.39.0.1").cc("sync")).starts_with("congestion control: "));
    let payload = refused(Endpoint::builder("udp:127.39.0.1").mtu(1500).payload(4096));
    assert_eq!(payload, "the port's MTU leaves 1412 bytes, and packets shall have 4096");
    assert!(matches!(Endpoint::builder("tcp:1").build(), Err(BuildError::Spec(_))));
    let memif = |ip: &str| Endpoint::builder(format!("memif:@weft-none,role=client,ip={ip}"));
    assert_eq!(refused(memif("one")), "expected an IP address instead of \"ip=one\"");
    assert!(refused(memif("10.0.0.1").ip([10, 0, 0, 2].into())).starts_with("ip has no effect on memif:"));
    let no_name = refused(Endpoint::builder("server:/nowhere"));
    assert!(no_name.ends_with("or serve:SOCKET instead of \"server:/nowhere\""), "{no_name}");
}

#[test]
fn peers_are_found_again_and_unknown_ones_are_refused() {
    for thread in [false, true] {
        let net = if thread { 41 } else { 40 };
        let mut pair = udp(net, |builder| if thread { builder.on_thread(None) } else { builder });
        let address = pair.right.address.clone();
        let peer = pair.left.endpoint.peer(address.as_str()).unwrap();
        assert_eq!(pair.left.endpoint.peer(address.as_str()).unwrap(), peer);
        assert!(pair.left.endpoint.peer("nobody").unwrap_err().to_string().contains("IP"));
        assert!(pair.left.endpoint.peer("fd00::1").is_err(), "it is of another IP version");
        let unknown = weft::Addr(99);
        let why = match pair.left.endpoint.connect(unknown) {
            Err(error) => error,
            Ok(connection) => pair.why_closed(connection).unwrap_err(),
        };
        assert!(matches!(why, Error::Refused(CallError::Unreachable { .. })), "{why:?}");
    }
}
