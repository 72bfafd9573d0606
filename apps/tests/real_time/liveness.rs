//! Faults in which connections used to live on: a path that swallows long packets, a receiver whose process is stopped,
//! and one whose application takes nothing. Real processes over kernel UDP; each sender ends within its stated bound,
//! with the stated error, and sends few packets until then.

use crate::lab;
use crate::lab::{Lab, Process, stderr_of, until};
use rustix::process::{Pid, Signal, kill_process};
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weft::{Completion, ConnectOptions, Endpoint, Error, Failure, SendError, Span};

/// The time without progress after which connections are given up here.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
/// The silence after which they are: 63 times `--rto 20ms`.
const SILENCE: Duration = Duration::from_millis(1_260);
/// By how much a busy machine may delay the end of a process.
const LATE: Duration = Duration::from_secs(20);
/// Datagrams that are longer are data.
const SHORT: usize = 2_000;
/// Long datagrams that pass before the fault.
const BEFORE: u64 = 500;

const PORT: u16 = 4793;
/// The source port of the first entropy.
const ENTROPY: u16 = 0xc000;

fn ip(net: u8, n: u8) -> String {
    format!("127.93.{net}.{n}")
}

fn socket(ip: &str, port: u16) -> UdpSocket {
    let socket = UdpSocket::bind((ip, port)).expect("the address is this test's own");
    socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a socket");
    socket
}

/// Counters and state that the threads of a proxy share with the test.
#[derive(Default)]
struct Watch {
    /// Long datagrams of the client.
    long: AtomicU64,
    /// Datagrams of the client after the fault.
    vain: AtomicU64,
    is_faulty: AtomicBool,
    over: AtomicBool,
}

/// Stands between a client at address 2 and its server at address 3: the client takes it, at address 1, for the server,
/// and the server takes it, at address 4, for the client.
struct Proxy {
    watch: Arc<Watch>,
    threads: Vec<JoinHandle<()>>,
}

impl Proxy {
    /// After the fault, long datagrams of the client vanish if it is a black hole.
    fn start(net: u8, is_black_hole: bool) -> Proxy {
        let watch = Arc::new(Watch::default());
        let (to_server, to_client) = (watch.clone(), watch.clone());
        let towards_server = forward(&ip(net, 1), &ip(net, 4), ip(net, 3), watch.clone(), move |len| {
            let is_faulty = to_server.is_faulty.load(Ordering::SeqCst);
            to_server.long.fetch_add(u64::from(len > SHORT), Ordering::SeqCst);
            to_server.vain.fetch_add(u64::from(is_faulty), Ordering::SeqCst);
            !(is_black_hole && is_faulty && len > SHORT)
        });
        let towards_client = forward(&ip(net, 4), &ip(net, 1), ip(net, 2), to_client, |_| true);
        Proxy { watch, threads: vec![towards_server, towards_client] }
    }

    /// Waits until a transfer is in full swing.
    fn await_traffic(&self) {
        until("data", || self.watch.long.load(Ordering::SeqCst) >= BEFORE);
    }

    /// The fault begins. Returns when.
    fn fail(&self) -> Instant {
        self.watch.is_faulty.store(true, Ordering::SeqCst);
        Instant::now()
    }

    /// Datagrams that the client has sent since the fault.
    fn vain(&self) -> u64 {
        self.watch.vain.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.watch.over.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            // Its panic, if there was one, has been printed.
            let _ = thread.join();
        }
    }
}

/// Passes datagrams that arrive at `at` on to `to`, from `from`, as far as `passes` lets them, whom it tells their lengths.
fn forward(
    at: &str,
    from: &str,
    to: String,
    watch: Arc<Watch>,
    passes: impl Fn(usize) -> bool + Send + 'static,
) -> JoinHandle<()> {
    let (inside, outside) = (socket(at, PORT), socket(from, ENTROPY));
    std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while !watch.over.load(Ordering::SeqCst) {
            match inside.recv(&mut buffer) {
                // A receiver that has ended refuses the datagram.
                Ok(len) if passes(len) => drop(outside.send_to(&buffer[..len], (to.as_str(), PORT))),
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                // The refusal of an earlier datagram.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                Err(error) => panic!("the proxy cannot receive: {error}"),
            }
        }
    })
}

/// A client and a server of `weft perf` with a proxy between them.
fn transfer(lab: &Lab, net: u8, is_black_hole: bool) -> (Proxy, Process, Process) {
    let (front, own, server) = (ip(net, 1), format!("udp:{}", ip(net, 2)), format!("udp:{}", ip(net, 3)));
    let proxy = Proxy::start(net, is_black_hole);
    let server = lab.start(&["perf", "server", "--port", &server, "--patience", "60000ms"]);
    let bounds = ["--busy-timeout", "2000ms", "--rto", "20ms", "--patience", "60000ms"];
    let test = ["perf", "client", &front, "--port", &own, "--duration", "120000ms"];
    let client = lab.start(&[&test[..], &bounds].concat());
    proxy.await_traffic();
    (proxy, server, client)
}

#[test]
fn a_black_hole_for_long_packets_ends_a_transfer_with_its_name() {
    let lab = Lab::new();
    let (proxy, _server, client) = transfer(&lab, 1, true);
    let began = proxy.fail();
    let output = client.output();
    let (took, text) = (began.elapsed(), stderr_of(&output));
    assert_eq!(output.status.code(), Some(1), "{text}");
    for part in ["PDC ", "PSN ", "with 4096 bytes of payload was sent", "black hole"] {
        assert!(text.contains(part), "{part:?} is missing in {text}");
    }
    assert!(took + Duration::from_millis(200) >= BUSY_TIMEOUT && took < BUSY_TIMEOUT + LATE, "{took:?}");
    assert!(proxy.vain() < 20_000, "{} datagrams in vain", proxy.vain());
}

#[test]
fn a_receiver_that_is_stopped_is_given_up_for_its_silence() {
    let lab = Lab::new();
    let (proxy, server, client) = transfer(&lab, 2, false);
    let signal = |signal| {
        let pid = Pid::from_raw(server.pid() as i32).expect("a process");
        kill_process(pid, signal).expect("it runs");
    };
    signal(Signal::STOP);
    let began = proxy.fail();
    let output = client.output();
    let (took, text) = (began.elapsed(), stderr_of(&output));
    signal(Signal::CONT);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("no answer for ") && text.contains("PDC "), "{text}");
    assert!(took + Duration::from_millis(200) >= SILENCE && took < SILENCE + LATE, "{took:?}");
    assert!(proxy.vain() < 20_000, "{} datagrams in vain", proxy.vain());
}

/// The receiver's server keeps 64 MiB of messages for which there is no receive, and refuses the rest.
#[test]
fn a_receiver_whose_application_takes_nothing_is_given_up_as_busy() {
    const MESSAGE: usize = 1 << 20;
    const MESSAGES: usize = 72;
    let lab = Lab::new();
    let (own, peer) = (ip(3, 1), ip(3, 2));
    let socket = lab.path().join("socket");
    let path = socket.display().to_string();
    let _server = lab.start(&["serve", "--socket", &path, "--port", &format!("udp:{own}"), "--peer", &peer]);
    until("the server's socket", || socket.exists());
    let joined = Endpoint::builder(format!("serve:{path}")).process(7).build();
    let _takes_nothing = joined.expect("the server lets it in");

    let builder = Endpoint::builder(format!("udp:{peer}")).rto(Span::from_ms(20));
    let mut sender = builder.busy_timeout(Span::from_ms(2_000)).build().expect("an endpoint");
    let there = sender.peer(own.as_str()).expect("a peer");
    let options = ConnectOptions::default().process(7);
    let connection = sender.connect_with(there, options).expect("room for a connection");
    for _ in 0..MESSAGES {
        sender.send(connection, vec![7; MESSAGE]).expect("room for a message");
    }
    let (mut arrived, mut progress_at) = (0, Instant::now());
    let error = loop {
        match sender.wait(lab::PATIENCE).expect("the worker is there") {
            Some(Completion::Connected { .. }) => {}
            Some(Completion::Sent { result: Ok(()), .. }) => {
                (arrived, progress_at) = (arrived + 1, Instant::now())
            }
            Some(Completion::Sent { result: Err(error), .. }) => break error,
            other => panic!("{other:?}: {:?}", sender.explain()),
        }
    };
    assert!(matches!(error, Error::Send(SendError::Failed(Failure::Busy { .. }))), "{error}");
    let took = progress_at.elapsed();
    assert!(took < BUSY_TIMEOUT + LATE, "{took:?}");
    assert!((60..=64).contains(&arrived), "{arrived} messages were kept");
    let counters = sender.worker().expect("in this thread").fep().counters();
    let packets = counters.data_sent + counters.data_retransmitted;
    assert!(packets < 40_000, "{packets} packets for {} that were kept", arrived * MESSAGE / 4096);
}
