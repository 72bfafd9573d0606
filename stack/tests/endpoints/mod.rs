//! Two endpoints at the two ends of a link, in virtual time.
#![allow(dead_code)] // Each test program uses its part.

pub(crate) mod steady;

use std::sync::Arc;

use weft_stack::buffer::Buffer;
use weft_stack::cc::{CcChoice, CcParams};
use weft_stack::fep::{Completion, ConnectOptions, ConnectionId, Fep, FepConfig, Receive, Send, SendError};
use weft_stack::packet::Addr;
use weft_stack::pdc::PdcConfig;
use weft_stack::port::Port;
use weft_stack::rng::Rng;
use weft_stack::ses::Matching;
use weft_stack::wire::ethernet::MacAddr;
use weft_stack::wire::pds::DeliveryMode;
use weft_stack::worker::{AddressBook, Clock, HostAddr, LinkConfig, Strangers, Worker};
use weft_stack::{Rate, Span, Time};

pub(crate) const MTU: u32 = 4096;

/// Just before [`Time`] begins anew: what only works without that does not work.
pub(crate) const START: Time = Time::from_ps(u64::MAX - 20_000_000);

/// Endpoints for a link that trims, or loses; otherwise the defaults.
pub(crate) fn config(trimming: bool) -> FepConfig {
    config_with(&CcChoice::default(), MTU, trimming)
}

/// The same with this congestion control and MTU.
pub(crate) fn config_with(cc: &CcChoice, mtu: u32, trimming: bool) -> FepConfig {
    let params = CcParams {
        mtu,
        overhead: 64,
        link_rate: Rate::from_gbps(100),
        network_rtt: Span::from_us(10),
        trimming,
        receiver_credit: cc.uses_credit(),
    };
    let base = FepConfig::new(cc, &params);
    // Every tenth packet may be lost both ways: a few of many thousands will be unlucky six times.
    FepConfig { pdc: PdcConfig { max_retries: 12, ..base.pdc }, ..base }
}

pub(crate) fn host(n: u32, v6: bool) -> HostAddr {
    let n = n as u8 + 1;
    let ip = if v6 { format!("fd00::{n}").parse().unwrap() } else { [10, 0, 0, n].into() };
    HostAddr { mac: MacAddr([2, 0, 0, 0, 0, n]), ip }
}

/// Endpoint `own` of two, with a seed of its own.
pub(crate) fn worker<P: Port>(
    own: u32,
    port: P,
    config: &FepConfig,
    link: LinkConfig,
    v6: bool,
) -> Worker<P> {
    let fep = Fep::new(Addr(own), Arc::new(config.clone()), Rng::new(11, u64::from(own)), START).unwrap();
    let mut book = AddressBook::new(Addr(own), host(own, v6), 2, Strangers::Refuse).unwrap();
    book.insert(Addr(1 - own), host(1 - own, v6)).unwrap();
    Worker::new(fep, port, book, link, Clock::new()).unwrap()
}

/// `len` bytes that differ from message to message and from place to place.
pub(crate) fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed, 99);
    let mut bytes = vec![0; len];
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&rng.next_u64().to_le_bytes()[..chunk.len()]);
    }
    bytes
}

/// The two endpoints, 0 and 1, and the time.
pub(crate) struct Pair<P, Q> {
    pub(crate) a: Worker<P>,
    pub(crate) b: Worker<Q>,
    pub(crate) now: Time,
    idle_turns: u32,
}

/// Turns in which nothing happens before time jumps to the next timer: frames that a faulty port
/// holds back need some to come through.
const PATIENCE: u32 = 100;

impl<P: Port, Q: Port> Pair<P, Q> {
    pub(crate) fn new(a: Worker<P>, b: Worker<Q>) -> Pair<P, Q> {
        Pair { a, b, now: START, idle_turns: 0 }
    }

    /// Both take a turn. Time goes on: by a microsecond, or to the next timer if nothing is left to do
    /// before it.
    pub(crate) fn turn(&mut self) {
        let idle = self.a.poll_at(self.now).is_idle() & self.b.poll_at(self.now).is_idle();
        self.idle_turns = if idle { self.idle_turns + 1 } else { 0 };
        let next = self.now + Span::from_us(1);
        let timers = [self.a.fep().poll_timeout(), self.b.fep().poll_timeout()];
        self.now = match timers.into_iter().flatten().reduce(Time::earliest) {
            Some(timer) if self.idle_turns > PATIENCE => timer.latest(next),
            _ => next,
        };
    }

    pub(crate) fn fep(&mut self, side: u32) -> &mut Fep {
        if side == 0 { self.a.fep_mut() } else { self.b.fep_mut() }
    }

    pub(crate) fn post_receive(&mut self, side: u32, tag: u64, len: usize) {
        let matching = Matching::Tagged { tag, ignore: 0 };
        let buffer = Buffer::Heap(vec![0; len]);
        let receive = Receive { buffer, from: Some(Addr(1 - side)), matching, context: tag };
        self.fep(side).post_receive(receive).unwrap();
    }

    pub(crate) fn connect(&mut self, side: u32, mode: DeliveryMode) -> ConnectionId {
        let (now, options) = (self.now, ConnectOptions { mode, ..ConnectOptions::default() });
        self.fep(side).connect(now, Addr(1 - side), options).unwrap()
    }

    pub(crate) fn post_send(&mut self, side: u32, connection: ConnectionId, tag: u64, bytes: Vec<u8>) {
        let send = Send { buffer: Buffer::Heap(bytes), tag: Some(tag), header_data: !tag, context: tag };
        self.fep(side).post_send(connection, send).unwrap();
    }
}

/// What endpoints have reported.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) sent: Vec<(u32, u64, Result<(), SendError>)>,
    /// Side, tag, the sender's 64 bits, bytes.
    pub(crate) received: Vec<(u32, u64, u64, Vec<u8>)>,
    pub(crate) closed: Vec<u32>,
}

impl Results {
    /// Takes all completions of both sides in.
    pub(crate) fn collect<P: Port, Q: Port>(&mut self, pair: &mut Pair<P, Q>) {
        for side in [0, 1] {
            while let Some(completion) = pair.fep(side).poll_completion() {
                self.note(side, completion);
            }
        }
    }

    fn note(&mut self, side: u32, completion: Completion) {
        match completion {
            Completion::Sent { context, result, .. } => self.sent.push((side, context, result)),
            Completion::Received { tag, header_data, buffer, result, peer, .. } => {
                assert_eq!((result, peer), (Ok(()), Some(Addr(1 - side))));
                let Buffer::Heap(bytes) = buffer else { panic!("real memory was posted") };
                self.received.push((side, tag.unwrap(), header_data, bytes));
            }
            Completion::Closed { result, .. } => {
                assert_eq!(result, Ok(()), "on side {side}");
                self.closed.push(side);
            }
        }
    }
}
