//! An endpoint: libfabric's operations over a [`weft::Endpoint`].
//!
//! Most are reliable (FI_EP_RDM), and this is about those; [`datagrams`] is about the others (FI_EP_DGRAM). There is one
//! connection for each peer, so that its messages meet receives in the order in which they were sent (FI_ORDER_SAS). It is
//! opened by the first message, and again after it was closed.

mod backlog;
mod bindings;
mod budgets;
mod carried;
mod connections;
mod datagrams;
mod eager;
mod grants;
mod kinds;
#[cfg(test)]
mod limits;
mod looks;
mod notes;
mod offered;
mod operation;
mod peers;
mod pending;
mod readings;
mod receive;
mod reconnect;
mod refusals;
mod remote;
mod send;
#[cfg(test)]
mod served_tests;
mod stand_in;
mod takers;
mod waiting;
mod watch;

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weft::{Completion, Endpoint, OperationId, Rights};

pub(crate) use self::backlog::PART_OF_ONE;
pub(crate) use self::bindings::{Binding, Bindings, EndpointEvents, Wanted};
pub(crate) use self::carried::RESERVED_TAG;
pub(crate) use self::notes::is_key as is_key_of_notes;
pub(crate) use self::receive::{Incoming, Room, Which};
pub(crate) use self::remote::{Access, AtomicCall, Part, What};
pub(crate) use self::send::{INJECT_SIZE, Outgoing, OutgoingBytes};
pub(crate) use self::waiting::Peek;

use self::backlog::Backlog;
use self::bindings::report;
use self::budgets::{Budgets, Takings};
use self::carried::Carrier;
use self::connections::Connections;
use self::eager::Eager;
use self::looks::LOOK;
use self::notes::Notes;
use self::operation::Operation;
use self::peers::Peers;
use self::pending::Pending;
use self::stand_in::StandIns;
use self::waiting::Claimed;
use crate::error::{FiError, lock};
use crate::info;
use crate::kind::Kind;
use crate::memory::Memories;
use crate::place::{Names, Place};
use crate::slab::Slab;
use crate::sys;

/// Messages and accesses that may be under way in any case, as `fi_getinfo` says, and receives of datagrams. There may be
/// [more](pending) messages and accesses.
pub(crate) const DEPTH: usize = 4096;
/// Receives of messages that may be posted.
pub(crate) const RECEIVES: usize = 1 << 16;
/// Completions that one call takes from the endpoint, so that it ends while messages keep arriving.
const BATCH: usize = 256;
/// Bytes that a receive for many messages has left at least while it goes on, unless the application sets it
/// (FI_OPT_MIN_MULTI_RECV).
const LEAST: NonZeroU32 = NonZeroU32::new(64).expect("not 0");
/// How often a call lets the endpoint work so that others may go on sleeping. If there is still something to do then, the endpoint's
/// own thread sees to it.
const REARMS: usize = 8;
/// How long an endpoint that is closed may take to deliver what was sent, and to answer its peers.
const LINGER: Duration = Duration::from_secs(1);

/// What an endpoint was opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caps {
    kind: Kind,
    /// libfabric's bits, with those that they imply.
    bits: u64,
    /// Receives name their sender.
    directed: bool,
    /// Entries name the sender.
    names_source: bool,
    /// What peers do with registered memory can be counted.
    counts_peers: bool,
}

impl Caps {
    /// The capabilities that these bits of libfabric name, with those that they imply. Those that cost time count
    /// only if they are named.
    pub(crate) fn of(kind: Kind, bits: u64) -> Caps {
        let has = |bit| bits & bit != 0;
        Caps {
            kind,
            bits: info::implied(bits, kind.caps()),
            directed: has(sys::FI_DIRECTED_RECV),
            names_source: has(sys::FI_SOURCE),
            counts_peers: has(sys::FI_RMA_EVENT),
        }
    }

    fn has(self, bits: u64) -> bool {
        self.bits & bits == bits
    }

    /// Whether it has operations whose ends go to the transmit queue.
    fn initiates(self) -> bool {
        self.bits & (sys::FI_SEND | sys::FI_READ | sys::FI_WRITE) != 0
    }

    /// Whether it receives messages.
    fn receives(self) -> bool {
        self.has(sys::FI_RECV)
    }

    /// Whether peers may access the memory of its domain.
    fn is_target(self) -> bool {
        self.bits & (sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE) != 0
    }

    /// Refuses an operation that needs capabilities which it lacks.
    fn demand(self, bits: u64) -> Result<(), FiError> {
        if self.has(bits) { Ok(()) } else { Err(FiError::NO_OPERATION) }
    }

    /// As [`Caps::demand`], of messages with or without tags in one direction.
    fn demand_messages(self, is_tagged: bool, direction: u64) -> Result<(), FiError> {
        self.demand(direction | if is_tagged { sys::FI_TAGGED } else { sys::FI_MSG })
    }

    /// What peers may do through it with memory that is registered with these rights.
    fn limit(self, rights: Rights) -> Rights {
        let Rights { read, write, atomic } = rights;
        Rights {
            // Atomic operations that fetch are reads as well.
            read: read && self.has(sys::FI_REMOTE_READ),
            write: write && self.has(sys::FI_RMA | sys::FI_REMOTE_WRITE),
            atomic: atomic && self.has(sys::FI_ATOMIC | sys::FI_REMOTE_WRITE),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Rdm {
    caps: Caps,
    local: SocketAddr,
    state: Mutex<State>,
    /// How often the application has let the endpoint work.
    visits: AtomicU64,
    /// Threads of the application that sleep until the endpoint has something for them.
    attending: AtomicUsize,
}

#[derive(Debug)]
struct State {
    /// None after the endpoint was closed.
    endpoint: Option<Endpoint>,
    bindings: Bindings,
    enabled: bool,
    operations: Slab<Operation>,
    sends: usize,
    receives: usize,
    /// How many completions were taken from the endpoint.
    ended: u64,
    peers: Peers,
    /// Messages that were claimed, by the contexts of the calls that did.
    claims: HashMap<usize, Claimed>,
    /// Operations to cancel, of which the server has not heard: its ring had no room.
    cancels: BTreeSet<OperationId>,
    /// Bytes that a receive for many messages has left at least while it goes on.
    least: NonZeroU32,
    /// Questions whether peers are there that are under way.
    questions: usize,
    /// How many writes with data may still come, and whether they are refused as the queue has no room for their entries.
    expected_announcements: usize,
    refuses_announcements: bool,
    /// How many further messages receives for many may take, and those that they have taken and not reported; none as long as
    /// nothing bounds that.
    expected_many: Option<i64>,
    /// What waits for a server's memory.
    backlog: Backlog,
    /// Accesses to remote memory of an endpoint whose worker does none.
    carrier: Option<Box<Carrier>>,
    /// Long messages that peers fetch.
    stand_ins: StandIns,
    /// How much peers let such an endpoint send at once, and what it has taken of them.
    budgets: Budgets,
    takings: Takings,
    /// Messages that have not ended, and without a server accesses.
    pending: Pending,
    /// Accesses through a server that have not ended.
    carried_accesses: Pending,
    /// Without a server: notices to peers that their messages were received or dropped, and what is read of long messages.
    notes: Notes,
    eager: Eager,
}

/// Says while it lives that a thread of the application sleeps and will let the endpoint work.
#[derive(Debug)]
pub(crate) struct Attended(Arc<Rdm>);

impl Attended {
    pub(crate) fn new(endpoint: Arc<Rdm>) -> Attended {
        endpoint.attending.fetch_add(1, Ordering::Relaxed);
        Attended(endpoint)
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        self.0.attending.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Rdm {
    pub(crate) fn new(mut endpoint: Endpoint, place: &Place, caps: Caps) -> Result<Rdm, FiError> {
        let names = Names::new(&endpoint, place)?;
        let process = endpoint.process();
        if let (Kind::Datagram, Some(worker)) = (caps.kind, endpoint.worker_mut()) {
            // Messages to it would wait for receives that it never posts.
            let closed = worker.fep_mut().receive_only_datagrams(process);
            closed.map_err(|error| FiError::from(&weft::Error::from(error)))?;
        }
        let local = names.own();
        // Datagrams wait for nothing, and nothing is asked of peers with them.
        let mut has_notes = false;
        let (backlog, carrier) = match caps.kind {
            Kind::Rdm => {
                has_notes = notes::expose(&mut endpoint)?;
                let carrier = Carrier::new(&mut endpoint)?;
                let bytes = carrier.as_ref().map_or(0, |carrier| carrier.bytes);
                (Backlog::new(&mut endpoint, bytes)?, carrier)
            }
            Kind::Datagram => (Backlog::default(), None),
        };
        let connections = Connections::of_messages(&endpoint);
        let mut state = State::new(Some(endpoint));
        if carrier.is_none() {
            state.pending = Pending::without_a_server();
        }
        state.peers.connections = connections;
        state.stand_ins.by_notes = has_notes;
        (state.peers.names, state.backlog, state.carrier) = (Some(names), backlog, carrier);
        let (state, visits, attending) = (Mutex::new(state), AtomicU64::new(0), AtomicUsize::new(0));
        Ok(Rdm { caps, local, state, visits, attending })
    }

    /// One that was closed.
    #[cfg(test)]
    pub(crate) fn closed() -> Arc<Rdm> {
        let (caps, local) = (Caps::of(Kind::Rdm, 0), SocketAddr::from(([127, 0, 0, 1], 1)));
        let state = Mutex::new(State::new(None));
        Arc::new(Rdm { caps, local, state, visits: AtomicU64::new(0), attending: AtomicUsize::new(0) })
    }

    /// Whether peers may access the memory of its domain.
    pub(crate) fn is_target(&self) -> bool {
        self.caps.is_target()
    }

    /// Whether counters of what peers do with registered memory can be bound to it.
    pub(crate) fn counts_peers(&self) -> bool {
        self.caps.counts_peers
    }

    /// The most bytes of a datagram; 0 after the endpoint was closed.
    pub(crate) fn longest_datagram(&self) -> Result<usize, FiError> {
        let state = lock(&self.state)?;
        Ok(state.endpoint.as_ref().map_or(0, Endpoint::longest_datagram) as usize)
    }

    /// Where peers reach it.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Takes what has ended by a post, which wakes those who sleep until something does, and lets the endpoint work unless
    /// the packets may wait (`later`). It always works if the post was refused for want of room: only then is there room
    /// for an application that does nothing but repeat the call.
    fn follow(&self, state: &mut State, posted: Result<(), FiError>, later: bool) -> Result<(), FiError> {
        let followed = match posted {
            Ok(()) if later => state.take_ended(self.caps.names_source),
            Ok(()) | Err(FiError::AGAIN) => {
                self.visits.fetch_add(1, Ordering::Relaxed);
                state.work(self.caps.names_source)
            }
            Err(_) => Ok(()),
        };
        self.rearm(state);
        // An operation that was posted is under way, whatever happened to others.
        posted.or_else(|error| followed.and(Err(error)))
    }

    /// Arms the endpoint again for threads that sleep: this call has looked for what arrives, after which nothing would wake them,
    /// or there are packets to send, for which they would sleep too long.
    fn rearm(&self, state: &mut State) {
        for _ in 0..REARMS {
            let Some(endpoint) = &mut state.endpoint else { return };
            if self.attending.load(Ordering::Relaxed) == 0 {
                return;
            }
            let has_packets = endpoint.worker().is_some_and(|worker| worker.fep().wants_to_transmit());
            if endpoint.is_armed() && !has_packets {
                return;
            }
            // If the endpoint cannot work any more, its descriptor is readable, which wakes the threads that sleep.
            if !matches!(endpoint.arm(), Ok(false)) || state.work(self.caps.names_source).is_err() {
                return;
            }
        }
    }

    /// Asks for operations with this context to be cancelled: the first that is under way and can be.
    ///
    /// # Errors
    /// There is none; or [`FiError::AGAIN`] if a server has not come to earlier calls.
    pub(crate) fn cancel(&self, context: usize) -> Result<(), FiError> {
        let mut state = lock(&self.state)?;
        let cancelled = state.cancel(context);
        self.follow(&mut state, cancelled, false)
    }

    /// Operations that could be posted now: messages and receives. There may be more, which depends on the peer of a message. Posts are
    /// refused while the queue of their entries is full, and where there is none.
    pub(crate) fn left(&self) -> Result<(usize, usize), FiError> {
        let state = lock(&self.state)?;
        let Bindings { transmit, receive, .. } = &state.bindings;
        let room = |binding: &Option<Binding>| binding.as_ref().map_or(Ok(0), |binding| binding.queue.room());
        let sends = DEPTH.saturating_sub(state.accesses());
        let receives = self.caps.kind.receives().saturating_sub(state.receives);
        Ok((sends.min(room(transmit)?), receives.min(room(receive)?)))
    }

    /// Lets the endpoint work, and takes what has ended.
    pub(crate) fn progress(&self) -> Result<(), FiError> {
        self.visits.fetch_add(1, Ordering::Relaxed);
        let mut state = lock(&self.state)?;
        let before = state.ended;
        let worked = state.work(self.caps.names_source);
        // A caller that has found nothing mostly looks again at once; otherwise the endpoint's own thread sees to those who sleep.
        if state.ended != before {
            self.rearm(&mut state);
        }
        worked
    }

    /// As [`Rdm::progress`], and prepares for a sleep on the descriptor. Returns whether the caller may sleep.
    pub(crate) fn arm(&self) -> Result<bool, FiError> {
        self.visits.fetch_add(1, Ordering::Relaxed);
        self.keep()
    }

    /// What the endpoint's own thread does while the application is away. Returns whether it may sleep on the descriptor.
    pub(crate) fn keep(&self) -> Result<bool, FiError> {
        let mut state = lock(&self.state)?;
        state.work(self.caps.names_source)?;
        match &mut state.endpoint {
            Some(endpoint) => endpoint.arm().map_err(|error| FiError::from(&error)),
            None => Ok(true),
        }
    }

    /// Whether a receive, a message or a cancel waits that nothing but [`Rdm::keep`], called often, goes on with.
    pub(crate) fn looks(&self) -> Result<bool, FiError> {
        let state = lock(&self.state)?;
        Ok(state.backlog.looks() || state.is_refused_some() || !state.cancels.is_empty())
    }

    /// How often the application has let the endpoint work, and whether it sleeps until there is more to do.
    pub(crate) fn attention(&self) -> (u64, bool) {
        (self.visits.load(Ordering::Relaxed), self.attending.load(Ordering::Relaxed) > 0)
    }

    /// Whether a thread that sleeps on the descriptor is woken when the endpoint has something to do.
    pub(crate) fn is_armed(&self) -> Result<bool, FiError> {
        Ok(lock(&self.state)?.endpoint.as_ref().is_none_or(Endpoint::is_armed))
    }

    /// Uses the descriptor that is readable when the endpoint has something to do, after [`Rdm::arm`].
    pub(crate) fn with_descriptor(
        &self,
        with: impl FnOnce(BorrowedFd<'_>) -> Result<(), FiError>,
    ) -> Result<(), FiError> {
        match &lock(&self.state)?.endpoint {
            Some(endpoint) => with(endpoint.as_fd()),
            None => Ok(()),
        }
    }

    /// Ends the endpoint: what was sent is delivered, and peers get their answers, if that takes no longer than a second.
    /// Operations end without an entry, as libfabric has it, and uncounted. Peers lose access to the memory of its domain.
    pub(crate) fn close(&self, memories: &Memories) -> Result<(), FiError> {
        let begin = Instant::now();
        let mut state = lock(&self.state)?;
        let addresses = state.bindings.addresses.take();
        state.bindings = Bindings { addresses, ..Bindings::default() };
        // There is no other time for notices that have failed.
        state.repeat_notices();
        state.repeat_notes();
        drop(state);
        let left = memories.leave(self);
        // What waits for memory was sent as well, and accesses are done in pieces.
        while self.delivers_waiting()? && begin.elapsed() < LINGER {
            std::thread::sleep(Duration::from_micros(100));
        }
        let endpoint = lock(&self.state)?.endpoint.take();
        if let Some(endpoint) = endpoint {
            // Peers that do not answer are no reason to stay.
            let _ = endpoint.shutdown(LINGER.saturating_sub(begin.elapsed()));
        }
        *lock(&self.state)? = State::new(None);
        left
    }

    /// Lets the endpoint work if messages wait for memory or to be fetched, or accesses for their pieces. Returns whether some still do.
    fn delivers_waiting(&self) -> Result<bool, FiError> {
        let mut state = lock(&self.state)?;
        let waits = |state: &State| {
            state.backlog.has_sends()
                || state.carries()
                || state.stand_ins.are_waiting()
                || state.notes.are_waiting()
        };
        Ok(waits(&state) && state.work(self.caps.names_source).is_ok() && waits(&state))
    }
}

impl State {
    fn new(endpoint: Option<Endpoint>) -> State {
        State {
            endpoint,
            bindings: Bindings::default(),
            enabled: false,
            operations: Slab::default(),
            sends: 0,
            receives: 0,
            ended: 0,
            peers: Peers::default(),
            claims: HashMap::new(),
            cancels: BTreeSet::new(),
            least: LEAST,
            questions: 0,
            expected_announcements: 0,
            refuses_announcements: false,
            expected_many: None,
            backlog: Backlog::default(),
            carrier: None,
            stand_ins: StandIns::default(),
            budgets: Budgets::default(),
            takings: Takings::default(),
            pending: Pending::default(),
            carried_accesses: Pending::of_accesses(),
            notes: Notes::default(),
            eager: Eager::default(),
        }
    }

    /// Accesses that are under way, and messages unless they are through a server.
    fn accesses(&self) -> usize {
        self.sends.saturating_sub(self.carrier.as_ref().map_or(0, |_| self.pending.total()))
    }

    fn cancel(&mut self, context: usize) -> Result<(), FiError> {
        let State { endpoint, operations, .. } = self;
        let endpoint = endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        let is_it = |operation: &Operation| operation.is_named(context);
        let can_be = |operation: &Operation| operation.stand_in.is_none() && operation.fetched.is_none();
        let best = operations.position(|operation| is_it(operation) && can_be(operation));
        let number = best.or_else(|| operations.position(is_it)).ok_or(FiError::NO_ENTRY)?;
        let operation = operations.get_mut(number).ok_or(FiError::NO_ENTRY)?;
        if !can_be(operation) {
            // The receiver may be fetching the message, which no other receive would get: it is too late.
            return Ok(());
        }
        if let Some(id) = operation.id {
            return match endpoint.cancel(id).map_err(|error| FiError::from(&error)) {
                // Programs take any error for an operation that goes on.
                Err(FiError::AGAIN) => {
                    self.cancels.insert(id);
                    Ok(())
                }
                cancelled => cancelled,
            };
        }
        if self.cancel_access(number)? {
            return Ok(());
        }
        match self.cancel_waiting(number) {
            // It does not wait: it is a look that a server makes, and ends as if nobody had cancelled it.
            Err(FiError::NO_ENTRY) => Ok(()),
            cancelled => cancelled,
        }
    }

    /// Cancels what could not be cancelled before. What has ended meanwhile, or has begun, stays as it is.
    fn repeat_cancels(&mut self) {
        while let (Some(endpoint), Some(id)) = (&mut self.endpoint, self.cancels.first())
            && endpoint.cancel(*id).map_err(|error| FiError::from(&error)) != Err(FiError::AGAIN)
        {
            self.cancels.pop_first();
        }
    }

    /// Takes what has ended already.
    fn take_ended(&mut self, names_source: bool) -> Result<(), FiError> {
        while let Some(completion) = self.endpoint.as_mut().and_then(Endpoint::next_completion) {
            self.end(completion, names_source)?;
        }
        Ok(())
    }

    fn work(&mut self, names_source: bool) -> Result<(), FiError> {
        self.meet()?;
        if self.refuses_announcements {
            self.allow_announcements()?;
        }
        if self.expected_many.is_some() {
            self.allow_many()?;
        }
        for _ in 0..BATCH {
            let Some(endpoint) = &mut self.endpoint else { return Ok(()) };
            match endpoint.poll() {
                Ok(Some(completion)) => self.end(completion, names_source)?,
                Ok(None) => break,
                Err(error) => {
                    let error = FiError::from(&error);
                    self.bindings.report_end(error)?;
                    self.fail_waiting(error)?;
                    self.carry_on(names_source)?;
                    return Err(error);
                }
            }
        }
        if self.expected_many.is_some() {
            // So many may have ended just now that receives are held, and one whose messages have no entries wakes nobody.
            self.allow_many()?;
        }
        self.count_accesses()?;
        self.repeat_cancels();
        if self.is_refused_some() || self.has_given_up() {
            self.reconnect()?;
        }
        self.resume()?;
        self.carry_on(names_source)
    }

    fn end(&mut self, completion: Completion, names_source: bool) -> Result<(), FiError> {
        self.ended = self.ended.wrapping_add(1);
        let completion = match self.carrier {
            None => completion,
            Some(_) => match self.end_inner(completion, names_source)? {
                Some(completion) => completion,
                None => return Ok(()),
            },
        };
        match completion {
            Completion::Sent { context, buffer, result, .. } => {
                self.end_send(context as usize, buffer, result)
            }
            received @ Completion::Received { .. } => self.end_receive(received, names_source),
            Completion::Peeked { context, message, claim, result, .. } => {
                let found = result.map(|()| message).map_err(|error| FiError::from(&error));
                match context {
                    LOOK => self.looked(found, claim, names_source),
                    number => self.end_peek(number as usize, found, claim, names_source),
                }
            }
            Completion::Connected { connection, .. } => {
                self.peers.connections.connected(connection);
                self.peers.beside.connected(connection);
                self.peers.accesses.connected(connection);
                Ok(())
            }
            Completion::Closed { connection, result, .. } => {
                self.peers.connections.close(connection, &result);
                self.peers.beside.close(connection, &result);
                self.peers.accesses.close(connection, &result);
                if let Err(error) = result {
                    crate::log::info(&format!("a connection was closed: {error}"));
                }
                Ok(())
            }
            other => self.end_access(other, names_source),
        }
    }
}
