//! Several workers at one address. A host's port has two queues and a worker for each, and the host exchanges messages
//! with others, which all spray over all entropies. Only its addresses decide to which queue a packet goes.

mod harness;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use harness::{MTU, config, content, host, worker_in_real_time};
use weft_stack::buffer::Buffer;
use weft_stack::fep::{Completion, ConnectOptions, Receive, Send};
use weft_stack::packet::Addr;
use weft_stack::port::memory::{MemoryConfig, MemoryPort, pair};
use weft_stack::port::{Port, RxBurst, TxBurst};
use weft_stack::ses::Matching;
use weft_stack::wire::class::DscpClasses;
use weft_stack::wire::frame::{ChecksumPolicy, IpAddrs, parse_frame};
use weft_stack::worker::{Clock, Idle, Steering, Team, Worker, WorkerSpec, usable_cores};
use weft_stack::{Span, Time};

/// The longest wait.
const LIMIT: Duration = Duration::from_secs(60);
const QUEUES: u16 = 2;
const PEERS: u32 = 4;
const LEN: usize = 30 * MTU as usize + 7;

fn worker(own: u32, port: MemoryPort, clock: Clock) -> Worker<MemoryPort> {
    // The threads share few cores, so that each waits for the scheduler.
    let config = config(true).with_zones(|zone| zone.pdc.rto_init = Span::from_ms(200));
    let mut worker = worker_in_real_time(own, 1 + PEERS, port, config, clock);
    worker.set_idle(Idle::ADAPTIVE);
    worker
}

/// The queue of host 0 that receives the packets of host `peer`.
fn queue_of(peer: u32) -> usize {
    Steering::over(QUEUES).queue(host(peer, false).ip, host(0, false).ip).into()
}

/// Opens a connection to each of `peers`, and posts a message and a receive.
fn begin(worker: &mut Worker<MemoryPort>, now: Time, peers: &[u32]) {
    let own = worker.fep().addr().0;
    for &peer in peers {
        let connection = worker.connect(now, Addr(peer), ConnectOptions::default()).unwrap();
        let buffer = Buffer::Heap(content(u64::from(own * 100 + peer), LEN));
        worker
            .fep_mut()
            .post_send(connection, Send { buffer, tag: None, header_data: 0, context: 0 })
            .unwrap();
        let (buffer, from) = (Buffer::Heap(vec![0; LEN]), Some(Addr(peer).into()));
        let receive = Receive { buffer, from, matching: Matching::Untagged, context: 0 };
        worker.fep_mut().post_receive(receive).unwrap();
    }
}

/// Runs a worker that exchanges messages with `peers`. Returns how many packets it has retransmitted.
fn exchange(
    spec: &WorkerSpec,
    port: MemoryPort,
    clock: Clock,
    own: u32,
    peers: &[u32],
    done: &AtomicUsize,
) -> u64 {
    let mut worker = worker(own, port, clock);
    begin(&mut worker, clock.now(), peers);
    worker.run(&spec.waker, |fep, _| {
        let Some(completion) = fep.poll_completion() else { return false };
        match completion {
            Completion::Sent { result, .. } => assert_eq!(result, Ok(())),
            Completion::Received { result, buffer, source, .. } => {
                let from = source.expect("it is known").peer.0;
                assert_eq!(result, Ok(()));
                assert!(buffer == Buffer::Heap(content(u64::from(from * 100 + own), LEN)), "{from} to {own}");
            }
            other => panic!("{other:?}"),
        }
        done.fetch_add(1, Ordering::Release);
        true
    });
    let counters = worker.counters();
    assert_eq!((counters.malformed, counters.misdirected, counters.strangers), (0, 0, 0));
    worker.fep().counters().data_retransmitted
}

/// A switch with a port to each queue of host 0, and one to each of the others.
struct Switch {
    ports: Vec<MemoryPort>,
    bursts: Vec<TxBurst>,
    rx: RxBurst,
    /// The entropies of the packets that each queue has received.
    seen: [BTreeSet<u16>; QUEUES as usize],
}

impl Switch {
    fn new(ports: Vec<MemoryPort>) -> Switch {
        let bursts = ports.iter().map(TxBurst::new).collect();
        Switch { ports, bursts, rx: RxBurst::new(), seen: Default::default() }
    }

    fn turn(&mut self) {
        for port in 0..self.ports.len() {
            // The switch drops frames that a port does not take at once, like a full queue.
            self.bursts.iter_mut().for_each(TxBurst::clear);
            self.ports[port].receive(&mut self.rx);
            for frame in self.rx.drain() {
                let meta =
                    parse_frame(&frame, &DscpClasses::default(), ChecksumPolicy::OFFLOADED).unwrap().meta;
                let IpAddrs::V4 { src, dst } = meta.ip else { panic!("{meta:?}") };
                let to = match u32::from(dst.octets()[3]) - 1 {
                    0 => {
                        let queue = usize::from(Steering::over(QUEUES).queue(src.into(), dst.into()));
                        self.seen[queue].insert(meta.entropy_port);
                        queue
                    }
                    peer => usize::from(QUEUES) + peer as usize - 1,
                };
                self.bursts[to].push(frame).expect("a burst is no longer than another");
            }
            for (port, burst) in self.ports.iter_mut().zip(&mut self.bursts) {
                port.transmit(burst);
            }
        }
    }
}

#[test]
fn peers_are_spread_over_workers_by_their_addresses() {
    let clock = Clock::new();
    let done = Arc::new(AtomicUsize::new(0));
    let peers_of = |queue: usize| (1..=PEERS).filter(|peer| queue_of(*peer) == queue).collect::<Vec<_>>();
    // The address of each thread's host, and its peers.
    let mut roles: Vec<(u32, Vec<u32>)> =
        (0..usize::from(QUEUES)).map(|queue| (0, peers_of(queue))).collect();
    assert!(roles.iter().all(|(_, peers)| !peers.is_empty()), "each queue has a peer: {roles:?}");
    roles.extend((1..=PEERS).map(|peer| (peer, vec![0])));
    let links: Vec<_> = roles.iter().map(|_| pair(&MemoryConfig::default()).unwrap()).collect();
    let (ends, ports): (Vec<_>, Vec<_>) = links.into_iter().unzip();
    let jobs: Vec<_> = roles
        .into_iter()
        .zip(ends)
        .map(|((own, peers), port)| {
            let done = Arc::clone(&done);
            move |spec: WorkerSpec| exchange(&spec, port, clock, own, &peers, &done)
        })
        .collect();
    // There are more threads than cores.
    let cores: Vec<usize> = usable_cores().into_iter().cycle().take(jobs.len()).collect();
    let count = jobs.len();
    let team = Team::start(&cores, jobs).unwrap();

    let mut switch = Switch::new(ports);
    let start = Instant::now();
    // Each pair of hosts exchanges two messages, and each host reports two completions.
    while done.load(Ordering::Acquire) < 4 * PEERS as usize {
        assert!(start.elapsed() < LIMIT, "{} reports", done.load(Ordering::Acquire));
        switch.turn();
        thread::yield_now();
    }
    assert_eq!(team.stop().len(), count);
    for entropies in &switch.seen {
        assert!(entropies.len() > 20, "packets were sprayed: {} entropies", entropies.len());
    }
}
