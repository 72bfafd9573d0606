//! Workers at the two ends of a link, in virtual time, and what their endpoints report.

use weft_stack::buffer::Buffer;
use weft_stack::fep::{
    Completion, ConnectOptions, ConnectionId, Fep, FepConfig, ReadError, Receive, Send, SendError,
};
use weft_stack::packet::Addr;
use weft_stack::port::Port;
use weft_stack::ses::Matching;
use weft_stack::wire::pds::DeliveryMode;
use weft_stack::worker::{Clock, LinkConfig, Worker};
use weft_stack::{Span, Time};

use super::{START, book, fep};

/// The worker of endpoint `own` of two, whose virtual time begins at [`START`].
pub(crate) fn worker<P: Port>(
    own: u32,
    port: P,
    config: &FepConfig,
    link: LinkConfig,
    v6: bool,
) -> Worker<P> {
    let fep = fep(own, config.clone(), 11, START);
    Worker::new(fep, port, book(own, 2, v6), link, Clock::new()).unwrap()
}

/// The worker of endpoint `own` of `hosts`, over IPv4, for runs by `clock`.
pub(crate) fn worker_in_real_time<P: Port>(
    own: u32,
    hosts: u32,
    port: P,
    config: FepConfig,
    clock: Clock,
) -> Worker<P> {
    let fep = fep(own, config, 11, clock.now());
    Worker::new(fep, port, book(own, hosts, false), LinkConfig::default(), clock).unwrap()
}

/// The workers of endpoints 0 and 1, and their common virtual time.
pub(crate) struct WorkerPair<P, Q> {
    pub(crate) a: Worker<P>,
    pub(crate) b: Worker<Q>,
    pub(crate) now: Time,
    idle_turns: u32,
}

/// Turns in which nothing happens before time jumps to the next timer. A faulty port counts turns until it releases
/// the frames that it holds back.
const PATIENCE: u32 = 100;

impl<P: Port, Q: Port> WorkerPair<P, Q> {
    pub(crate) fn new(a: Worker<P>, b: Worker<Q>) -> WorkerPair<P, Q> {
        WorkerPair { a, b, now: START, idle_turns: 0 }
    }

    /// Both workers take a turn. Then time goes on by a microsecond, or to the next timer if there is nothing to do
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
        let receive = Receive { buffer, from: Some(Addr(1 - side).into()), matching, context: tag };
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

/// The completions of both endpoints.
#[derive(Debug, Default)]
pub(crate) struct Results {
    /// Side, context, result.
    pub(crate) sent: Vec<(u32, u64, Result<(), SendError>)>,
    /// Side, tag, the sender's header data, bytes.
    pub(crate) received: Vec<(u32, u64, u64, Vec<u8>)>,
    /// Side, context, buffer, result.
    pub(crate) read: Vec<(u32, u64, Buffer, Result<(), ReadError>)>,
    /// The side whose connection closed.
    pub(crate) closed: Vec<u32>,
}

impl Results {
    /// Takes all completions of both endpoints.
    pub(crate) fn collect<P: Port, Q: Port>(&mut self, pair: &mut WorkerPair<P, Q>) {
        for side in [0, 1] {
            while let Some(completion) = pair.fep(side).poll_completion() {
                self.note(side, completion);
            }
        }
    }

    fn note(&mut self, side: u32, completion: Completion) {
        match completion {
            Completion::Sent { context, result, .. } => self.sent.push((side, context, result)),
            Completion::Received { tag, header_data, buffer, result, source, .. } => {
                assert_eq!((result, source), (Ok(()), Some(Addr(1 - side).into())));
                let Buffer::Heap(bytes) = buffer else { panic!("real memory was posted") };
                self.received.push((side, tag.unwrap(), header_data, bytes));
            }
            Completion::Read { context, buffer, result, .. } => {
                self.read.push((side, context, buffer, result));
            }
            Completion::Accessed { .. } | Completion::Written(_) => panic!("nothing was written"),
            Completion::Closed { result, .. } => {
                assert_eq!(result, Ok(()), "on side {side}");
                self.closed.push(side);
            }
        }
    }
}
