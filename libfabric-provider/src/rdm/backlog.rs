//! Operations that wait for memory of a server.
//!
//! A server sends messages from memory that it shares with its applications, and receives them into it. So that calls
//! return whatever the length of their messages, and no operation waits for memory that another one holds for ever, each
//! kind has a part of the memory:
//!
//! | part | for |
//! |---|---|
//! | up to an eighth | requests and answers ([`Carrier`](super::carried::Carrier)) |
//! | half of the rest | messages that are sent, a part of it for short ones only and for what stands for long ones; the others wait here, those to one peer in order |
//! | the other half | receives that were handed to the server, [`AT_THE_SERVER`] at most; the others wait here |
//! | a quarter, reserved | one message that waits to be sent, if the parts above have no piece that is long enough |
//! | a quarter, reserved | the first message that was claimed for a receive, likewise |

mod claimed;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use weft::{
    Endpoint, Found, Memory, MemorySlice, OwnedBytes, ReceiveBuffer, SendBuffer, SendOptions, Source, Split,
};

use self::claimed::Claimed;
use super::kinds::{Kind, Kinds};
use super::looks::{Filter, Look};
use super::stand_in::SHORT;
use super::takers::{Taker, TakerKind, Takers};
use super::{Bindings, DEPTH, State, report};
use crate::abi::{AppRoom, zeroed};
use crate::error::FiError;
use crate::queue::Problem;

/// The part of the memory that one message may have that is not fetched.
pub(crate) const PART_OF_ONE: u32 = 4;
/// How long the first message to a peer waits for memory, or for its budget, unless others to that get it, before something stands
/// for it: as long as these come back, it goes faster at once than it would be fetched.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);
/// Receives that the server has at most: they are operations of the session, as sends are.
pub(super) const AT_THE_SERVER: usize = DEPTH;
/// Those of them that only receives for many messages get, which cannot wait here.
pub(super) const FOR_MANY: usize = 64;
/// Bytes for as many stand-ins as there may be sends.
const SHORTS: u64 = 5 << 20;

#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// None for an endpoint that needs no memory but the application's.
    parts: Option<Parts>,
    /// Of the receives that the server has.
    kinds: Kinds,
    sends: BTreeMap<Source, Line>,
    /// What the server has of the messages to each peer.
    held: HashMap<Source, Held>,
    /// The peer that a message which had waited was sent to last.
    served: Option<Source>,
    /// Receives for which there is no memory, or no place at the server, and what may not overtake them, in the order of the calls.
    pub(super) takers: Takers,
    /// Messages that were claimed for receives, in order.
    pub(super) claimed: VecDeque<Claimed>,
    pub(super) look: Option<Look>,
    /// The place of the receive to look for next, or one before it.
    pub(super) next: u64,
    /// The number of the receive to look for before that, as its message is there.
    pub(super) due: Option<usize>,
    /// When the last round of looks has ended, unless something has ended since.
    pub(super) rests: Option<Instant>,
    /// Messages that the application has sent.
    orders: u64,
}

/// Who has a server's memory.
#[derive(Debug)]
struct Parts {
    /// Bytes of each reserve, and of the longest message.
    most: u32,
    /// Bytes of each of the parts for messages that are sent and for receives.
    part: u64,
    /// Of the part of messages that are sent, the bytes that only short ones get.
    short: u64,
    sends: u64,
    /// Messages that the server has.
    messages: usize,
    receives: u64,
    /// Bytes of receives for many messages, which may have both parts.
    many: u64,
    for_a_send: Reserve,
    for_a_claimed: Reserve,
}

/// Messages to one peer that the server has.
#[derive(Debug, Default)]
struct Held {
    bytes: u64,
    messages: usize,
}

/// Messages to one peer that wait.
#[derive(Debug, Default)]
struct Line {
    unsent: VecDeque<Unsent>,
    /// How many of the first have come back from the server unsent.
    returned: usize,
    /// Since when its first one waits.
    since: Option<Instant>,
}

/// Memory for one message; none while one has it.
#[derive(Debug)]
struct Reserve(Option<MemorySlice>);

/// A message that waits.
#[derive(Debug)]
pub(super) struct Unsent {
    pub(super) number: usize,
    pub(super) peer: Source,
    pub(super) buffer: SendBuffer,
    pub(super) options: SendOptions,
    /// Its place among all messages: the first is sent first.
    pub(super) order: u64,
}

/// Where the message of a receive belongs.
pub(super) enum Space {
    One(AppRoom),
    /// So many bytes in several pieces, which the operation knows.
    Several(usize),
}

impl std::fmt::Debug for Space {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Space({} bytes)", self.len())
    }
}

impl Space {
    pub(super) fn len(&self) -> usize {
        match self {
            Space::One(room) => room.as_ref().len(),
            Space::Several(len) => *len,
        }
    }

    /// All of it.
    ///
    /// # Errors
    /// [`FiError::NO_MEMORY`] if there is none to stand for several pieces.
    pub(super) fn whole(self) -> Result<OwnedBytes, FiError> {
        Ok(match self {
            Space::One(room) => OwnedBytes::divisible(room),
            Space::Several(len) => OwnedBytes::new(zeroed(len)?),
        })
    }

    /// The first `len` bytes.
    ///
    /// # Errors
    /// As of [`Space::whole`].
    fn beginning(self, len: usize) -> Result<OwnedBytes, FiError> {
        Ok(match self {
            Space::One(mut room) => OwnedBytes::new(room.split_to(len)),
            Space::Several(_) => OwnedBytes::new(zeroed(len)?),
        })
    }
}

/// The direction of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Out,
    In,
}

impl Parts {
    /// Divides the memory of `endpoint` into parts. `carried` bytes of it are taken by requests and answers already. All parts can be
    /// used up at the same time, unless what is left is fragmented.
    fn new(endpoint: &mut Endpoint, carried: u64) -> Result<Parts, FiError> {
        let memory = endpoint.memory();
        let size = memory.size() as u64;
        let most = (memory.size() / PART_OF_ONE as usize) as u32;
        let mut reserve =
            || memory.allocate(most).map(|slice| Reserve(Some(slice))).map_err(|error| FiError::from(&error));
        let (for_a_send, for_a_claimed) = (reserve()?, reserve()?);
        let part = size.saturating_sub(Memory::size_for(2, most) + carried) / 2;
        let short = SHORTS.min(part / 4);
        Ok(Parts {
            most,
            part,
            short,
            sends: 0,
            messages: 0,
            receives: 0,
            many: 0,
            for_a_send,
            for_a_claimed,
        })
    }

    /// Bytes of memory that `len` bytes take.
    fn taken(len: usize) -> u64 {
        if len == 0 { 0 } else { Memory::size_for(1, u32::try_from(len).unwrap_or(u32::MAX)) }
    }
}

impl Reserve {
    /// `len` bytes of it, unless somebody has it.
    fn take(&mut self, endpoint: &mut Endpoint, len: usize) -> Option<MemorySlice> {
        let slice = self.0.as_mut()?;
        endpoint.memory().set_len(slice, u32::try_from(len).ok()?).ok()?;
        self.0.take()
    }
}

impl Backlog {
    /// That of `endpoint`, of whose memory `carried` bytes are for requests and answers.
    ///
    /// # Errors
    /// Its memory cannot be divided.
    pub(super) fn new(endpoint: &mut Endpoint, carried: u64) -> Result<Backlog, FiError> {
        let is_served = endpoint.worker().is_none();
        let parts = if is_served { Some(Parts::new(endpoint, carried)?) } else { None };
        Ok(Backlog { parts, ..Backlog::default() })
    }

    /// Bytes of memory of both parts and both reserves.
    #[cfg(test)]
    pub(super) fn bytes_of_parts(&self) -> u64 {
        self.parts.as_ref().map_or(0, |parts| 2 * parts.part + Memory::size_for(2, parts.most))
    }

    /// How many kinds of receives the server has.
    #[cfg(test)]
    pub(super) fn kinds(&self) -> usize {
        self.kinds.len()
    }

    fn is_empty(&self) -> bool {
        !self.has_sends() && self.takers.is_empty() && self.claimed.is_empty() && self.look.is_none()
    }

    /// Whether messages wait to be sent.
    pub(super) fn has_sends(&self) -> bool {
        !self.sends.is_empty()
    }

    /// Whether something waits that nothing but looks, or time, ends.
    pub(super) fn looks(&self) -> bool {
        !self.takers.is_empty() || self.has_sends()
    }

    /// Whether messages for which there is no room now wait here.
    pub(super) fn keeps_sends(&self) -> bool {
        self.parts.is_some()
    }

    /// The longest message, if memory bounds it.
    pub(super) fn longest(&self) -> Option<usize> {
        self.parts.as_ref().map(|parts| parts.most as usize)
    }

    /// Whether messages to `peer` wait to be sent.
    pub(super) fn has_sends_to(&self, peer: Source) -> bool {
        self.sends.contains_key(&peer)
    }

    /// Whether the part of messages that are sent never has room for `len` bytes.
    pub(super) fn never_holds(&self, len: usize) -> bool {
        self.parts.as_ref().is_some_and(|parts| Parts::taken(len) > parts.part - parts.short)
    }

    /// Whether the part of messages that are sent has no room for `len` bytes.
    pub(super) fn is_full(&self, len: usize) -> bool {
        self.parts.as_ref().is_some_and(|parts| {
            let most = if len > SHORT { parts.part - parts.short } else { parts.part };
            parts.sends + Parts::taken(len) > most
        })
    }

    /// Whether the server has as much for `peer` as it leaves to all others, and no room for `len` bytes more: a peer may never take
    /// what it has, so that messages to others always have room.
    pub(super) fn is_over_share(&self, peer: Source, len: usize) -> bool {
        let (Some(parts), Some(held)) = (&self.parts, self.held.get(&peer)) else { return false };
        let taken = Parts::taken(len);
        held.messages >= DEPTH.saturating_sub(parts.messages)
            || held.bytes + taken > parts.part.saturating_sub(parts.sends + taken)
    }

    /// Whether a receive or a look has to wait, as what was called before it could take the same message.
    pub(super) fn is_behind(&self, filter: Filter) -> bool {
        self.takers.meet(filter)
    }

    /// Whether the server has as many receives as it may have before one more, which is for many messages or not.
    pub(super) fn has_all_receives(&self, many: bool) -> bool {
        let most = if many { AT_THE_SERVER } else { AT_THE_SERVER - FOR_MANY };
        self.parts.is_some() && self.kinds.total() >= most
    }

    /// The receive that waits before all others, unless a look is under way, which may find its message.
    fn first_receive(&self) -> Option<(usize, Filter, usize)> {
        let first = self.takers.first().filter(|first| self.look.is_none() && !first.is_cancelled())?;
        let TakerKind::Receive(space) = &first.kind else { return None };
        Some((first.number, first.filter, space.len()))
    }

    /// Whether the part of receives has no room for `len` bytes.
    fn has_full_receives(&self, len: usize) -> bool {
        self.parts.as_ref().is_some_and(|parts| parts.receives + Parts::taken(len) > parts.part)
    }

    /// A receive was posted. Returns its kind, if the server has it.
    pub(super) fn begin_kind(&mut self, filter: Filter) -> Option<Kind> {
        self.parts.as_ref()?;
        self.kinds.begin(filter.kind());
        Some(filter.kind())
    }

    /// It has ended.
    pub(super) fn end_kind(&mut self, kind: Option<Kind>) {
        if let Some(kind) = kind {
            self.kinds.end(kind);
            self.rests = None;
        }
    }

    /// A receive with so many bytes was posted. Returns how many it counts for.
    pub(super) fn begin_receive(&mut self, len: usize) -> Option<u64> {
        let parts = self.parts.as_mut()?;
        let taken = Parts::taken(len);
        parts.receives += taken;
        Some(taken)
    }

    /// A receive for many messages with so many bytes is to be posted. Returns how many it counts for.
    ///
    /// # Errors
    /// [`FiError::NO_MEMORY`] if these receives have so much memory that there will be none for this one before some of them have ended. A
    /// program that posts a number of them before it looks for messages would wait for ever.
    pub(super) fn begin_many(&mut self, len: usize) -> Result<Option<u64>, FiError> {
        let Some(parts) = &mut self.parts else { return Ok(None) };
        let (taken, most) = (Parts::taken(len), 2 * parts.part);
        if parts.many + taken > most {
            crate::log::warn(&format!(
                "receives for many messages have {} bytes of the server's memory, of {most} at most, and there is no room for {len} \
                 more: set FI_WEFT_MEMORY to more",
                parts.many
            ));
            return Err(FiError::NO_MEMORY);
        }
        parts.many += taken;
        Ok(Some(taken))
    }

    /// A receive has ended, which may have been one for many messages.
    pub(super) fn end_receive(&mut self, taken: Option<u64>, many: bool) {
        if let (Some(parts), Some(taken)) = (&mut self.parts, taken) {
            let of_its_kind = if many { &mut parts.many } else { &mut parts.receives };
            *of_its_kind -= taken;
            // There may be room for others.
            self.rests = None;
        }
    }

    /// A message with so many bytes of memory was posted. Returns how many it counts for.
    pub(super) fn begin_send(&mut self, peer: Source, len: usize) -> Option<u64> {
        let parts = self.parts.as_mut()?;
        let taken = Parts::taken(len);
        (parts.sends, parts.messages) = (parts.sends + taken, parts.messages + 1);
        let held = self.held.entry(peer).or_default();
        (held.bytes, held.messages) = (held.bytes + taken, held.messages + 1);
        Some(taken)
    }

    /// It has ended.
    pub(super) fn end_send(&mut self, peer: Source, taken: Option<u64>) {
        let (Some(parts), Some(taken)) = (&mut self.parts, taken) else { return };
        (parts.sends, parts.messages) = (parts.sends - taken, parts.messages - 1);
        if let Some(held) = self.held.get_mut(&peer) {
            (held.bytes, held.messages) = (held.bytes - taken, held.messages - 1);
            if held.messages == 0 {
                self.held.remove(&peer);
            }
        }
        self.rests = None;
    }

    /// Takes the reserve back from a message that was sent, if it had it.
    pub(super) fn take_sent(&mut self, buffer: SendBuffer) {
        if let (Some(parts), SendBuffer::Memory(slice)) = (&mut self.parts, buffer) {
            parts.for_a_send.0 = Some(slice);
        }
    }

    /// Takes the reserve back from a message that was received, if it had it.
    pub(super) fn take_received(&mut self, buffer: ReceiveBuffer) {
        if let (Some(parts), ReceiveBuffer::Memory(slice)) = (&mut self.parts, buffer) {
            parts.for_a_claimed.0 = Some(slice);
        }
    }

    /// The place of the next message that the application sends.
    pub(super) fn next_order(&mut self) -> u64 {
        self.orders += 1;
        self.orders
    }

    pub(super) fn defer_send(&mut self, unsent: Unsent) {
        let line = self.sends.entry(unsent.peer).or_default();
        line.since.get_or_insert_with(Instant::now);
        line.unsent.push_back(unsent);
    }

    /// Takes all messages to `peer` that wait.
    pub(super) fn take_line(&mut self, peer: Source) -> impl Iterator<Item = Unsent> + use<> {
        self.sends.remove(&peer).into_iter().flat_map(|line| line.unsent)
    }

    /// A message has come back unsent. It is sent before those that were to be sent after it. Returns one that cannot wait, as it
    /// has the reserve and there is no other memory for its bytes: this one, or one behind it.
    pub(super) fn defer_returned(&mut self, mut unsent: Unsent) -> Option<Unsent> {
        if self.free_reserve(&mut unsent).is_err() {
            return Some(unsent);
        }
        // One behind it may have the reserve.
        let is_lent = self.parts.as_ref().is_some_and(|parts| parts.for_a_send.0.is_none());
        let mut failed = None;
        if is_lent && let Some(mut line) = self.sends.remove(&unsent.peer) {
            failed = line.unsent.iter_mut().position(|waits| self.free_reserve(waits).is_err());
            self.sends.insert(unsent.peer, line);
        }
        let failed = failed.and_then(|at| self.take_unsent(unsent.peer, at));
        let line = self.sends.entry(unsent.peer).or_default();
        line.since.get_or_insert_with(Instant::now);
        // One that went ahead of others as a try comes back behind them, and is the first again.
        let at = line.unsent.partition_point(|waits| waits.order < unsent.order);
        line.unsent.insert(at, unsent);
        line.returned += 1;
        failed
    }

    /// Takes the reserve from a message that may wait for a connection, while others need it.
    ///
    /// # Errors
    /// [`FiError::NO_MEMORY`] if there is none for its bytes. It has the reserve still.
    fn free_reserve(&mut self, unsent: &mut Unsent) -> Result<(), FiError> {
        if let SendBuffer::Memory(slice) = &unsent.buffer {
            let mut bytes = zeroed(slice.len() as usize)?;
            slice.read(0, &mut bytes);
            self.take_sent(std::mem::replace(&mut unsent.buffer, bytes.into()));
        }
        Ok(())
    }

    /// Whether messages to `peer` that have come back unsent wait.
    pub(super) fn has_returned(&self, peer: Source) -> bool {
        self.sends.get(&peer).is_some_and(|line| line.returned > 0)
    }

    fn take_unsent(&mut self, peer: Source, at: usize) -> Option<Unsent> {
        let line = self.sends.get_mut(&peer)?;
        let unsent = line.unsent.remove(at)?;
        if at < line.returned {
            line.returned -= 1;
        }
        if line.unsent.is_empty() {
            self.sends.remove(&peer);
        }
        Some(unsent)
    }

    /// Puts one back that has waited since then.
    fn put_back(&mut self, unsent: Unsent, was_returned: bool, since: Option<Instant>) {
        let line = self.sends.entry(unsent.peer).or_default();
        line.since = since;
        line.unsent.push_front(unsent);
        line.returned += usize::from(was_returned);
    }

    /// The peers that messages wait for.
    pub(super) fn awaited(&self) -> impl Iterator<Item = Source> {
        self.sends.keys().copied()
    }

    /// The peers that messages wait for, first those behind the one that was served last.
    fn peers_in_turn(&self) -> Vec<Source> {
        let mut peers: Vec<Source> = self.sends.keys().copied().collect();
        let first = peers.partition_point(|peer| Some(*peer) <= self.served);
        peers.rotate_left(first);
        peers
    }

    pub(super) fn defer_receive(&mut self, number: usize, filter: Filter, room: Space) {
        self.takers.push(Taker::new(number, filter, TakerKind::Receive(room)));
    }

    pub(super) fn defer_look(&mut self, number: usize, filter: Filter, found: Found) {
        self.takers.push(Taker::new(number, filter, TakerKind::Look(found)));
        // The application waits for its end.
        self.rests = None;
    }
}

/// Whether the endpoint has memory for `len` bytes now.
fn has_memory(endpoint: &mut Endpoint, len: usize) -> bool {
    let memory = endpoint.memory();
    let slice = memory.allocate(u32::try_from(len).unwrap_or(u32::MAX));
    slice.is_ok_and(|slice| memory.free(slice).is_ok())
}

impl State {
    /// Whether a receive with `len` bytes of room has to wait.
    pub(super) fn delays_receive(&mut self, filter: Filter, len: usize) -> bool {
        // While thousands of receives wait, the server has no place for another one.
        self.lacks_room(filter, len) || self.backlog.is_behind(filter)
    }

    /// Whether the server cannot have a receive with `len` bytes of room now.
    pub(super) fn lacks_room(&mut self, filter: Filter, len: usize) -> bool {
        let has_room = |endpoint: &mut Endpoint| has_memory(endpoint, len);
        self.backlog.has_all_receives(false)
            || self.backlog.has_full_receives(len)
            || self.backlog.parts.is_some() && self.backlog.kinds.is_full_for(filter.kind())
            || self.backlog.parts.is_some() && !self.endpoint.as_mut().is_some_and(has_room)
    }

    /// Posts what has waited for memory, as far as there is some now, and looks for messages of receives that wait.
    pub(super) fn resume(&mut self) -> Result<(), FiError> {
        if self.backlog.is_empty() {
            return Ok(());
        }
        self.resume_sends()?;
        self.resume_claimed()?;
        self.resume_receives()?;
        self.look()
    }

    /// Hands receives that have waited to the server while it has room for the first of them. Those at the server that take the same
    /// messages were called before it, and everything else that waits was called after it, so it gets what it would have got there
    /// from the beginning.
    pub(super) fn resume_receives(&mut self) -> Result<(), FiError> {
        while let Some((number, filter, len)) = self.backlog.first_receive() {
            if self.lacks_room(filter, len) {
                return Ok(());
            }
            let Some(mut taker) = self.backlog.takers.remove(number) else { return Ok(()) };
            let TakerKind::Receive(space) = taker.kind else { return Ok(()) };
            let (offered, back) = match space.offered() {
                Ok(offered) => offered,
                Err(error) => {
                    self.fail(number, Way::In, error)?;
                    continue;
                }
            };
            let endpoint = self.endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
            let posted = endpoint.receive_with(offered, filter.options().context(number as u64));
            match posted.map_err(|refused| refused.error) {
                Ok(id) => {
                    let (memory, kind) = (self.backlog.begin_receive(len), self.backlog.begin_kind(filter));
                    if let Some(operation) = self.operations.get_mut(number) {
                        (operation.id, operation.memory, operation.kind) = (Some(id), memory, kind);
                    }
                }
                Err(error) => {
                    let space = back.take().filter(|_| error.is_back_pressure());
                    let Some(space) = space else { return self.fail(number, Way::In, FiError::from(&error)) };
                    taker.kind = TakerKind::Receive(space);
                    self.backlog.takers.put_back(taker);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn resume_sends(&mut self) -> Result<(), FiError> {
        if !self.backlog.has_sends() {
            return Ok(());
        }
        self.backlog.peers_in_turn().into_iter().try_for_each(|peer| self.resume_sends_to(peer))
    }

    fn resume_sends_to(&mut self, peer: Source) -> Result<(), FiError> {
        loop {
            let was_returned = self.backlog.has_returned(peer);
            // A peer that was refused is tried by one message, behind which all others wait.
            let connections = &self.peers.connections;
            let is_refused = connections.is_refused(peer);
            if is_refused && (connections.is_returning(peer) || !connections.may_try(Instant::now(), peer)) {
                return Ok(());
            }
            // Those that come back are sent before.
            if !was_returned && self.peers.connections.is_returning(peer) {
                return Ok(());
            }
            let since = self.backlog.sends.get(&peer).and_then(|line| line.since);
            let Some(unsent) = self.backlog.take_unsent(peer, 0) else { return Ok(()) };
            let number = unsent.number;
            match self.post_or_place(unsent, since.is_some_and(|since| since.elapsed() >= PATIENCE)) {
                Ok(None) => {
                    self.backlog.served = Some(peer);
                    // While there is no memory, something stands for those behind one that has waited in vain, too.
                    let operation = self.operations.get_mut(number);
                    let is_sent = operation.is_none_or(|operation| operation.stand_in.is_none());
                    if let Some(line) = self.backlog.sends.get_mut(&peer) {
                        line.since = if is_sent { Some(Instant::now()) } else { since };
                    }
                    if is_refused {
                        self.peers.connections.tries(peer);
                        return Ok(());
                    }
                }
                Ok(Some(unsent)) => {
                    self.backlog.put_back(unsent, was_returned, since);
                    return Ok(());
                }
                Err(error) => self.fail(number, Way::Out, error)?,
            }
        }
    }

    /// Posts a message that has waited, from the reserve if there is no other memory for it; gives it back if there is no room for
    /// it yet.
    fn post_or_place(&mut self, unsent: Unsent, has_waited: bool) -> Result<Option<Unsent>, FiError> {
        let Some(mut unsent) = self.post_unsent(unsent, has_waited)? else { return Ok(None) };
        let SendBuffer::Bytes(bytes) = &unsent.buffer else { return Ok(Some(unsent)) };
        let has_to_wait = self.backlog.is_over_share(unsent.peer, bytes.len())
            || self.awaits_length(unsent.peer, &unsent.options, bytes.len());
        if has_to_wait || self.may_stand_in(unsent.peer, unsent.options.tag, bytes.len()) {
            return Ok(Some(unsent));
        }
        let Some(slice) = self.take_reserve(bytes) else { return Ok(Some(unsent)) };
        unsent.buffer = slice.into();
        let Some(mut unsent) = self.post_unsent(unsent, has_waited)? else { return Ok(None) };
        if self.peers.connections.is_refused(unsent.peer)
            && let Err(error) = self.backlog.free_reserve(&mut unsent)
        {
            self.drop_unsent(unsent);
            return Err(error);
        }
        Ok(Some(unsent))
    }

    /// The reserve with these bytes, if there is no other memory for them and nobody has it.
    fn take_reserve(&mut self, bytes: &[u8]) -> Option<MemorySlice> {
        let (is_full, endpoint) = (self.backlog.is_full(bytes.len()), self.endpoint.as_mut()?);
        if !is_full && has_memory(endpoint, bytes.len()) {
            return None;
        }
        let slice = self.backlog.parts.as_mut()?.for_a_send.take(endpoint, bytes.len())?;
        slice.write(0, bytes);
        Some(slice)
    }

    /// The buffer from which a stand-in is posted, if there is memory for it now.
    pub(super) fn place_stand_in(&mut self, peer: Source, stand_in: Bytes) -> Option<SendBuffer> {
        if !self.backlog.keeps_sends() {
            return Some(stand_in.into());
        }
        if self.backlog.is_over_share(peer, stand_in.len()) {
            return None;
        }
        let has_room = |endpoint: &mut Endpoint| has_memory(endpoint, stand_in.len());
        if !self.backlog.is_full(stand_in.len()) && self.endpoint.as_mut().is_some_and(has_room) {
            return Some(stand_in.into());
        }
        self.take_reserve(&stand_in).map(SendBuffer::Memory)
    }

    /// Cancels a message or a receive that waits.
    ///
    /// # Errors
    /// It does not.
    pub(super) fn cancel_waiting(&mut self, number: usize) -> Result<(), FiError> {
        let Backlog { sends, takers, claimed, .. } = &mut self.backlog;
        let place_of = |line: &Line| line.unsent.iter().position(|unsent| unsent.number == number);
        if let Some((peer, at)) = sends.iter().find_map(|(peer, line)| Some((*peer, place_of(line)?))) {
            if let Some(unsent) = self.backlog.take_unsent(peer, at) {
                self.drop_unsent(unsent);
            }
            return self.fail(number, Way::Out, FiError::CANCELED);
        }
        if takers.cancel(number) {
            return self.end_cancelled();
        }
        // For one whose message was claimed it is too late.
        if claimed.iter().any(|claimed| claimed.number == number) { Ok(()) } else { Err(FiError::NO_ENTRY) }
    }

    /// A message that has waited is not sent. Returns its number.
    pub(super) fn drop_unsent(&mut self, unsent: Unsent) -> usize {
        let Unsent { number, peer, buffer, options, .. } = unsent;
        self.budgets.refund(peer, options.header_data, buffer.len());
        self.backlog.take_sent(buffer);
        number
    }

    /// A message has come back unsent, and waits. One that has the reserve ends if there is no other memory for its bytes.
    pub(super) fn wait_again(&mut self, unsent: Unsent) -> Result<(), FiError> {
        let Some(failed) = self.backlog.defer_returned(unsent) else { return Ok(()) };
        let number = self.drop_unsent(failed);
        self.fail(number, Way::Out, FiError::NO_MEMORY)
    }

    /// Fails the first message to `peer` that waits.
    pub(super) fn fail_first(&mut self, peer: Source, error: FiError) -> Result<(), FiError> {
        let Some(unsent) = self.backlog.take_unsent(peer, 0) else { return Ok(()) };
        let number = self.drop_unsent(unsent);
        self.fail(number, Way::Out, error)
    }

    /// Whether the first message to `peer` that waits has to be fetched.
    pub(super) fn has_to_stand_in(&self, peer: Source) -> bool {
        let first = self.backlog.sends.get(&peer).and_then(|line| line.unsent.front());
        first.is_some_and(|unsent| self.is_long(unsent))
    }

    fn is_long(&self, unsent: &Unsent) -> bool {
        let Unsent { peer, buffer, options, .. } = unsent;
        matches!(buffer, SendBuffer::Bytes(bytes) if self.has_to_be_fetched(*peer, options, bytes.len()))
    }

    /// Fails all messages to `peer` that wait and have to be fetched.
    pub(super) fn fail_long(&mut self, peer: Source, error: FiError) -> Result<(), FiError> {
        self.fail_those(peer, error, State::is_long)
    }

    /// As [`State::fail_long`], with [`FiError::TIMED_OUT`], for a peer that answers no questions. Messages that only wait for the peer to
    /// say how long they may be stay: they are sent after some more questions.
    pub(super) fn fail_unheeded(&mut self, peer: Source) -> Result<(), FiError> {
        self.fail_those(peer, FiError::TIMED_OUT, |state, unsent| {
            let Unsent { peer, buffer, options, .. } = unsent;
            let len = buffer.len();
            state.is_long(unsent)
                && (state.backlog.never_holds(len) || !state.awaits_length(*peer, options, len))
        })
    }

    fn fail_those(
        &mut self,
        peer: Source,
        error: FiError,
        is_one: impl Fn(&State, &Unsent) -> bool,
    ) -> Result<(), FiError> {
        let mut at = 0;
        while let Some(unsent) = self.backlog.sends.get(&peer).and_then(|line| line.unsent.get(at)) {
            if !is_one(self, unsent) {
                at += 1;
            } else if let Some(unsent) = self.backlog.take_unsent(peer, at) {
                self.fail(unsent.number, Way::Out, error)?;
            }
        }
        Ok(())
    }

    /// Ends receives that were cancelled, unless a look is under way: that may find a message for one of them.
    pub(super) fn end_cancelled(&mut self) -> Result<(), FiError> {
        while self.backlog.look.is_none()
            && let Some(number) = self.backlog.takers.first_cancelled()
            && let Some(receive) = self.backlog.takers.remove(number)
        {
            self.backlog.next = 0;
            self.fail(receive.number, Way::In, FiError::CANCELED)?;
        }
        Ok(())
    }

    /// Ends all operations that wait: the endpoint can work no longer.
    pub(super) fn fail_waiting(&mut self, error: FiError) -> Result<(), FiError> {
        let Backlog { sends, takers, claimed, look, .. } = &mut self.backlog;
        *look = None;
        let takers = std::mem::take(takers);
        let numbers = |looks: bool| -> Vec<usize> {
            takers.iter().filter(|taker| taker.is_look() == looks).map(|taker| taker.number).collect()
        };
        let (looks, receives) = (numbers(true), numbers(false));
        // The application's memory may be gone once a receive has ended.
        drop(takers);
        let sends = std::mem::take(sends).into_values().flat_map(|line| line.unsent);
        let sends = sends.map(|unsent| (unsent.number, Way::Out));
        let claimed = claimed.drain(..).map(|claimed| (claimed.number, Way::In));
        let receives = receives.into_iter().map(|number| (number, Way::In));
        let all: Vec<_> = sends.chain(claimed).chain(receives).collect();
        all.into_iter().try_for_each(|(number, way)| self.fail(number, way, error))?;
        self.fail_all_stand_ins(error)?;
        looks.into_iter().try_for_each(|number| self.end_peek(number, Err(error), None, false))
    }

    /// Reports the end of an operation that the endpoint does not know.
    pub(super) fn fail(&mut self, number: usize, way: Way, error: FiError) -> Result<(), FiError> {
        let Some(operation) = self.operations.remove(number) else { return Ok(()) };
        self.forget_stand_in(operation.sending.map(|(peer, _)| peer), operation.stand_in);
        if let Some(counted) = operation.counted {
            // It came back unsent before. The peer is asked when that matters.
            self.eager.end(counted);
        }
        self.end_pending(&operation);
        let Bindings { transmit, receive, sent, received, .. } = &self.bindings;
        let (count, binding, counter) = match way {
            Way::Out => (&mut self.sends, transmit, sent),
            Way::In => (&mut self.receives, receive, received),
        };
        *count = count.saturating_sub(1);
        let (reported, error) = (operation.reported, operation.given_up.unwrap_or(error));
        report(binding, counter, reported, operation.entry(Some(Problem { error, beyond: 0 })))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::Arc;

    use weft::Addr;

    use super::*;
    use crate::queue::Queue;
    use crate::rdm::{Binding, Operation};

    const PEER: Source = Source { peer: Addr(1), process: 7 };

    fn message(order: u64) -> Unsent {
        let options = SendOptions::default();
        Unsent { number: order as usize, peer: PEER, buffer: SendBuffer::Copied, options, order }
    }

    fn orders(backlog: &Backlog) -> Vec<u64> {
        backlog.sends[&PEER].unsent.iter().map(|unsent| unsent.order).collect()
    }

    #[test]
    fn a_message_that_was_a_try_is_the_first_again() {
        let mut backlog = Backlog::default();
        // Two come back, one is posted later, and one more comes back.
        [1, 2].into_iter().for_each(|order| assert!(backlog.defer_returned(message(order)).is_none()));
        backlog.defer_send(message(4));
        assert!(backlog.defer_returned(message(3)).is_none());
        assert_eq!(orders(&backlog), [1, 2, 3, 4]);
        // The first tries, twice.
        for _ in 0..2 {
            let first = backlog.take_unsent(PEER, 0).unwrap();
            assert_eq!((first.order, orders(&backlog)), (1, vec![2, 3, 4]));
            assert!(backlog.defer_returned(first).is_none());
            assert_eq!(orders(&backlog), [1, 2, 3, 4]);
        }
        assert_eq!(backlog.sends[&PEER].returned, 3);
    }

    #[test]
    fn a_message_that_comes_back_is_before_one_for_which_there_was_no_room() {
        let mut backlog = Backlog::default();
        [1, 2].into_iter().for_each(|order| backlog.defer_send(message(order)));
        let first = backlog.take_unsent(PEER, 0).unwrap();
        // The ring is full.
        let second = backlog.take_unsent(PEER, 0).unwrap();
        backlog.put_back(second, false, None);
        assert!(backlog.defer_returned(first).is_none());
        assert_eq!((orders(&backlog), backlog.sends[&PEER].returned), (vec![1, 2], 1));
    }

    /// How much more address space the process may use.
    fn limit(more: Option<u64>) {
        let used = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = used.split(' ').next().unwrap().parse().unwrap();
        let rlim_cur = more.map_or(libc::RLIM_INFINITY, |more| pages * 4096 + more);
        let limit = libc::rlimit { rlim_cur, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: it is a limit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    }

    /// The test runs itself once more in a process of its own, whose memory it limits.
    #[test]
    fn a_message_that_comes_back_and_for_which_there_is_only_the_reserve_ends_and_gives_that_back() {
        const INSIDE: &str = "WEFT_FI_LITTLE_MEMORY";
        const NAME: &str =
            "a_message_that_comes_back_and_for_which_there_is_only_the_reserve_ends_and_gives_that_back";
        if std::env::var_os(INSIDE).is_none() {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args([&format!("rdm::backlog::tests::{NAME}"), "--exact"]).env(INSIDE, "1");
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
            return;
        }
        const LEN: u32 = 1 << 28;
        // The one that has the reserve comes back, or one before it.
        for has_reserve in [1, 2] {
            let mut memory = Memory::private(LEN as usize).unwrap();
            let mut slice = Some(memory.allocate(LEN).unwrap());
            let mut state = State::new(None);
            let none = || Reserve(None);
            state.backlog.parts = Some(Parts {
                most: LEN,
                part: 0,
                short: 0,
                sends: 0,
                messages: 0,
                receives: 0,
                many: 0,
                for_a_send: none(),
                for_a_claimed: none(),
            });
            let queue = Arc::new(Queue::new(4, false).unwrap());
            state.bindings.transmit = Some(Binding { queue: queue.clone(), selective: true });
            let [first, second] = [1, 2].map(|order| {
                let operation = Operation { context: order as usize, ..Operation::default() };
                let number = state.operations.insert(operation);
                let slice = slice.take_if(|_| order == has_reserve);
                let buffer = slice.map_or(SendBuffer::Copied, SendBuffer::Memory);
                Unsent { number, buffer, ..message(order) }
            });
            state.backlog.defer_send(second);
            limit(Some(u64::from(LEN) / 2));
            state.wait_again(first).unwrap();
            limit(None);
            let ended = queue.read_problem().unwrap().map(|(entry, problem)| (entry.context, problem.error));
            assert_eq!(ended, Some((has_reserve as usize, FiError::NO_MEMORY)));
            assert_eq!(orders(&state.backlog), [3 - has_reserve]);
            assert!(state.backlog.parts.unwrap().for_a_send.0.is_some());
        }
    }
}
