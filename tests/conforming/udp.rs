//! The peer over a socket of the kernel, and an endpoint over kernel UDP, in real time.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use weft::{Completion, Endpoint, ReceiveOptions, SendOptions};

use super::peer::wire::{Class, Datagram, PORT};
use super::peer::{Message, Peer, Ps, Settings};
use super::{ends, message};

const PATIENCE: Duration = Duration::from_secs(20);
const LEN: usize = 4_000_000;

/// The peer at an address of this machine.
struct Host {
    peer: Peer,
    socket: UdpSocket,
    to: SocketAddr,
    begin: Instant,
}

impl Host {
    /// The kernel may be busy elsewhere: times are those of a network of 100 µs and 10 Gbit/s, timers are longer.
    fn new(own: &str, to: &str) -> Host {
        let settings =
            Settings { base_rtt: 100_000_000, rate: 10_000_000_000, rto: 50_000_000_000, ..ends::settings() };
        let address = |ip: &str| SocketAddr::new(ip.parse().expect("an address"), PORT);
        let socket =
            UdpSocket::bind(address(own)).expect("the port is free at an address of this test's own");
        socket.set_nonblocking(true).expect("a socket");
        Host { peer: Peer::new(settings), socket, to: address(to), begin: Instant::now() }
    }

    fn now(&self) -> Ps {
        self.begin.elapsed().as_nanos() as Ps * 1000
    }

    /// Takes in what has arrived and sends what may leave.
    fn turn(&mut self) {
        let mut buffer = [0; 65_536];
        while let Ok((len, from)) = self.socket.recv_from(&mut buffer) {
            let bytes = buffer[..len].to_vec();
            // The socket does not tell the DSCP: ACKs, NACKs and control packets are types 7 to 11.
            let is_control = (7..=11).contains(&(bytes[0] >> 3));
            let class = if is_control { Class::Control } else { Class::Data };
            let now = self.now();
            self.peer.on_datagram(now, &Datagram::new(bytes, from.port(), class));
        }
        let now = self.now();
        if self.peer.poll_timeout().is_some_and(|at| at <= now) {
            self.peer.on_timeout(now);
        }
        while let Some(datagram) = self.peer.poll_transmit(now) {
            self.socket.send_to(&datagram.bytes, self.to).expect("room for a datagram");
        }
    }
}

#[test]
fn messages_pass_both_ways_over_kernel_udp() {
    let address = |n: u8| format!("127.61.{}.{n}", std::process::id() % 256);
    let mut host = Host::new(&address(2), &address(1));
    let mut endpoint = Endpoint::builder(format!("udp:{}", address(1))).build().expect("an endpoint");
    let peer = endpoint.peer(address(2).as_str()).expect("room for a peer");
    let connection = endpoint.connect(peer).expect("room for a connection");
    let messages = [message(1, LEN), message(2, LEN)];
    let Message { tag: Some(tag), header_data, bytes } = messages[0].clone() else { unreachable!() };
    let options = SendOptions::default().tag(tag).header_data(header_data);
    endpoint.send_with(connection, bytes, options).expect("room for a message");
    endpoint.receive_with(vec![0; LEN], ReceiveOptions::default().tag(2)).expect("room for a receive");
    host.peer.initiator.post(messages[1].clone());

    let (mut sent, mut received) = (false, None);
    while !sent || received.is_none() || !host.peer.initiator.is_done() {
        assert!(host.begin.elapsed() < PATIENCE, "{:?}", endpoint.explain());
        host.turn();
        match endpoint.poll().expect("the worker is there") {
            Some(Completion::Sent { result, .. }) => sent = result.is_ok(),
            Some(completion @ Completion::Received { .. }) => received = completion.message(),
            _ => {}
        }
    }
    assert!(received.is_some_and(|bytes| bytes == messages[1].bytes), "weft received something else");
    assert!(host.peer.target.received() == &messages[..1], "the peer received something else");
    assert_eq!(host.peer.violations(), &[] as &[String]);
}

/// A request that asks for a delay echo waits in the endpoint's socket until its application looks. The answer says so.
#[test]
fn an_echo_says_how_long_the_packet_has_waited_at_the_host() {
    const WAIT: Duration = Duration::from_millis(1);
    let address = |n: u8| format!("127.62.{}.{n}", std::process::id() % 256);
    let mut host = Host::new(&address(2), &address(1));
    let mut endpoint = Endpoint::builder(format!("udp:{}", address(1))).build().expect("an endpoint");
    endpoint.peer(address(2).as_str()).expect("room for a peer");
    // A turn of the worker's loop takes longer now and then: such a wait is longer than the field can say.
    for tag in 1.. {
        host.peer.initiator.post(message(tag, 100));
        let mut request = host.peer.poll_transmit(host.now()).expect("a packet").bytes;
        request[1] |= 0x40;
        host.socket.send_to(&request, host.to).expect("room for a datagram");
        std::thread::sleep(WAIT);
        let mut answer = [0; 100];
        while host.socket.recv(&mut answer).is_err() {
            assert!(host.begin.elapsed() < PATIENCE, "{:?}", endpoint.explain());
            endpoint.poll().expect("the worker is there");
        }
        assert_eq!((answer[0] >> 3, answer[12] >> 4), (8, 15), "an ACK_CC with the state of a delay echo");
        let queued = u16::from_be_bytes([answer[28], answer[29]]);
        let waited = Duration::from_nanos(u64::from(queued) * 32);
        if queued < 0xfffe && waited >= WAIT {
            return;
        }
        // The kernel begins to stamp packets at their arrival some time after the socket has asked for it. Until then it
        // stamps them when they are read, which says nothing of their wait.
        assert!(host.begin.elapsed() < PATIENCE, "the last answer says {queued} units of 32 ns");
    }
}
