//! Long messages: a short one stands for each, and the receiver's provider fetches the bytes when that has met a receive
//! ([decision 0109](../../../docs/decisions/0109-long-messages-are-fetched.md)): through servers by [requests](super::carried), and
//! elsewhere by a read, as [notes](super::notes) say.
//!
//! A stand-in has the tag of its message, if that has one, and the beginning of its bytes, so that a receive with less room than the stand-in
//! has what it can hold. Its last byte, and its header data, are the provider's:
//!
//! | header data | |
//! |---|---|
//! | bits 0 to 32 | the sender's, as in every message |
//! | bit 33 | the message is a stand-in |
//! | bits 34 to 41 | the lower half of the number under which the sender knows the message |
//! | bits 42 to 63 | the length of the message in units of 1,024 bytes |
//!
//! The last byte is the upper half of that number. The length of the stand-in, less 16, is the rest of the message's length. So a
//! look that sees no bytes knows the message's length too.
//!
//! This is about them and their senders; [`fetching`] is about their receivers, and [`lives`] about which processes those are.

mod fetching;
mod lives;

use std::collections::{HashMap, HashSet, VecDeque};

use bytes::{Bytes, BytesMut};
use weft::core::wire::ses::ReturnCode;
use weft::{Error, MemorySlice, SendBuffer, SendError, SendOptions, Source};

pub(super) use self::fetching::Fetched;

#[cfg(test)]
pub(super) use self::lives::UNANSWERED;
use self::lives::{Life, Receiver};
use super::State;
use super::budgets::unstamped;
use super::notes::{folded, key_of};
use super::pending::TO_ONE;
use crate::error::FiError;
use crate::random;

/// The longest message that gets all of the memory for messages that are sent, bytes.
pub(super) const SHORT: usize = 4096;
/// The bit of the header data of a stand-in.
pub(super) const STANDS: u64 = 1 << 33;
/// Bytes of the shortest stand-in.
const LEAST: u32 = 16;
/// Units of a message's length in the header data, and bytes of the shortest message for which something may stand.
pub(super) const UNIT: u32 = 1 << 10;

/// The tag that requests name for a message without a tag. Where tags have 64 bits an application may use it, too: whether a message
/// has a tag, its receive knows.
const UNTAGGED: u64 = u64::MAX;

/// The length of the message that one like this stands for; none if it is a message as others are.
pub(super) fn stands_for(header_data: u64, len: u32) -> Option<u32> {
    let rest = len.checked_sub(LEAST).filter(|rest| *rest < UNIT && header_data & STANDS != 0)?;
    let whole = (header_data >> 42) as u32 * UNIT + rest;
    (whole > len).then_some(whole)
}

/// Bytes of the stand-in of a message of `whole` bytes.
pub(super) fn stand_in_len(whole: u32) -> u32 {
    LEAST + whole % UNIT
}

/// The stand-in of a message, and its header data.
fn stand_in(bytes: &[u8], number: u16, header_data: u64) -> Option<(Bytes, u64)> {
    let whole = u32::try_from(bytes.len()).ok()?;
    let len = stand_in_len(whole);
    let [low, high] = number.to_le_bytes();
    let header = header_data | STANDS | u64::from(low) << 34 | u64::from(whole / UNIT) << 42;
    let mut stand_in = BytesMut::with_capacity(len as usize);
    stand_in.extend_from_slice(bytes.get(..len as usize - 1)?);
    stand_in.extend_from_slice(&[high]);
    Some((stand_in.freeze(), header))
}

/// The last bytes of a stand-in, by which its sender tells it from earlier ones with its number.
fn end_of(bytes: &[u8]) -> Option<u128> {
    bytes.last_chunk().map(|end| u128::from_le_bytes(*end))
}

/// The number in a stand-in.
fn number_of(header_data: u64, end: u128) -> u16 {
    u16::from_le_bytes([(header_data >> 34) as u8, (end >> 120) as u8])
}

/// What stands for a message, not yet sent.
struct Made {
    own: u16,
    stand_in: Bytes,
    header_data: u64,
    end: u128,
    /// The key under which its message is read from now on.
    key: Option<u64>,
}

/// A message whose stand-in has been sent.
#[derive(Debug)]
struct Message {
    operation: usize,
    tag: u64,
    header_data: u64,
    end: u128,
    /// The key under which its receiver reads it, unless that sends requests.
    key: Option<u64>,
    bytes: Bytes,
    /// The life of the process that it is for.
    life: u64,
    /// Whether the stand-in has been delivered.
    is_delivered: bool,
    /// Whether the receiver has what it wants, or has said why not.
    is_done: bool,
    untaken: Option<Untaken>,
}

/// Why the receiver of a message has none of it, though what stands for it has met a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Untaken {
    /// The receive is one for many messages, which has not the room that the message needs.
    TooLong,
    /// It could not be fetched.
    Aborted,
}

impl Untaken {
    /// As notices say it.
    pub(super) fn number(untaken: Option<Untaken>) -> u8 {
        match untaken {
            None => 0,
            Some(Untaken::TooLong) => 1,
            Some(Untaken::Aborted) => 2,
        }
    }

    pub(super) fn of(number: u8) -> Option<Untaken> {
        match number {
            0 => None,
            1 => Some(Untaken::TooLong),
            _ => Some(Untaken::Aborted),
        }
    }

    fn error(self) -> FiError {
        match self {
            Untaken::TooLong => FiError::TOO_LONG,
            Untaken::Aborted => FiError::ABORTED,
        }
    }
}

/// The messages that peers may fetch: each one only those for it.
#[derive(Debug)]
pub(super) struct StandIns {
    /// Whether receivers read the messages, at ports of their own, and tell of them by notes.
    pub(super) by_notes: bool,
    /// A number that no other process has, also none that takes the place of this one.
    life: u64,
    receivers: HashMap<Source, Receiver>,
    /// Peers that have heeded none of many questions.
    unheeding: HashSet<Source>,
    messages: HashMap<(Source, u16), Message>,
    /// The number of the next one. The first is random, so that no message has the number of one that a process before this one sent.
    next: u16,
    /// The number of the next question.
    question: u32,
    /// The questions of peers, the last one of each, that are to be answered with this process's life.
    unanswered: HashMap<Source, u32>,
    /// The peers that have one, in turn.
    askers: VecDeque<Source>,
    /// The peers that an answer is on its way to: no second one is, so that a peer which takes none holds no more.
    answering: HashSet<Source>,
    /// The keys under which messages are read.
    lent: HashSet<u64>,
    /// How many messages that are alike are done of which none is named by more than that: those that were dropped, or met
    /// receives with less room than the stand-in has bytes.
    dropped: HashMap<Alike, Dropped>,
    /// The numbers of the messages that are not done, by what a notice knows that names them by no more.
    alike: HashMap<Alike, Vec<u16>>,
    /// The last notices of each peer that a message which they do not name by more is done: one that is repeated says so of no further
    /// message.
    heard: HashMap<Source, Heard>,
}

/// Messages that are alike and are done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Dropped {
    count: usize,
    /// Why one of them was not taken. Which one it is nobody knows, so all of them end with that.
    untaken: Option<Untaken>,
}

/// How many notices of a peer are remembered: as many as it may have under way and to repeat.
const HEARD: usize = 2 * TO_ONE;
/// How many of its notes are: none is repeated behind half as many others.
pub(super) const HEARD_NOTES: usize = 1 << 15;

/// The numbers of the last notices of a peer.
#[derive(Debug, Default)]
struct Heard {
    /// The process that they are of, if that has said so.
    life: Option<u64>,
    numbers: HashSet<u64>,
    /// In the order in which they came.
    order: VecDeque<u64>,
}

impl Heard {
    fn insert(&mut self, number: u64, most: usize) {
        if self.numbers.insert(number) {
            self.order.push_back(number);
        }
        if self.order.len() > most
            && let Some(oldest) = self.order.pop_front()
        {
            self.numbers.remove(&oldest);
        }
    }
}

/// What a peer that fetches a message knows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) peer: Source,
    pub(super) tag: u64,
    pub(super) header_data: u64,
    /// The last bytes of the stand-in. Who has seen no bytes, or not all, knows none.
    pub(super) end: Option<u128>,
    /// Why it has none of the message, if it says so.
    pub(super) untaken: Option<Untaken>,
}

/// What a notice knows of a message that it names by no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Alike {
    pub(super) peer: Source,
    /// The tag; of a note, what that says of the tag and the header data.
    pub(super) tag: u64,
    pub(super) header_data: u64,
}

impl Alike {
    /// What a note knows.
    pub(super) fn noted(peer: Source, said: u32) -> Alike {
        Alike { peer, tag: said.into(), header_data: 0 }
    }
}

impl Named {
    pub(super) fn new(peer: Source, tag: Option<u64>, header_data: u64, end: Option<u128>) -> Named {
        Named { peer, tag: tag.unwrap_or(UNTAGGED), header_data, end, untaken: None }
    }

    /// The number of the message; only its lower half if not all of the stand-in was seen.
    pub(super) fn number(&self) -> u16 {
        number_of(self.header_data, self.end.unwrap_or(0))
    }
}

impl Default for StandIns {
    fn default() -> StandIns {
        StandIns {
            by_notes: false,
            life: random::number() | 1,
            receivers: HashMap::new(),
            unheeding: HashSet::new(),
            messages: HashMap::new(),
            next: random::number() as u16,
            question: random::number() as u32,
            unanswered: HashMap::new(),
            askers: VecDeque::new(),
            answering: HashSet::new(),
            lent: HashSet::new(),
            dropped: HashMap::new(),
            alike: HashMap::new(),
            heard: HashMap::new(),
        }
    }
}

impl StandIns {
    /// What a notice knows of a message that it names by no more.
    pub(super) fn alike(&self, peer: Source, tag: u64, header_data: u64) -> Alike {
        if self.by_notes {
            return Alike::noted(peer, folded(tag, header_data));
        }
        Alike { peer, tag, header_data }
    }

    /// The message for `peer` with this number that is read under this key.
    pub(super) fn lent_as(&self, peer: Source, number: u16, key: u64) -> Option<Named> {
        let message = self.messages.get(&(peer, number)).filter(|message| message.key == Some(key))?;
        let Message { tag, header_data, end, .. } = *message;
        Some(Named { peer, tag, header_data, end: Some(end), untaken: None })
    }

    /// A message is read under this key from now on.
    pub(super) fn lend(&mut self, key: u64) {
        self.lent.insert(key);
    }

    /// No message is read under this key any more.
    pub(super) fn take_back(&mut self, key: u64) {
        self.lent.remove(&key);
    }

    /// The keys under which messages are read.
    #[cfg(test)]
    pub(super) fn lent_keys(&self) -> Vec<u64> {
        self.lent.iter().copied().collect()
    }

    /// Whether a message is read under this key.
    pub(super) fn lends(&self, key: u64) -> bool {
        self.lent.contains(&key)
    }

    fn insert(&mut self, key: (Source, u16), message: Message) {
        let alike = self.alike(key.0, message.tag, message.header_data);
        self.alike.entry(alike).or_default().push(key.1);
        self.messages.insert(key, message);
        if let Some(receiver) = self.receivers.get_mut(&key.0) {
            receiver.messages += 1;
        }
    }

    fn remove(&mut self, key: (Source, u16)) -> Option<Message> {
        let message = self.messages.remove(&key)?;
        self.unlist(key, message.tag, message.header_data);
        if let Some(receiver) = self.receivers.get_mut(&key.0) {
            receiver.messages = receiver.messages.saturating_sub(1);
            if receiver.messages == 0 {
                // The process may make room for another one before the next message.
                self.receivers.remove(&key.0);
            }
        }
        Some(message)
    }

    /// A message is done.
    fn unlist(&mut self, (peer, number): (Source, u16), tag: u64, header_data: u64) {
        let group = self.alike(peer, tag, header_data);
        let Some(alike) = self.alike.get_mut(&group) else { return };
        alike.retain(|other| *other != number);
        if alike.is_empty() {
            self.alike.remove(&group);
        }
    }

    /// The next number that no message for `peer` has.
    fn number(&self, peer: Source) -> u16 {
        let mut number = self.next;
        // A peer has no more than half as many messages under way as there are numbers.
        while self.messages.contains_key(&(peer, number)) {
            number = number.wrapping_add(1);
        }
        number
    }

    fn find(&self, named: &Named) -> Option<((Source, u16), &Message)> {
        let key = (named.peer, number_of(named.header_data, named.end?));
        let message = self.messages.get(&key)?;
        let is_it = (message.tag, message.header_data) == (named.tag, named.header_data);
        (is_it && named.end == Some(message.end)).then_some((key, message))
    }

    /// The messages that one which has seen no more than this may mean, and that are not done.
    fn like(&self, alike: &Alike) -> Vec<(Source, u16)> {
        let numbers = self.alike.get(alike).into_iter().flatten();
        numbers.map(|number| (alike.peer, *number)).collect()
    }

    /// Notes that a message like this is done, unless this notice has been heard. Returns whether there is one, or was.
    pub(super) fn drop_one(&mut self, alike: &Alike, notice: Option<u64>, untaken: Option<Untaken>) -> bool {
        let receiver = self.receivers.get(&alike.peer);
        let life = receiver.and_then(|receiver| match receiver.life {
            Life::Said(life, _) => Some(life),
            Life::Unknown | Life::Asked => None,
        });
        if let Some(heard) = self.heard.get_mut(&alike.peer) {
            if life.is_some() && heard.life != life {
                // Another process has taken its place, which has numbers of its own.
                *heard = Heard { life, ..Heard::default() };
            }
            if notice.is_some_and(|notice| heard.numbers.contains(&notice)) {
                return true;
            }
        }
        let is_there = self.alike.contains_key(alike);
        if is_there {
            let most = if self.by_notes { HEARD_NOTES } else { HEARD };
            // Only of peers that the application has sent messages to.
            let heard = self.heard.entry(alike.peer).or_insert_with(|| Heard { life, ..Heard::default() });
            notice.into_iter().for_each(|notice| heard.insert(notice, most));
            let dropped = self.dropped.entry(*alike).or_default();
            dropped.count += 1;
            dropped.untaken = dropped.untaken.or(untaken);
        }
        is_there
    }

    /// Copies `len` bytes of a message, from byte `at` on, to `answer` behind its first `head` bytes.
    ///
    /// # Errors
    /// The code to answer with.
    pub(super) fn read(
        &self,
        named: &Named,
        at: u32,
        len: u32,
        answer: &MemorySlice,
        head: u32,
    ) -> Result<u32, ReturnCode> {
        let (_, message) = self.find(named).ok_or(ReturnCode::BAD_MKEY)?;
        let (begin, end) = (at as usize, at as usize + len as usize);
        let bytes = message.bytes.get(begin..end).ok_or(ReturnCode::AT_OUT_OF_RANGE)?;
        answer.write(head, bytes);
        Ok(len)
    }

    /// The receivers that have not got their messages, or have not said their lives.
    pub(super) fn receivers(&self) -> impl Iterator<Item = Source> {
        let waiting = self.messages.iter().filter(|(_, message)| message.is_delivered);
        let asked = self.receivers.iter().filter(|(_, receiver)| receiver.life == Life::Asked);
        waiting.map(|((peer, _), _)| *peer).chain(asked.map(|(peer, _)| *peer))
    }

    /// Whether messages wait to be fetched, also those whose stand-ins have not been delivered.
    pub(super) fn are_waiting(&self) -> bool {
        !self.messages.is_empty()
    }
}

impl State {
    /// The length of the message that one like this stands for; none if it is a message as others are.
    pub(super) fn stands_for(&self, header_data: u64, len: u32) -> Option<u32> {
        if self.carrier.is_some() || self.stand_ins.by_notes { stands_for(header_data, len) } else { None }
    }

    /// Whether something may stand for a message of `len` bytes to `peer`. For one without a tag only if it has to: it might meet a
    /// receive for many messages, whose room the server divides by the lengths that it sees.
    pub(super) fn may_stand_in(&self, peer: Source, tag: Option<u64>, len: usize) -> bool {
        let is_too_long_here = || self.backlog.longest().is_some_and(|longest| len > longest);
        let is_too_long = || is_too_long_here() || self.budgets.is_too_long(peer, len);
        self.carrier.is_some() && len >= UNIT as usize && (tag.is_some() || is_too_long())
    }

    /// Sends what stands for a message; gives the message back if that is not sent.
    pub(super) fn post_stand_in(
        &mut self,
        number: usize,
        peer: Source,
        bytes: Bytes,
        options: SendOptions,
    ) -> Result<(), (FiError, Bytes)> {
        let life = match self.life_to_send_to(peer) {
            Ok(Some(life)) => life,
            // One that may also be sent at once ends as that does.
            Err(error) if self.has_to_be_fetched(peer, &options, bytes.len()) => return Err((error, bytes)),
            Ok(None) | Err(_) => return Err((FiError::AGAIN, bytes)),
        };
        let before = options.header_data;
        let tag = options.tag.unwrap_or(UNTAGGED);
        let made = match self.make_stand_in(peer, tag, before, &bytes) {
            Ok(made) => made,
            Err(error) => return Err((error, bytes)),
        };
        let Made { own, stand_in, header_data, end, key } = made;
        let options = options.header_data(header_data);
        let Some(stand_in) = self.place_stand_in(peer, stand_in) else {
            key.into_iter().for_each(|key| self.take_back_lent(key));
            return Err((FiError::AGAIN, bytes));
        };
        let len = if let SendBuffer::Bytes(stand_in) = &stand_in { stand_in.len() } else { 0 };
        match self.post_buffer(peer, stand_in, options) {
            Ok(id) => self.posted(number, peer, id, options, len),
            Err((error, stand_in)) => {
                key.into_iter().for_each(|key| self.take_back_lent(key));
                self.backlog.take_sent(stand_in);
                return Err((error, bytes));
            }
        }
        self.budgets.refund(peer, before, bytes.len());
        if let Some(operation) = self.operations.get_mut(number) {
            operation.stand_in = Some(own);
        }
        self.stand_ins.next = own.wrapping_add(1);
        let (is_delivered, is_done, untaken) = (false, false, None);
        let operation = number;
        let message =
            Message { operation, tag, header_data, end, key, bytes, life, is_delivered, is_done, untaken };
        self.stand_ins.insert((peer, own), message);
        Ok(())
    }

    /// What stands for a message, under the first number whose key nobody has if it is to be read: a message to another peer, with the
    /// same tag and bytes, may have the key of the first one.
    fn make_stand_in(
        &mut self,
        peer: Source,
        tag: u64,
        header_data: u64,
        bytes: &Bytes,
    ) -> Result<Made, FiError> {
        // It may have been sent at once before, and have come back.
        let plain = unstamped(header_data);
        for _ in 0..=u16::MAX {
            let own = self.stand_ins.number(peer);
            let (stand_in, header_data) = stand_in(bytes, own, plain).ok_or(FiError::TOO_LONG)?;
            let end = end_of(&stand_in).ok_or(FiError::OTHER)?;
            let key = self.stand_ins.by_notes.then(|| key_of(tag, header_data, end));
            match key.map_or(Ok(()), |key| self.lend(peer, key, bytes)) {
                Ok(()) => return Ok(Made { own, stand_in, header_data, end, key }),
                // Nobody tells the application when to call again.
                Err(FiError::NO_KEY) => self.stand_ins.next = own.wrapping_add(1),
                Err(error) => return Err(error),
            }
        }
        Err(FiError::NO_KEY)
    }

    /// The sending of operation `number` has ended. Returns how, and nothing if that was a stand-in whose message is to be
    /// fetched, or is done.
    pub(super) fn delivered(
        &mut self,
        number: usize,
        result: Result<(), Error>,
    ) -> Result<Option<Result<(), Error>>, FiError> {
        let operation = self.operations.get_mut(number);
        let key = operation.as_ref().and_then(|operation| Some((operation.sending?.0, operation.stand_in?)));
        let Some((operation, key)) = operation.zip(key) else { return Ok(Some(result)) };
        let Some(message) = self.stand_ins.messages.get_mut(&key) else { return Ok(Some(result)) };
        // Of one that is longer than its receive the receiver says that it is done.
        let has_arrived =
            matches!(result, Ok(()) | Err(Error::Send(SendError::Answered(ReturnCode::TOO_LONG))));
        let said = self.stand_ins.receivers.get(&key.0).map(|receiver| receiver.life);
        let is_of_another = matches!(said, Some(Life::Said(life, _)) if life != message.life);
        if has_arrived && !message.is_done && !is_of_another {
            message.is_delivered = true;
            operation.id = None;
            self.backlog.end_send(key.0, operation.memory.take());
            return Ok(None);
        }
        let (is_done, untaken) = (message.is_done, message.untaken);
        self.forget_stand_in(Some(key.0), Some(key.1));
        if is_done {
            return self.end_sent(number, untaken.map(Untaken::error)).map(|()| None);
        }
        // The process that it was for is gone, and no other one fetches it.
        let of_another = Err(Error::Send(SendError::Answered(ReturnCode::BAD_PID)));
        Ok(Some(if has_arrived { of_another } else { result }))
    }

    /// The receiver of a message has what it wants of that, or says why not.
    pub(super) fn fetched_by_peer(&mut self, named: &Named) -> Result<(), FiError> {
        let found = self.stand_ins.find(named).map(|(key, _)| key);
        found.into_iter().try_for_each(|key| self.is_done(key, named.untaken))?;
        self.end_dropped(&self.stand_ins.alike(named.peer, named.tag, named.header_data))
    }

    /// Which of those that are alike was dropped need not be known when as many as are left were.
    pub(super) fn end_dropped(&mut self, alike: &Alike) -> Result<(), FiError> {
        let Some(&dropped) = self.stand_ins.dropped.get(alike) else { return Ok(()) };
        let left = self.stand_ins.like(alike);
        if dropped.count < left.len() {
            return Ok(());
        }
        self.stand_ins.dropped.remove(alike);
        left.into_iter().try_for_each(|key| self.is_done(key, dropped.untaken))
    }

    /// Forgets a message. From then on nobody reads its bytes, which the application may free.
    fn remove_stand_in(&mut self, key: (Source, u16)) -> Option<Message> {
        let message = self.stand_ins.remove(key)?;
        if let Some(key) = message.key {
            self.take_back_lent(key);
        }
        Some(message)
    }

    fn is_done(&mut self, key: (Source, u16), untaken: Option<Untaken>) -> Result<(), FiError> {
        let Some(message) = self.stand_ins.messages.get_mut(&key) else { return Ok(()) };
        if !std::mem::replace(&mut message.is_done, true) {
            message.untaken = untaken;
        }
        let Message { operation: number, tag, header_data, is_delivered, .. } = *message;
        self.stand_ins.unlist(key, tag, header_data);
        if !is_delivered {
            // The operation ends with its stand-in.
            return Ok(());
        }
        self.remove_stand_in(key);
        self.end_sent(number, untaken.map(Untaken::error))
    }

    /// Nobody can fetch the message of operation `number` any more.
    pub(super) fn forget_stand_in(&mut self, peer: Option<Source>, stand_in: Option<u16>) {
        let key = peer.zip(stand_in);
        let Some((key, message)) = key.and_then(|key| Some((key, self.remove_stand_in(key)?))) else {
            return;
        };
        let Message { tag, header_data, .. } = message;
        // This one ends, whatever happens to others.
        let _ = self.end_dropped(&self.stand_ins.alike(key.0, tag, header_data));
    }

    /// A peer is gone: it fetches none of the messages whose stand-ins it has got.
    pub(super) fn fail_stand_ins_of(&mut self, peer: Source, error: FiError) -> Result<(), FiError> {
        self.stand_ins.dropped.retain(|alike, _| alike.peer != peer);
        if error == FiError::REFUSED {
            // Its process is gone for good, and repeats no notices. One that did not answer may have stood still, and go on.
            self.stand_ins.heard.remove(&peer);
        }
        self.budgets.forget(peer);
        self.fail_stand_ins(|key, message| key == peer && message.is_delivered, error)?;
        self.fail_asked(peer, error)
    }

    /// No peer fetches anything any more.
    pub(super) fn fail_all_stand_ins(&mut self, error: FiError) -> Result<(), FiError> {
        self.stand_ins.dropped.clear();
        self.fail_stand_ins(|_, message| message.is_delivered, error)
    }

    fn fail_stand_ins(
        &mut self,
        is_one: impl Fn(Source, &Message) -> bool,
        error: FiError,
    ) -> Result<(), FiError> {
        let all = self.stand_ins.messages.iter();
        let failed = all.filter(|(key, message)| is_one(key.0, message));
        let mut failed: Vec<_> = failed.map(|(key, message)| (message.operation, *key)).collect();
        // In the order in which they were sent: numbers of operations are used again.
        let operations = &mut self.operations;
        failed.sort_by_cached_key(|(number, _)| operations.get_mut(*number).map(|operation| operation.order));
        failed.into_iter().try_for_each(|(number, key)| {
            self.remove_stand_in(key);
            self.end_sent(number, Some(error))
        })
    }
}

/// Bytes of a message that waits, if it has not been copied.
pub(super) fn bytes_of(buffer: SendBuffer) -> Result<Bytes, SendBuffer> {
    if let SendBuffer::Bytes(bytes) = buffer { Ok(bytes) } else { Err(buffer) }
}

#[cfg(test)]
mod tests {
    use super::super::Operation;
    use super::super::send::tests::endpoint;
    use super::*;
    use crate::error::lock;

    const PEER: Source = Source { peer: weft::Addr(3), process: 4 };

    #[test]
    fn a_look_at_a_stand_in_knows_the_length_of_its_message() {
        for len in [1_024, 1_025, 2_047, 4_097usize, 65_537, 1 << 20, (1 << 20) + 1_023, 5_000_000] {
            let bytes: Vec<u8> = (0..len).map(|n| (n * 7) as u8).collect();
            let (stand_in, header) = stand_in(&bytes, 0xabcd, 1 << 32 | 77).unwrap();
            assert_eq!(header & ((1 << 33) - 1), 1 << 32 | 77);
            assert_eq!(stands_for(header, stand_in.len() as u32), Some(len as u32));
            assert!(stand_in[..stand_in.len() - 1] == bytes[..stand_in.len() - 1]);
            assert_eq!(number_of(header, end_of(&stand_in).unwrap()), 0xabcd);
        }
    }

    #[test]
    fn messages_that_cannot_be_stand_ins_are_messages_as_others_are() {
        let (_, header) = stand_in(&[0; 5_000], 1, 0).unwrap();
        assert_eq!(stands_for(header & !STANDS, 20), None, "no mark");
        assert_eq!(stands_for(header, 15), None, "no room for a number");
        assert_eq!(stands_for(header, 16 + 1_024), None, "too long");
        assert_eq!(stands_for(STANDS, 20), None, "no longer than itself");
        assert_eq!(stands_for(u64::MAX, 16 + 1_023), Some(u32::MAX));
    }

    #[test]
    fn only_who_a_message_is_for_and_has_all_of_its_stand_in_finds_it() {
        let mut all = StandIns { next: u16::MAX, ..StandIns::default() };
        let (number, bytes) = (all.number(PEER), Bytes::from(vec![9u8; 5_000]));
        assert_eq!(number, u16::MAX);
        let (stand_in, header_data) = stand_in(&bytes, number, 0).unwrap();
        let end = end_of(&stand_in).unwrap();
        all.insert((PEER, number), Message { end, bytes, ..message(5, header_data, false) });
        assert_eq!(all.number(PEER), 0);
        let named = Named { peer: PEER, tag: 5, header_data, end: Some(end), untaken: None };
        assert!(all.find(&named).is_some());
        let others = [
            Named { peer: Source { process: 5, ..PEER }, ..named },
            Named { tag: 6, ..named },
            Named { header_data: header_data ^ 1, ..named },
            Named { end: Some(end ^ 1), ..named },
            Named { end: Some(end ^ 1 << 127), ..named },
            Named { end: None, ..named },
        ];
        assert!(others.iter().all(|other| all.find(other).is_none()));
        let unseen = Alike { peer: PEER, tag: 5, header_data };
        assert!(
            all.drop_one(&unseen, Some(1), None) && !all.drop_one(&Alike { tag: 6, ..unseen }, Some(2), None)
        );
        // A notice that is repeated is about the same message.
        assert!(all.drop_one(&unseen, Some(1), None));
        assert_eq!(all.dropped[&unseen].count, 1);
        // Also behind those about all other messages that there may be.
        (2..=2 * TO_ONE as u64).for_each(|notice| assert!(all.drop_one(&unseen, Some(notice), None)));
        assert!(all.drop_one(&unseen, Some(1), None));
        assert_eq!(all.dropped[&unseen].count, 2 * TO_ONE);
        assert!(
            all.drop_one(&unseen, Some(2 * TO_ONE as u64 + 1), None) && all.drop_one(&unseen, Some(1), None)
        );
        assert_eq!(all.dropped[&unseen].count, 2 * TO_ONE + 2);
        assert_eq!(all.heard[&PEER].numbers.len(), HEARD);
    }

    /// Numbers are used again, and messages to several peers may be alike.
    #[test]
    fn a_message_whose_key_is_in_use_is_sent_under_another_number() {
        let (a, peers) = (endpoint(), [endpoint(), endpoint()]);
        let mut state = lock(&a.state).unwrap();
        let bytes = Bytes::from(vec![9u8; 5_000]);
        for (peer, number) in peers.iter().zip([7, 8]) {
            let to = state.bindings.addresses.as_ref().unwrap().insert(peer.local()).unwrap();
            let peer = state.peer(to).unwrap();
            state.stand_ins.believe(peer, 1);
            state.stand_ins.next = 7;
            let operation = state.operations.insert(Operation::default());
            let options = SendOptions::default().tag(5).context(operation as u64);
            state.post_stand_in(operation, peer, bytes.clone(), options).unwrap();
            assert_eq!(state.operations.get_mut(operation).unwrap().stand_in, Some(number));
        }
        let keys: Vec<_> = state.stand_ins.messages.values().map(|message| message.key.unwrap()).collect();
        assert!(keys.len() == 2 && keys[0] != keys[1] && keys.iter().all(|key| state.stand_ins.lends(*key)));
        // One that cannot be sent takes its key back.
        let lent = state.stand_ins.lent.len();
        let unknown = Source { peer: weft::Addr(77), process: 0 };
        state.stand_ins.believe(unknown, 1);
        let operation = state.operations.insert(Operation::default());
        assert!(state.post_stand_in(operation, unknown, bytes, SendOptions::default().tag(5)).is_err());
        assert_eq!(state.stand_ins.lent.len(), lent);
    }

    /// A message whose stand-in has no bytes that are looked at.
    fn message(tag: u64, header_data: u64, is_delivered: bool) -> Message {
        let (operation, end, key, bytes) = (usize::MAX, 0, None, Bytes::new());
        let (life, is_done, untaken) = (1, false, None);
        Message { operation, tag, header_data, end, key, bytes, life, is_delivered, is_done, untaken }
    }

    #[test]
    fn the_last_notes_are_known_again_unless_another_process_has_taken_the_place() {
        let mut all = StandIns { by_notes: true, ..StandIns::default() };
        all.insert((PEER, 1), message(5, 3, true));
        let unseen = all.alike(PEER, 5, 3);
        let drop_all = |all: &mut StandIns| {
            (0..1 << 16).for_each(|number: u64| assert!(all.drop_one(&unseen, Some(number), None)));
            all.dropped[&unseen].count
        };
        all.believe(PEER, 1);
        assert_eq!([drop_all(&mut all), drop_all(&mut all)], [1 << 16, 2 << 16]);
        // The last ones are known, and are of the process that it was.
        assert!(
            all.drop_one(&unseen, Some(u16::MAX.into()), None) && all.drop_one(&unseen, Some(1 << 15), None)
        );
        assert_eq!(all.dropped[&unseen].count, 2 << 16);
        all.believe(PEER, 2);
        assert!(all.drop_one(&unseen, Some(u16::MAX.into()), None));
        assert_eq!(all.dropped[&unseen].count, (2 << 16) + 1);
    }

    #[test]
    fn a_note_that_may_mean_either_of_two_messages_ends_neither() {
        let mut state = State::new(None);
        state.stand_ins.by_notes = true;
        let mut seen = HashMap::new();
        let twins = (0..).find_map(|tag| seen.insert(folded(tag, 3), tag).map(|other| (other, tag)));
        let (one, twin) = twins.unwrap();
        for (number, tag) in [(1, one), (2, twin)] {
            state.stand_ins.insert((PEER, number), message(tag, 3, true));
        }
        let unseen = state.stand_ins.alike(PEER, twin, 3);
        assert!(state.stand_ins.drop_one(&unseen, Some(1), None));
        state.end_dropped(&unseen).unwrap();
        assert_eq!(state.stand_ins.messages.len(), 2);
        // The other one was read: it was this one that was dropped.
        let end = Some(0);
        state.fetched_by_peer(&Named { peer: PEER, tag: one, header_data: 3, end, untaken: None }).unwrap();
        assert_eq!(state.stand_ins.messages.len(), 2, "the bytes name another number");
        state.is_done((PEER, 1), None).unwrap();
        state.end_dropped(&unseen).unwrap();
        assert!(state.stand_ins.messages.is_empty() && state.stand_ins.dropped.is_empty());
    }

    #[test]
    fn a_notice_means_one_of_the_messages_that_are_alike_and_not_done() {
        let mut state = State::new(None);
        let named = |tag| Alike { peer: PEER, tag, header_data: 3 };
        for (number, tag) in [(1, 5), (2, 5), (3, 6), (4, 5)] {
            state.stand_ins.insert((PEER, number), message(tag, 3, number != 2));
        }
        assert_eq!(state.stand_ins.like(&named(5)), [(PEER, 1), (PEER, 2), (PEER, 4)]);
        // One is done before its stand-in is delivered, one is delivered, and one is taken back.
        state.is_done((PEER, 2), None).unwrap();
        assert_eq!(state.stand_ins.like(&named(5)), [(PEER, 1), (PEER, 4)]);
        state.is_done((PEER, 1), None).unwrap();
        state.forget_stand_in(Some(PEER), Some(4));
        assert!(
            state.stand_ins.like(&named(5)).is_empty() && !state.stand_ins.drop_one(&named(5), Some(1), None)
        );
        assert_eq!(state.stand_ins.like(&named(6)), [(PEER, 3)]);
        state.forget_stand_in(Some(PEER), Some(3));
        assert!(state.stand_ins.alike.is_empty() && state.stand_ins.messages.len() == 1);
    }
}
