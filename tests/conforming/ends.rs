//! What stands at the ends of the link: a worker of weft, or the conforming peer.

use std::collections::VecDeque;
use std::sync::Arc;

use weft::cc::{CcChoice, CcParams, Delays};
use weft::core::port::memory::{MemoryConfig, MemoryPort, pair};
use weft::core::port::{Port, RxBurst, TxBurst};
use weft::core::worker::{AddressBook, Clock, HostAddr, LinkConfig, Strangers, Worker};
use weft::core::{
    Buffer, Completion, ConnectionId, Exposure, Fep, FepConfig, Read, Receive, Rights, Rng, Send,
};
use weft::{Addr, ConnectOptions, DeliveryMode, Failure, MacAddr, Matching, Rate, Span, Time};

use super::frame::{ip, mac, unwrap, wrap};
use super::net::{DELAY, Node, RATE};
use super::peer::{Acks, Message, Peer, Ps, Settings};

/// Propagation both ways, a full packet, and an acknowledgement.
const BASE_RTT: Ps = 2 * DELAY + 400_000;
pub(crate) const MTU: usize = 4096;
const RTO: Ps = 200_000_000;

fn host(n: u8) -> HostAddr {
    HostAddr { mac: MacAddr(mac(n)), ip: ip(n).into() }
}

/// A worker of weft at the link.
pub(crate) struct Weft {
    pub(crate) worker: Worker<MemoryPort>,
    /// The other end of the worker's port, and what it has taken from there.
    card: MemoryPort,
    tx: TxBurst,
    rx: RxBurst,
    leaving: VecDeque<Vec<u8>>,
    own: u8,
    mode: DeliveryMode,
    /// Opened with the first message.
    connection: Option<ConnectionId>,
    posted: usize,
    sent: usize,
    received: Vec<Message>,
    /// What was read, in order of completion.
    pub(crate) read: Vec<Vec<u8>>,
    /// Why the connection closed.
    pub(crate) closed: Option<Result<(), Failure>>,
    trace: Vec<(Ps, u64)>,
}

/// The settings of an endpoint at the link.
pub(crate) fn config(cc: &str) -> FepConfig {
    let network = CcParams {
        mtu: MTU as u32,
        overhead: 122,
        link_rate: Rate::from_gbps(RATE / 1_000_000_000),
        network_rtt: Span::from_ps(BASE_RTT),
        trimming: true,
        delays: Delays::Known,
    };
    let base = FepConfig::new(&CcChoice::parse(cc).expect("a known algorithm"), &network);
    base.with_zones(|zone| zone.pdc.rto_init = Span::from_ps(RTO))
}

/// The settings of a peer at the link.
pub(crate) fn settings() -> Settings {
    Settings {
        mtu: MTU,
        base_rtt: BASE_RTT,
        rate: RATE,
        rto: RTO,
        ordered: false,
        credit: false,
        crc: false,
        acks: Acks::Nscc { penalty: 0 },
    }
}

impl Weft {
    /// Endpoint `own` of 0 and 1.
    pub(crate) fn new(own: u8, config: FepConfig) -> Weft {
        // The queue of a card: one frame, and the burst that the worker keeps until the card takes it.
        let memory = MemoryConfig { ring: 1, spare: 64, ..MemoryConfig::default() };
        let (port, card) = pair(&memory).expect("a valid configuration");
        let fep = Fep::new(Addr(own.into()), Arc::new(config), Rng::new(7, own.into()), Time::ZERO)
            .expect("a valid configuration");
        let mut book = AddressBook::new(fep.addr(), host(own), 2, Strangers::Refuse).expect("an address");
        book.insert(Addr((1 - own).into()), host(1 - own)).expect("a free address");
        let worker = Worker::new(fep, port, book, LinkConfig::default(), Clock::new())
            .expect("the parts fit each other");
        Weft {
            worker,
            tx: TxBurst::new(&card),
            rx: RxBurst::new(),
            card,
            leaving: VecDeque::new(),
            own,
            mode: DeliveryMode::Rud,
            connection: None,
            posted: 0,
            sent: 0,
            received: Vec::new(),
            read: Vec::new(),
            closed: None,
            trace: Vec::new(),
        }
    }

    /// The same with connections of this mode.
    pub(crate) fn mode(self, mode: DeliveryMode) -> Weft {
        Weft { mode, ..self }
    }

    /// Lets the peer read `bytes`.
    pub(crate) fn expose(&mut self, key: u64, bytes: Vec<u8>) {
        let exposure =
            Exposure { key, buffer: Buffer::Heap(bytes), base: 0, rights: Rights::READ, from: None };
        self.worker.fep_mut().expose(0, exposure).expect("a free key");
    }

    /// Reads `len` bytes from `offset` of the peer's memory.
    pub(crate) fn post_read(&mut self, now: Ps, key: u64, offset: usize, len: usize) {
        let connection = self.connection(now);
        let read = Read { buffer: Buffer::Heap(vec![0; len]), key, offset: offset as u64, context: 0 };
        self.worker.fep_mut().post_read(connection, read).expect("an open connection");
    }

    /// The connection to the peer, which is opened with the first message or read.
    fn connection(&mut self, now: Ps) -> ConnectionId {
        let (fep, peer) = (self.worker.fep_mut(), Addr((1 - self.own).into()));
        *self.connection.get_or_insert_with(|| {
            let options = ConnectOptions::default().mode(self.mode);
            fep.connect(Time::from_ps(now), peer, options).expect("room for a connection")
        })
    }

    /// Closes the connection.
    pub(crate) fn close(&mut self, now: Ps) {
        let connection = self.connection.expect("something has been posted");
        self.worker.fep_mut().close(Time::from_ps(now), connection).expect("an open connection");
    }

    fn poll(&mut self, now: Ps) {
        self.worker.poll_at(Time::from_ps(now));
        while let Some(completion) = self.worker.fep_mut().poll_completion() {
            self.note(completion);
        }
        let Some(state) = self.connection.and_then(|id| self.worker.fep().congestion(id)) else { return };
        if self.trace.last().is_none_or(|last| last.1 != state.cwnd) {
            self.trace.push((now, state.cwnd));
        }
    }

    fn note(&mut self, completion: Completion) {
        match completion {
            Completion::Sent { result, .. } => {
                assert_eq!(result, Ok(()));
                self.sent += 1;
            }
            Completion::Received { source, tag, header_data, buffer, result, .. } => {
                assert_eq!((result, source.map(|source| source.process)), (Ok(()), Some(0)));
                let Buffer::Heap(bytes) = buffer else { unreachable!("real memory was posted") };
                self.received.push(Message { tag, header_data, bytes });
            }
            Completion::Read { buffer, result, .. } => {
                assert_eq!(result, Ok(()));
                let Buffer::Heap(bytes) = buffer else { unreachable!("real memory was posted") };
                self.read.push(bytes);
            }
            Completion::Accessed { .. } | Completion::Written(_) => panic!("nothing was written"),
            Completion::Closed { result, .. } => self.closed = Some(result),
        }
    }
}

impl Node for Weft {
    fn receive(&mut self, now: Ps, frame: &[u8]) {
        let frame = self.card.pool().copy(frame).expect("the worker has given earlier frames back");
        self.tx.push(frame).expect("an empty burst");
        assert_eq!(self.card.transmit(&mut self.tx), 1);
        self.poll(now);
    }

    fn transmit(&mut self, now: Ps) -> Option<Vec<u8>> {
        if self.leaving.is_empty() {
            self.poll(now);
            self.card.receive(&mut self.rx);
            self.leaving.extend(self.rx.drain().map(|frame| frame.to_vec()));
        }
        self.leaving.pop_front()
    }

    fn poll_timeout(&self) -> Option<Ps> {
        self.worker.fep().poll_timeout().map(|at| at.since(Time::ZERO).as_ps())
    }

    fn on_timeout(&mut self, now: Ps) {
        self.poll(now);
    }

    fn post(&mut self, now: Ps, message: Message) {
        let connection = self.connection(now);
        let Message { tag, header_data, bytes } = message;
        let send = Send { buffer: Buffer::Heap(bytes), tag, header_data, context: 0 };
        self.worker.fep_mut().post_send(connection, send).expect("an open connection");
        self.posted += 1;
    }

    fn expect(&mut self, tag: u64, len: usize) {
        let from = Some(Addr((1 - self.own).into()).into());
        let matching = Matching::Tagged { tag, ignore: 0 };
        let receive = Receive { buffer: Buffer::Heap(vec![0; len]), from, matching, context: 0 };
        self.worker.fep_mut().post_receive(receive).expect("room for a receive");
    }

    fn received(&self) -> &[Message] {
        &self.received
    }

    fn is_done(&self) -> bool {
        self.sent == self.posted
    }

    fn trace(&self) -> &[(Ps, u64)] {
        &self.trace
    }
}

/// The conforming peer at the link: its datagrams in frames.
pub(crate) struct Host {
    pub(crate) peer: Peer,
    own: u8,
    crc: bool,
}

impl Host {
    pub(crate) fn new(own: u8, settings: Settings) -> Host {
        Host { peer: Peer::new(settings), own, crc: settings.crc }
    }
}

impl Node for Host {
    fn receive(&mut self, now: Ps, frame: &[u8]) {
        match unwrap(frame, self.crc) {
            Ok(datagram) => self.peer.on_datagram(now, &datagram),
            Err(what) => self.peer.violation(what),
        }
    }

    fn transmit(&mut self, now: Ps) -> Option<Vec<u8>> {
        let datagram = self.peer.poll_transmit(now)?;
        Some(wrap(&datagram, self.own, 1 - self.own, self.crc))
    }

    fn poll_timeout(&self) -> Option<Ps> {
        self.peer.poll_timeout()
    }

    fn on_timeout(&mut self, now: Ps) {
        self.peer.on_timeout(now);
    }

    fn post(&mut self, _: Ps, message: Message) {
        self.peer.initiator.post(message);
    }

    fn expect(&mut self, _: u64, _: usize) {}

    fn received(&self) -> &[Message] {
        self.peer.target.received()
    }

    fn is_done(&self) -> bool {
        self.peer.initiator.is_done()
    }

    fn trace(&self) -> &[(Ps, u64)] {
        self.peer.initiator.trace()
    }
}
