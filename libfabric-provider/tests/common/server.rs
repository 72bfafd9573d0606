//! A server as `weft serve` is one, on a thread of the test.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use weft::core::worker::Waker;
use weft::core::worker::session::{ServerEvent, SessionConfig, SessionServer};
use weft::{Builder, Endpoint, Limits};

use super::fabric::{How, Side, Wish};
use super::lossy::{Faults, Relay};

/// A server that ends when this is dropped.
pub(crate) struct Server {
    socket: PathBuf,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    joined: Arc<AtomicUsize>,
}

impl Server {
    /// A server over the port that `builder` names, where applications join at `socket`. Like `weft serve` it lets in nobody
    /// whom no application has named.
    pub(crate) fn start(builder: Builder, socket: &Path) -> Server {
        Server::start_within(Limits::default(), builder, socket)
    }

    /// The same with other limits than `weft serve` has, as far as peers are concerned.
    pub(crate) fn start_within(limits: Limits, builder: Builder, socket: &Path) -> Server {
        let limits = Limits { sends: 1 << 22, connections: u16::MAX.into(), processes: 64, ..limits };
        let (mut worker, info, _) = builder.limits(limits).learn_peers(false).build_worker().unwrap();
        let waker = Waker::new().unwrap();
        let mut server = SessionServer::new(&mut worker, 64, waker.clone());
        if let Some(place) = info.place_peers() {
            server.place_peers(place);
        }
        let most = SessionConfig {
            commands: 1 << 16,
            reports: 1 << 16,
            operations: 1 << 16,
            connections: 512,
            memory: 256 << 20,
            peers: 256,
            ..SessionConfig::default()
        };
        server.listen(socket, most).unwrap();
        let joined = Arc::new(AtomicUsize::new(0));
        let count = joined.clone();
        let thread = std::thread::spawn(move || {
            server.run(worker, |event| {
                eprintln!("server: {event:?}");
                count.fetch_add(usize::from(matches!(event, ServerEvent::Joined { .. })), Ordering::Relaxed);
            })
        });
        Server { socket: socket.to_owned(), waker, thread: Some(thread), joined }
    }

    /// How many applications have joined.
    pub(crate) fn joined(&self) -> usize {
        self.joined.load(Ordering::Relaxed)
    }

    /// The name of its place, for the provider.
    pub(crate) fn name(&self) -> String {
        format!("serve:{}", self.socket.display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.waker.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// The loopback address of host `host` of this test, which no other test has: each is a process of its own.
pub(crate) fn address(host: u8) -> Ipv4Addr {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 128 | high, low, host)
}

/// A server over kernel UDP at [`address`]`(host)`.
pub(crate) fn server(
    directory: &tempfile::TempDir,
    host: u8,
    set: impl FnOnce(Builder) -> Builder,
) -> Server {
    let builder = set(Endpoint::builder(format!("udp:{}", address(host))));
    Server::start(builder, &directory.path().join(host.to_string()))
}

/// Two servers, hosts `first` and the next one.
pub(crate) fn servers(directory: &tempfile::TempDir, first: u8) -> [Server; 2] {
    [first, first + 1].map(|host| server(directory, host, |builder| builder))
}

/// Two servers, hosts `first` and the next one, and a relay between them. All know the servers by the next two hosts, where the relay is.
pub(crate) fn servers_over_relay(
    directory: &tempfile::TempDir,
    first: u8,
    faults: Faults,
    seed: u64,
) -> ([Server; 2], Relay) {
    let [a, b, as_a, as_b] = [0, 1, 2, 3].map(|n| address(first + n));
    let relay = Relay::between_servers([a, b, as_a, as_b], faults, seed);
    let servers = [(a, as_a), (b, as_b)].map(|(host, called)| {
        let builder = Endpoint::builder(format!("udp:{host},called={called}")).trimming(true);
        Server::start(builder, &directory.path().join(host.to_string()))
    });
    (servers, relay)
}

/// An endpoint of a server.
pub(crate) fn open(server: &Server) -> Side {
    Side::open(&Wish { domain: Some(server.name()), ..Wish::default() }, How::default())
}
