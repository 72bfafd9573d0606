//! A reliable datagram endpoint: libfabric's operations over a [`weft::Endpoint`].
//!
//! There is one connection for each peer, so that its messages meet receives in the order in which they were sent
//! (FI_ORDER_SAS). It is opened by the first message, and again after it was closed.

mod connections;
mod remote;
mod waiting;
mod watch;

use self::connections::{Connections, Returned};
pub(crate) use self::remote::{Access, AtomicCall, What};
pub(crate) use self::waiting::Peek;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use weft::core::wire::ses::ReturnCode;
use weft::{
    Completion, Endpoint, Error, MAX_COPY, Matching, OperationId, OwnedBytes, ReceiveBuffer, ReceiveError,
    ReceiveOptions, SendBuffer, SendError, SendOptions, Source,
};

use self::waiting::Claimed;
use crate::abi::{AppBytes, AppRoom};
use crate::addresses::Addresses;
use crate::counter::Counter;
use crate::error::{FiError, lock};
use crate::place::{Names, Place};
use crate::queue::{Entry, Problem, Queue};
use crate::slab::Slab;
use crate::sys::{self, FI_ADDR_NOTAVAIL, FI_ADDR_UNSPEC, fi_addr_t};

/// The longest message that can be injected, bytes: that is copied at the call.
pub(crate) const INJECT_SIZE: usize = MAX_COPY;
/// Operations of one direction that may be under way.
pub(crate) const DEPTH: usize = 4096;
/// Completions that one call takes from the endpoint, so that it ends while messages keep arriving.
const BATCH: usize = 256;
/// Bytes that a receive for many messages has left at least while it goes on, unless the application sets it
/// (FI_OPT_MIN_MULTI_RECV).
const LEAST: NonZeroU32 = NonZeroU32::new(64).expect("not 0");
/// How long an endpoint that is closed may take to deliver what was sent, and to answer its peers.
const LINGER: Duration = Duration::from_secs(1);
/// The bit of the header data that says that the low 32 bits are the sender's.
const HAS_DATA: u64 = 1 << 32;

/// Where the ends of operations of one direction go.
#[derive(Clone, Debug)]
pub(crate) struct Binding {
    pub(crate) queue: Arc<Queue>,
    /// Only operations that ask for it have an entry, and those that fail.
    pub(crate) selective: bool,
}

/// A message to send.
pub(crate) struct Outgoing {
    pub(crate) bytes: OutgoingBytes,
    pub(crate) to: fi_addr_t,
    pub(crate) tag: Option<u64>,
    pub(crate) data: Option<u64>,
    pub(crate) context: usize,
    pub(crate) wanted: Wanted,
    /// More will follow at once: nothing has to leave yet.
    pub(crate) more: bool,
}

/// The bytes of a message.
pub(crate) enum OutgoingBytes {
    /// To be sent from where they are.
    Lent(AppBytes),
    /// To be copied at the call.
    Injected(AppBytes),
    /// Several pieces, to be put together at the call.
    Gathered(Vec<AppBytes>),
}

/// A receive to post.
pub(crate) struct Incoming {
    pub(crate) room: Room,
    pub(crate) from: fi_addr_t,
    pub(crate) matching: Matching,
    pub(crate) context: usize,
    pub(crate) wanted: Wanted,
    pub(crate) which: Which,
}

/// Where a message is received.
pub(crate) enum Room {
    One(AppRoom),
    /// One piece after the other.
    Several(Vec<AppRoom>),
}

/// Which messages a receive gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// The first that matches.
    First,
    /// One after the other, until too little room is left.
    Many,
    /// The one that was claimed with the same context.
    Claimed,
}

/// Which operations have an entry in their queue when they have succeeded. Those that fail always have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// All, unless the queue is bound for selective completion.
    AsBound,
    Always,
    Never,
}

impl Wanted {
    fn is_reported(self, selective: bool) -> bool {
        match self {
            Wanted::AsBound => !selective,
            Wanted::Always => true,
            Wanted::Never => false,
        }
    }
}

/// An operation that is under way.
#[derive(Debug, Default)]
struct Operation {
    id: Option<OperationId>,
    context: usize,
    flags: u64,
    buf: usize,
    /// The pieces of a receive that has more than one.
    pieces: Vec<Piece>,
    reported: bool,
    /// Whether it receives many messages.
    many: bool,
    /// How a message is sent, and to whom, should it come back unsent.
    sending: Option<(Source, SendOptions)>,
    /// The only peer whose messages a receive takes.
    from: Option<Source>,
    /// Why a receive that is being cancelled is: its peer is gone.
    given_up: Option<FiError>,
    /// It is no operation of the application's, but asks whether this peer is there.
    asks: Option<Source>,
}

/// A piece of an application's memory that a message is copied to when it is complete.
struct Piece(AppRoom);

impl std::fmt::Debug for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Piece({} bytes)", self.0.as_ref().len())
    }
}

/// What the application binds before it enables an endpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bindings {
    pub(crate) transmit: Option<Binding>,
    pub(crate) receive: Option<Binding>,
    /// Counts messages that were sent.
    pub(crate) sent: Option<Arc<Counter>>,
    /// Counts messages that were received.
    pub(crate) received: Option<Arc<Counter>>,
    /// Counts reads of remote memory, and fetching atomic operations.
    pub(crate) read: Option<Arc<Counter>>,
    /// Counts writes to remote memory, and other atomic operations.
    pub(crate) written: Option<Arc<Counter>>,
    pub(crate) addresses: Option<Arc<Addresses>>,
}

/// What an endpoint was opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caps {
    sends: bool,
    receives: bool,
    /// Receives name their sender.
    directed: bool,
    /// Entries name the sender.
    names_source: bool,
}

impl Caps {
    /// Those of libfabric's bits. Without a direction they mean both.
    pub(crate) fn of(bits: u64) -> Caps {
        let has = |bit| bits & bit != 0;
        let both = !has(sys::FI_SEND | sys::FI_RECV);
        Caps {
            sends: both || has(sys::FI_SEND),
            receives: both || has(sys::FI_RECV),
            directed: has(sys::FI_DIRECTED_RECV),
            names_source: has(sys::FI_SOURCE),
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
    peers: Peers,
    /// Messages that were claimed, by the contexts of the calls that did.
    claims: HashMap<usize, Claimed>,
    /// Bytes that a receive for many messages has left at least while it goes on.
    least: NonZeroU32,
    /// Questions whether peers are there that are under way.
    questions: usize,
}

/// What is known of the peers.
#[derive(Debug, Default)]
struct Peers {
    /// The endpoint's own name, and what is known of others; none after the endpoint was closed.
    names: Option<Names>,
    /// The version of the address vector that the following is about.
    version: u64,
    by_number: HashMap<fi_addr_t, Source>,
    /// The numbers of peers, or that they have none.
    numbers: HashMap<Source, fi_addr_t>,
    connections: Connections,
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
    pub(crate) fn new(endpoint: Endpoint, place: &Place, caps: Caps) -> Result<Rdm, FiError> {
        let names = Names::new(&endpoint, place)?;
        let local = names.own();
        let mut state = State::new(Some(endpoint));
        state.peers.names = Some(names);
        let (state, visits, attending) = (Mutex::new(state), AtomicU64::new(0), AtomicUsize::new(0));
        Ok(Rdm { caps, local, state, visits, attending })
    }

    /// Where peers reach it.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Changes what is bound.
    ///
    /// # Errors
    /// The endpoint is enabled, or `bind` says so.
    pub(crate) fn bind(
        &self,
        bind: impl FnOnce(&mut Bindings) -> Result<(), FiError>,
    ) -> Result<(), FiError> {
        let mut state = lock(&self.state)?;
        if state.enabled {
            return Err(FiError::BAD_STATE);
        }
        bind(&mut state.bindings)
    }

    /// The queues and counters that are bound do not know the endpoint from here on.
    pub(crate) fn detach(self: &Arc<Rdm>) -> Result<(), FiError> {
        let Bindings { transmit, receive, sent, received, read, written, .. } =
            lock(&self.state)?.bindings.clone();
        for binding in [transmit, receive].into_iter().flatten() {
            binding.queue.endpoints().detach(self)?;
        }
        for counter in [sent, received, read, written].into_iter().flatten() {
            counter.endpoints().detach(self)?;
        }
        Ok(())
    }

    /// # Errors
    /// It lacks an address vector, or a queue for a direction that it was opened for.
    pub(crate) fn enable(&self) -> Result<(), FiError> {
        let mut state = lock(&self.state)?;
        let Bindings { transmit, receive, addresses, .. } = &state.bindings;
        if addresses.is_none() {
            return Err(FiError::NO_AV);
        }
        if self.caps.sends && transmit.is_none() || self.caps.receives && receive.is_none() {
            return Err(FiError::NO_CQ);
        }
        state.enabled = true;
        Ok(())
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`FiError::AGAIN`] if there is no room for it now.
    pub(crate) fn send(&self, message: Outgoing) -> Result<(), FiError> {
        let more = message.more;
        let mut state = lock(&self.state)?;
        let posted = state.send(message);
        self.follow(&mut state, posted, more)
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// [`FiError::AGAIN`] if there is no room for it now.
    pub(crate) fn receive(&self, receive: Incoming) -> Result<(), FiError> {
        let mut state = lock(&self.state)?;
        let posted = state.receive(receive, self.caps.directed);
        self.follow(&mut state, posted, true)
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
            Err(error) => return Err(error),
        };
        // An operation that was posted is under way, whatever happened to others.
        posted.or_else(|error| followed.and(Err(error)))
    }

    /// Asks for operations with this context to be cancelled: the first that is under way.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn cancel(&self, context: usize) -> Result<(), FiError> {
        let mut state = lock(&self.state)?;
        let State { endpoint, operations, .. } = &mut *state;
        let endpoint = endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        let id = operations
            .iter()
            .find(|operation| operation.context == context && operation.asks.is_none())
            .and_then(|operation| operation.id);
        endpoint.cancel(id.ok_or(FiError::NO_ENTRY)?).map_err(|error| FiError::from(&error))?;
        state.work(self.caps.names_source)
    }

    /// Operations that could be posted now: messages and receives.
    pub(crate) fn left(&self) -> Result<(usize, usize), FiError> {
        let state = lock(&self.state)?;
        Ok((DEPTH.saturating_sub(state.sends), DEPTH.saturating_sub(state.receives)))
    }

    /// Lets the endpoint work, and takes what has ended.
    pub(crate) fn progress(&self) -> Result<(), FiError> {
        self.visits.fetch_add(1, Ordering::Relaxed);
        lock(&self.state)?.work(self.caps.names_source)
    }

    /// As [`Rdm::progress`], and prepares for a sleep on the descriptor. Returns whether the caller may sleep.
    pub(crate) fn arm(&self) -> Result<bool, FiError> {
        self.progress()?;
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

    /// How often the application has let the endpoint work, and whether it sleeps until there is more to do.
    pub(crate) fn attention(&self) -> (u64, bool) {
        (self.visits.load(Ordering::Relaxed), self.attending.load(Ordering::Relaxed) > 0)
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
    /// Receives end without an entry, as libfabric has it.
    pub(crate) fn close(&self) -> Result<(), FiError> {
        let endpoint = lock(&self.state)?.endpoint.take();
        if let Some(endpoint) = endpoint {
            // Peers that do not answer are no reason to stay.
            let _ = endpoint.shutdown(LINGER);
        }
        *lock(&self.state)? = State::new(None);
        Ok(())
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
            peers: Peers::default(),
            claims: HashMap::new(),
            least: LEAST,
            questions: 0,
        }
    }

    fn send(&mut self, message: Outgoing) -> Result<(), FiError> {
        let Outgoing { bytes, to, tag, data, context, wanted, .. } = message;
        let binding = self.ready(|bindings| &bindings.transmit)?;
        if self.sends >= DEPTH || !binding.queue.has_room()? {
            return Err(FiError::AGAIN);
        }
        let kind = if tag.is_some() { sys::FI_TAGGED } else { sys::FI_MSG };
        let (flags, reported) = (kind | sys::FI_SEND, wanted.is_reported(binding.selective));
        let operation = Operation { context, flags, reported, ..Operation::default() };
        let peer = self.peer(to)?;
        if self.peers.connections.is_returning(peer) {
            return Err(FiError::AGAIN);
        }
        let number = self.operations.insert(operation);
        let header_data = data.map_or(0, |data| HAS_DATA | data & u64::from(u32::MAX));
        let mut options = SendOptions::default().header_data(header_data).context(number as u64);
        options.tag = tag;
        match self.post(peer, bytes, options) {
            Ok(id) => {
                self.peers.connections.begin(peer);
                if let Some(operation) = self.operations.get_mut(number) {
                    (operation.id, operation.sending) = (Some(id), Some((peer, options)));
                }
                self.sends += 1;
                Ok(())
            }
            Err(error) => {
                self.operations.remove(number);
                Err(error)
            }
        }
    }

    /// Posts the bytes on the connection to `peer`, or on a new one if that has been closed.
    fn post(
        &mut self,
        peer: Source,
        bytes: OutgoingBytes,
        options: SendOptions,
    ) -> Result<OperationId, FiError> {
        let endpoint = self.endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        let connections = &mut self.peers.connections;
        let lent: Bytes = match bytes {
            OutgoingBytes::Injected(bytes) if endpoint.worker().is_some() => {
                return connections.post(endpoint, peer, |endpoint, connection| {
                    endpoint.send_copy(connection, bytes.as_ref(), options)
                });
            }
            // A server may give it back unsent.
            OutgoingBytes::Injected(bytes) => Bytes::copy_from_slice(bytes.as_ref()),
            OutgoingBytes::Lent(bytes) => Bytes::from_owner(bytes),
            OutgoingBytes::Gathered(pieces) => {
                pieces.iter().map(AsRef::as_ref).collect::<Vec<&[u8]>>().concat().into()
            }
        };
        connections.post(endpoint, peer, |endpoint, connection| {
            endpoint.send_with(connection, lent.clone(), options).map_err(|refused| refused.error)
        })
    }

    /// Posts a message again that came back unsent, since its connection had been closed.
    fn post_again(&mut self, number: usize, buffer: SendBuffer) -> Result<(), FiError> {
        let State { endpoint, peers, operations, .. } = self;
        let endpoint = endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        let operation = operations.get_mut(number).ok_or(FiError::OTHER)?;
        let (Some((peer, options)), SendBuffer::Bytes(bytes)) = (operation.sending, buffer) else {
            return Err(FiError::OTHER);
        };
        let id = peers.connections.post(endpoint, peer, |endpoint, connection| {
            endpoint.send_with(connection, bytes.clone(), options).map_err(|refused| refused.error)
        })?;
        peers.connections.begin(peer);
        operation.id = Some(id);
        Ok(())
    }

    fn receive(&mut self, receive: Incoming, directed: bool) -> Result<(), FiError> {
        let Incoming { room, from, matching, context, wanted, which } = receive;
        let binding = self.ready(|bindings| &bindings.receive)?;
        if self.receives >= DEPTH || !binding.queue.has_room()? {
            return Err(FiError::AGAIN);
        }
        let kind = if matching == Matching::Untagged { sys::FI_MSG } else { sys::FI_TAGGED };
        let (buf, pieces, buffer) = match room {
            Room::One(room) => (room.address(), Vec::new(), OwnedBytes::divisible(room)),
            Room::Several(rooms) => {
                let len = rooms.iter().map(|room| room.as_ref().len()).sum();
                let buf = rooms.first().map_or(0, AppRoom::address);
                (buf, rooms.into_iter().map(Piece).collect(), OwnedBytes::new(vec![0; len]))
            }
        };
        let mut options = ReceiveOptions::default();
        options.matching = matching;
        let from = if directed && from != FI_ADDR_UNSPEC { Some(self.peer(from)?) } else { None };
        if let Some(from) = from {
            options = options.from(from);
        }
        let reported = wanted.is_reported(binding.selective);
        let flags = kind | sys::FI_RECV;
        let claim = match which {
            Which::Claimed => Some(self.claims.get(&context).ok_or(FiError::NO_ENTRY)?.claim),
            Which::First | Which::Many => None,
        };
        let many = which == Which::Many;
        let operation =
            Operation { context, flags, buf, pieces, reported, many, from, ..Operation::default() };
        let number = self.operations.insert(operation);
        let endpoint = self.endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        let options = options.context(number as u64);
        let posted = match claim {
            Some(claim) => endpoint.receive_claimed(claim, buffer, number as u64),
            None if many => endpoint.receive_many(buffer, self.least, options),
            None => endpoint.receive_with(buffer, options),
        };
        match posted {
            Ok(id) => {
                if let Some(operation) = self.operations.get_mut(number) {
                    operation.id = Some(id);
                }
                self.receives += 1;
            }
            Err(refused) => {
                let operation = self.operations.remove(number);
                let error = FiError::from(&refused.error);
                if claim.is_none() || error == FiError::AGAIN {
                    return Err(error);
                }
                // Its sender was lost in the middle of the message: the receive ends at once.
                let problem = Some(Problem { error, beyond: 0 });
                let entry = operation.map(|operation| operation.entry(problem)).ok_or(FiError::OTHER)?;
                let Bindings { receive, received, .. } = &self.bindings;
                report(receive, received, reported, entry)?;
            }
        }
        if claim.is_some() {
            self.claims.remove(&context);
        }
        Ok(())
    }

    /// The binding of an endpoint that is enabled.
    fn ready(&self, of: impl FnOnce(&Bindings) -> &Option<Binding>) -> Result<Binding, FiError> {
        if !self.enabled {
            return Err(FiError::BAD_STATE);
        }
        of(&self.bindings).clone().ok_or(FiError::NO_CQ)
    }

    /// The peer with this number.
    fn peer(&mut self, number: fi_addr_t) -> Result<Source, FiError> {
        let addresses = self.bindings.addresses.as_ref().ok_or(FiError::NO_AV)?;
        let endpoint = self.endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        self.peers.refresh(addresses);
        if let Some(peer) = self.peers.by_number.get(&number) {
            return Ok(*peer);
        }
        let name = addresses.get(number)?.ok_or(FiError::INVALID)?;
        let names = self.peers.names.as_mut().ok_or(FiError::BAD_STATE)?;
        let peer = names.peer(endpoint, name)?;
        self.peers.by_number.insert(number, peer);
        Ok(peer)
    }

    /// Lets packets of the peers in the address vector in, if there are new ones.
    fn meet(&mut self) -> Result<(), FiError> {
        let State { endpoint: Some(endpoint), bindings, peers, .. } = self else { return Ok(()) };
        match (&mut peers.names, &bindings.addresses) {
            (Some(names), Some(addresses)) => names.meet(endpoint, addresses),
            _ => Ok(()),
        }
    }

    /// The number of a sender.
    fn number_of(&mut self, source: Source) -> Result<fi_addr_t, FiError> {
        let addresses = self.bindings.addresses.as_ref().ok_or(FiError::NO_AV)?;
        self.peers.refresh(addresses);
        if let Some(number) = self.peers.numbers.get(&source) {
            return Ok(*number);
        }
        let (Some(endpoint), Some(names)) = (&mut self.endpoint, &mut self.peers.names) else {
            return Err(FiError::BAD_STATE);
        };
        // Its host may be one that was inserted just now.
        names.meet(endpoint, addresses)?;
        let number = match names.of(endpoint, source) {
            Some(name) => addresses.find(&name)?.unwrap_or(FI_ADDR_NOTAVAIL),
            None => FI_ADDR_NOTAVAIL,
        };
        self.peers.numbers.insert(source, number);
        Ok(number)
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
        for _ in 0..BATCH {
            let Some(endpoint) = &mut self.endpoint else { return Ok(()) };
            match endpoint.poll() {
                Ok(Some(completion)) => self.end(completion, names_source)?,
                Ok(None) => return Ok(()),
                Err(error) => return Err(FiError::from(&error)),
            }
        }
        Ok(())
    }

    fn end(&mut self, completion: Completion, names_source: bool) -> Result<(), FiError> {
        match completion {
            Completion::Sent { context, buffer, mut result, .. } => {
                let number = context as usize;
                let sending = self.operations.get_mut(number).and_then(|operation| operation.sending);
                let returned = sending.and_then(|(peer, _)| self.peers.connections.end(peer, &result));
                let mut error = None;
                match returned {
                    Some(Returned::Again) => match self.post_again(number, buffer) {
                        Ok(()) => return Ok(()),
                        Err(why) => error = Some(why),
                    },
                    Some(Returned::Failed(why)) => result = Err(why),
                    None => {}
                }
                self.sends = self.sends.saturating_sub(1);
                let Some(operation) = self.operations.remove(number) else { return Ok(()) };
                let problem = match result {
                    // It has arrived, as far as its sender is concerned: the receiver has an error entry.
                    Ok(()) | Err(Error::Send(SendError::Answered(ReturnCode::TOO_LONG))) => None,
                    Err(why) => Some(error.unwrap_or_else(|| FiError::from(&why))),
                };
                let problem = problem.map(|error| Problem { error, beyond: 0 });
                let entry = operation.entry(problem);
                let Bindings { transmit, sent, .. } = &self.bindings;
                report(transmit, sent, operation.reported, entry)
            }
            Completion::Received {
                context, source, tag, header_data, len, mut buffer, more, result, ..
            } => {
                let number = context as usize;
                let Some(operation) = self.operations.get_mut(number) else { return Ok(()) };
                let room = buffer.len();
                operation.scatter(&mut buffer, len as usize);
                let problem = result.err().map(|error| match error {
                    Error::Receive(ReceiveError::Truncated { len, room }) => {
                        Problem { error: FiError::from(&error), beyond: (len - room) as usize }
                    }
                    _ => Problem { error: operation.given_up.unwrap_or(FiError::from(&error)), beyond: 0 },
                });
                let mut entry = operation.entry(problem);
                entry.len = (len as usize).min(room);
                let mut reported = operation.reported;
                if operation.many {
                    if let Some(bytes) = buffer.as_slice() {
                        entry.buf = bytes.as_ptr().addr();
                    }
                    if !more {
                        entry.flags |= sys::FI_MULTI_RECV;
                        // The application has to know that the buffer is its own again.
                        reported = true;
                    }
                }
                if !more {
                    self.operations.remove(number);
                    self.receives = self.receives.saturating_sub(1);
                }
                entry.take_envelope(tag, header_data);
                if let (true, Some(source)) = (names_source, source) {
                    entry.source = self.number_of(source)?;
                }
                let Bindings { receive, received, .. } = &self.bindings;
                report(receive, received, reported, entry)
            }
            Completion::Peeked { context, message, claim, result, .. } => {
                let found = result.map(|()| message).map_err(|error| FiError::from(&error));
                self.end_peek(context as usize, found, claim, names_source)
            }
            Completion::Closed { connection, result, .. } => {
                self.peers.connections.close(connection, &result);
                if let Err(error) = result {
                    crate::log::info(&format!("a connection was closed: {error}"));
                }
                Ok(())
            }
            other => self.end_access(other, names_source),
        }
    }
}

impl Entry {
    /// Notes the tag of a message and the sender's data, if it has any.
    fn take_envelope(&mut self, tag: Option<u64>, header_data: u64) {
        self.tag = tag.unwrap_or(0);
        if header_data & HAS_DATA != 0 {
            self.data = header_data & u64::from(u32::MAX);
            self.flags |= sys::FI_REMOTE_CQ_DATA;
        }
    }
}

impl Operation {
    fn entry(&self, problem: Option<Problem>) -> Entry {
        Entry {
            context: self.context,
            flags: self.flags,
            len: 0,
            buf: self.buf,
            data: 0,
            tag: 0,
            source: FI_ADDR_NOTAVAIL,
            problem,
        }
    }

    /// Copies the first `len` bytes to the pieces of a receive that has more than one.
    fn scatter(&mut self, buffer: &mut ReceiveBuffer, len: usize) {
        let Some(bytes) = buffer.as_slice() else { return };
        let mut rest = &bytes[..len.min(bytes.len())];
        for Piece(room) in &mut self.pieces {
            let room = room.as_mut();
            let (now, later) = rest.split_at(room.len().min(rest.len()));
            room[..now.len()].copy_from_slice(now);
            rest = later;
        }
    }
}

impl Peers {
    /// Forgets what the address vector says otherwise now.
    fn refresh(&mut self, addresses: &Addresses) {
        let version = addresses.version();
        if self.version != version {
            self.version = version;
            self.by_number.clear();
            self.numbers.clear();
        }
    }
}

/// An operation has ended: all are counted, and those that are `reported` or have failed get an entry.
fn report(
    binding: &Option<Binding>,
    counter: &Option<Arc<Counter>>,
    reported: bool,
    entry: Entry,
) -> Result<(), FiError> {
    if let Some(counter) = counter {
        counter.change(|counts| match entry.problem {
            None => counts.succeeded = counts.succeeded.wrapping_add(1),
            Some(_) => counts.failed = counts.failed.wrapping_add(1),
        })?;
    }
    match binding {
        Some(binding) if reported || entry.problem.is_some() => binding.queue.push(entry),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn endpoint() -> Rdm {
        let endpoint = Endpoint::builder("udp:127.0.0.1,shared=on").build().unwrap();
        let rdm = Rdm::new(endpoint, &Place::OwnPorts, Caps::of(0)).unwrap();
        let binding = || Some(Binding { queue: Arc::new(Queue::new(4, false).unwrap()), selective: true });
        let addresses = Some(Arc::new(Addresses::default()));
        lock(&rdm.state).unwrap().bindings =
            Bindings { transmit: binding(), receive: binding(), addresses, ..Bindings::default() };
        rdm.enable().unwrap();
        rdm
    }

    /// No thread but the one that sends lets the endpoint work, and it does nothing but repeat what was refused. There is room
    /// for 256 messages of 4 KiB at a time.
    #[test]
    fn a_send_that_is_repeated_finds_room_by_itself() {
        let (a, b) = (endpoint(), endpoint());
        let to = lock(&a.state).unwrap().bindings.addresses.as_ref().unwrap().insert(b.local).unwrap();
        let bytes = [7u8; INJECT_SIZE];
        let (begin, mut refused) = (Instant::now(), 0);
        for _ in 0..1000 {
            let message = || Outgoing {
                // SAFETY: `bytes` outlives the message, and is not changed.
                bytes: OutgoingBytes::Injected(unsafe { AppBytes::new(bytes.as_ptr().cast(), bytes.len()) }),
                to,
                tag: None,
                data: None,
                context: 0,
                wanted: Wanted::Never,
                more: false,
            };
            while let Err(error) = a.send(message()) {
                assert_eq!(error, FiError::AGAIN);
                refused += 1;
                // The peer keeps messages for which there is no receive.
                b.progress().unwrap();
                assert!(begin.elapsed() < Duration::from_secs(60), "no room is given back");
            }
        }
        assert!(refused > 0, "there was room for all at once");
    }
}
