//! Random calls of the tables of messages, tagged messages, remote memory and atomic operations, between two endpoints: every
//! operation ends once, and as a model says.

mod accesses;
pub(crate) mod games;

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::ptr::null_mut;

use weft_fi::sys;
use weft_fi::sys::FI_ADDR_UNSPEC;

use self::accesses::*;
use super::fabric::{Entry, Failed, How, Side, Wish, table};
use super::random::Random;

/// Bytes of messages: less than a packet, one, several, and more than endpoints of servers send at once.
const LENGTHS: [usize; 6] = [8, 100, 1_400, 9_000, 40_000, 200_000];
const LONGEST: usize = 200_000;
/// Bytes of receives for many messages.
const MANY: usize = 500_000;
/// Calls of each seed.
const CALLS: usize = 700;
const TRUNCATED: i32 = sys::FI_ETRUNC as i32;
/// Tags are below this.
const TAGS: u64 = 4;
/// Of tagged messages to endpoints at ports of their own, those that are longer have stand-ins when much waits there (decision 0142).
const SHORT: usize = 1_023;
/// More than may wait at a target beside a message at once that is longer than a short one. Alone it goes at once.
const FILLING: usize = 41 << 20;
/// Its tag is not among the model's, and what it is known by not among the contexts.
const FILLING_TAG: u64 = 1 << 40;
const FILLING_CONTEXT: usize = usize::MAX >> 1;

/// The bytes of message, or written value, number `id`.
fn content(id: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(id);
    let mut bytes = id.to_le_bytes().to_vec();
    while bytes.len() < len {
        bytes.extend(random.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A pattern that chance decides.
fn pattern(random: &mut Random) -> Pattern {
    (random.below(2) == 0).then(|| (random.below(TAGS), [0, 0, 1, TAGS - 1][random.below(4) as usize]))
}

/// Whose messages a receive takes, if not anybody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Other,
    /// The endpoint itself.
    Own,
}

/// Which messages a receive takes: those without tags, or those with a tag like this but for the bits to ignore.
type Pattern = Option<(u64, u64)>;

fn fits(tag: Option<u64>, pattern: Pattern) -> bool {
    match (tag, pattern) {
        (None, None) => true,
        (Some(tag), Some((wanted, ignore))) => (tag ^ wanted) & !ignore == 0,
        _ => false,
    }
}

/// A message of one side to the other one, or to itself.
struct Message {
    tag: Option<u64>,
    len: usize,
    /// The place among the looks and receives of that which has got it.
    taken: Option<usize>,
    /// Its sender knows that it was delivered.
    delivered: bool,
    /// The context of the operation that its sender posted next.
    next: usize,
}

/// A receive, or a look at what waits, in the order in which they were posted.
struct Taker {
    pattern: Pattern,
    from: Option<Sender>,
    /// The messages that it has got, or seen, and where each begins in its memory: more than one only if it takes `many`.
    messages: Vec<(usize, u64)>,
    keeps: bool,
    many: bool,
    /// It takes no further messages, although it takes many.
    ended: bool,
    /// It was cancelled, or found nothing: it says nothing about the order.
    void: bool,
    /// Of a look that has found nothing, the messages that it could have found: they and all before them had been delivered when
    /// it was posted, and nobody was known to have them.
    missed: Vec<u64>,
}

impl Taker {
    fn takes(&self, tag: Option<u64>, sender: Sender) -> bool {
        fits(tag, self.pattern) && self.from.is_none_or(|from| from == sender)
    }

    /// Whether it waits for a message.
    fn waits(&self) -> bool {
        !self.void && if self.many { !self.ended } else { self.messages.is_empty() }
    }
}

enum Operation {
    Send(Sender),
    Receive {
        taker: usize,
        room: usize,
    },
    /// A receive for many messages.
    Many {
        taker: usize,
    },
    Look {
        taker: usize,
        flags: u64,
        /// Messages that wait for it at least.
        waiting: Vec<u64>,
    },
    /// The receive, or the end, of a message that was claimed.
    Claimed {
        id: u64,
        discard: bool,
    },
    Write {
        id: u64,
        writes: Vec<Write>,
        /// The lengths of the pieces of local memory.
        pieces: Vec<usize>,
    },
    Read {
        reads: Vec<Read>,
        pieces: Vec<usize>,
    },
    Count {
        fetches: bool,
        counter: usize,
    },
    /// A word becomes `value` if it is `compare`.
    Swap {
        word: usize,
        compare: u64,
        value: u64,
    },
}

impl Operation {
    /// Whether it concerns the memory of the other side.
    fn is_access(&self) -> bool {
        matches!(
            self,
            Operation::Write { .. }
                | Operation::Read { .. }
                | Operation::Count { .. }
                | Operation::Swap { .. }
        )
    }
}

/// One side, and what the model knows of it.
struct Player {
    side: Side,
    /// The number of the other side, and its own.
    other: u64,
    own: u64,
    memory: Vec<u8>,
    mr: *mut sys::fid_mr,
    /// What is under way, by context, with its bytes.
    operations: HashMap<usize, (Operation, Vec<u8>)>,
    next: usize,
    /// Messages that it has sent, by their numbers, which are in order.
    sent: BTreeMap<u64, Message>,
    /// Those that it has sent to itself.
    to_itself: BTreeMap<u64, Message>,
    takers: Vec<Taker>,
    /// Messages that were claimed, with the contexts.
    claims: Vec<(usize, u64, Pattern)>,
    /// The slots of the other side's memory.
    slots: [Slot; SLOTS],
    /// How often each counter of the other side was increased, and the values from before.
    counted: [u64; COUNTERS],
    fetched: [Vec<u64>; COUNTERS],
    /// The words of the other side, and whether a swap of each is under way.
    words: [(u64, bool); WORDS],
    /// Writes of the other side that were announced, and those that it has posted to be.
    announced: Vec<u64>,
    announcing: Vec<u64>,
    cancelled: usize,
    /// Messages that receives for many have got.
    gathered: usize,
    /// Places of accesses that have succeeded there: reads, and atomic operations that fetch; writes, and the others.
    accesses: [u64; 2],
    /// How many accesses of each of the [`KINDS`] have succeeded.
    kinds: [usize; KINDS.len()],
    /// Its operations have entries only if their calls say so (FI_SELECTIVE_COMPLETION), which is what calls without flags do.
    selective: bool,
    /// The bytes of messages whose calls have not said so.
    quiet: Vec<Vec<u8>>,
    /// Messages that it has posted, and those that were cancelled.
    posted: u64,
    unsent: u64,
}

impl Player {
    /// One whose queue has room for so many entries.
    fn open(domain: Option<String>, queue: usize, selective: bool) -> Player {
        let caps = sys::FI_MSG | sys::FI_TAGGED | sys::FI_RMA | sys::FI_ATOMIC | sys::FI_RMA_EVENT;
        let caps = caps | sys::FI_DIRECTED_RECV | sys::FI_SOURCE | sys::FI_MULTI_RECV;
        let counters = Some(sys::FI_WAIT_NONE);
        let mut how = How { queue, counters, of_peers: true, ..How::default() };
        let mut wish = Wish { caps, domain, ..Wish::default() };
        if selective {
            how.bind |= sys::FI_SELECTIVE_COMPLETION;
            // SAFETY: hints have all their parts.
            wish.change = |hints| unsafe {
                (*hints.tx_attr).op_flags = sys::FI_COMPLETION;
                (*hints.rx_attr).op_flags = sys::FI_COMPLETION;
            };
        }
        let side = Side::open(&wish, how);
        let (mut memory, mut mr) = (vec![0u8; MEMORY], null_mut());
        for slot in 0..SLOTS {
            let (id, len) = at_first(slot);
            memory[slot * SLOT..slot * SLOT + len].copy_from_slice(&content(id, len));
        }
        // SAFETY: the domain is open, and the memory stays until the registration is closed.
        let answer = unsafe {
            let reg = (*(*side.domain).mr).reg.unwrap();
            let access = sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;
            let at = memory.as_ptr().cast();
            reg(side.domain.cast(), at, MEMORY, access, 0, KEY, 0, &mut mr, null_mut())
        };
        assert_eq!(answer, 0);
        // A receive for many messages goes on as long as there is room for any.
        let least: *const usize = &LONGEST;
        // SAFETY: the endpoint is open, and so many bytes are there.
        let set = unsafe {
            let ops = &*(*side.ep).ops;
            let (level, name) = (sys::FI_OPT_ENDPOINT as i32, sys::FI_OPT_MIN_MULTI_RECV as i32);
            ops.setopt.unwrap()(side.ep.cast(), level, name, least.cast(), size_of::<usize>())
        };
        assert_eq!(set, 0);
        let own = side.insert(&side.name());
        Player {
            side,
            other: 0,
            own,
            memory,
            mr,
            operations: HashMap::new(),
            next: 1,
            sent: BTreeMap::new(),
            to_itself: BTreeMap::new(),
            takers: Vec::new(),
            claims: Vec::new(),
            slots: std::array::from_fn(|slot| Slot { written: at_first(slot), busy: false }),
            counted: [0; COUNTERS],
            fetched: Default::default(),
            words: [(0, false); WORDS],
            announced: Vec::new(),
            announcing: Vec::new(),
            cancelled: 0,
            gathered: 0,
            accesses: [0; 2],
            kinds: [0; KINDS.len()],
            selective,
            quiet: Vec::new(),
            posted: 0,
            unsent: 0,
        }
    }

    /// Notes an operation, and posts it; not if there is no room now.
    fn post(
        &mut self,
        operation: Operation,
        mut bytes: Vec<u8>,
        call: impl FnOnce(&Player, *mut u8, *mut c_void) -> isize,
    ) {
        let context = self.next;
        let answer = call(self, bytes.as_mut_ptr(), context as *mut c_void);
        if answer == -(sys::FI_EAGAIN as isize) {
            return;
        }
        assert_eq!(answer, 0);
        self.next += 1;
        match &operation {
            Operation::Send(to) => {
                let id = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                assert!(self.sent_to(*to).contains_key(&id));
            }
            Operation::Write { writes, .. } => {
                for Write { slot, written, .. } in writes {
                    self.slots[*slot] = Slot { written: *written, busy: true };
                }
            }
            Operation::Read { reads, .. } => reads.iter().for_each(|read| self.slots[read.slot].busy = true),
            Operation::Count { counter, .. } => self.counted[*counter] += 1,
            Operation::Swap { word, .. } => self.words[*word].1 = true,
            _ => {}
        }
        self.operations.insert(context, (operation, bytes));
    }

    fn sent_to(&mut self, whom: Sender) -> &mut BTreeMap<u64, Message> {
        match whom {
            Sender::Other => &mut self.sent,
            Sender::Own => &mut self.to_itself,
        }
    }

    /// The number of a sender.
    fn number(&self, sender: Option<Sender>) -> u64 {
        match sender {
            None => FI_ADDR_UNSPEC,
            Some(Sender::Other) => self.other,
            Some(Sender::Own) => self.own,
        }
    }

    fn send(&mut self, whom: Sender, id: u64, tag: Option<u64>, len: usize, inject: bool) {
        let bytes = content(id, len);
        let (to, ep) = (self.number(Some(whom)), self.side.ep);
        let message = Message { tag, len, taken: None, delivered: false, next: self.next };
        if inject {
            let at = bytes.as_ptr().cast();
            let answer = match tag {
                Some(tag) => table!(ep, tagged.injectdata(at, len, id, to, tag)),
                None => table!(ep, msg.injectdata(at, len, id, to)),
            };
            if answer == 0 {
                self.sent_to(whom).insert(id, message);
                self.posted += 1;
            }
            return;
        }
        self.sent_to(whom).insert(id, message);
        let before = self.next;
        // Every third one is in two pieces, and short ones of those are copied at the call.
        let in_pieces = before.is_multiple_of(3);
        let copied = in_pieces && len <= 1_400;
        // Every other one of those has no entry, if there is a choice.
        let is_quiet = self.selective && in_pieces && before.is_multiple_of(2);
        let entry = if is_quiet { 0 } else { sys::FI_COMPLETION };
        self.post(Operation::Send(whom), bytes, |_, at, context| match tag {
            _ if in_pieces => {
                let pieces = halves(at, len);
                let flags = entry | sys::FI_REMOTE_CQ_DATA | if copied { sys::FI_INJECT } else { 0 };
                let (msg_iov, desc, iov_count, addr, data) = (pieces.as_ptr(), null_mut(), 2, to, id);
                match tag {
                    Some(tag) => {
                        let message = sys::fi_msg_tagged {
                            msg_iov,
                            desc,
                            iov_count,
                            addr,
                            tag,
                            ignore: 0,
                            context,
                            data,
                        };
                        table!(ep, tagged.sendmsg(&message, flags))
                    }
                    None => {
                        let message = sys::fi_msg { msg_iov, desc, iov_count, addr, context, data };
                        table!(ep, msg.sendmsg(&message, flags))
                    }
                }
            }
            Some(tag) => table!(ep, tagged.senddata(at.cast(), len, null_mut(), id, to, tag, context)),
            None => table!(ep, msg.senddata(at.cast(), len, null_mut(), id, to, context)),
        });
        if self.next == before {
            self.sent_to(whom).remove(&id);
            return;
        }
        self.posted += 1;
        if copied && let Some((_, bytes)) = self.operations.get_mut(&before) {
            // The model finds the message by its first bytes.
            bytes[8..].fill(0xee);
        }
        if is_quiet && let Some((_, bytes)) = self.operations.remove(&before) {
            // An entry would be one of an operation that has ended.
            self.quiet.push(bytes);
        }
    }

    fn taker(&mut self, pattern: Pattern, from: Option<Sender>, keeps: bool) -> usize {
        let (messages, missed) = (Vec::new(), Vec::new());
        let (many, ended, void) = (false, false, false);
        self.takers.push(Taker { pattern, from, messages, keeps, many, ended, void, missed });
        self.takers.len() - 1
    }

    fn receive(&mut self, pattern: Pattern, from: Option<Sender>, room: usize) {
        let (ep, taker, before) = (self.side.ep, self.taker(pattern, from, true), self.next);
        let whom = self.number(from);
        let in_pieces = before.is_multiple_of(3);
        self.post(Operation::Receive { taker, room }, vec![0; room], |_, at, context| match pattern {
            _ if in_pieces => {
                let (pieces, none) = (halves(at, room), null_mut());
                match pattern {
                    Some((tag, ignore)) => {
                        table!(ep, tagged.recvv(pieces.as_ptr(), none, 2, whom, tag, ignore, context))
                    }
                    None => table!(ep, msg.recvv(pieces.as_ptr(), none, 2, whom, context)),
                }
            }
            Some((tag, ignore)) => {
                table!(ep, tagged.recv(at.cast(), room, null_mut(), whom, tag, ignore, context))
            }
            None => table!(ep, msg.recv(at.cast(), room, null_mut(), whom, context)),
        });
        if self.next == before {
            self.takers.pop();
        }
    }

    /// Posts a receive for many messages.
    fn receive_many(&mut self, from: Option<Sender>) {
        let (taker, before) = (self.taker(None, from, true), self.next);
        self.takers[taker].many = true;
        self.post(Operation::Many { taker }, vec![0; MANY], |player, at, context| {
            // A server with little memory may never have room for one more.
            match player.call((None, from), at, MANY, context, sys::FI_MULTI_RECV) {
                answer if answer == -(sys::FI_ENOMEM as isize) => -(sys::FI_EAGAIN as isize),
                answer => answer,
            }
        });
        if self.next == before {
            self.takers.pop();
        }
    }

    /// `fi_recvmsg` and `fi_trecvmsg` with flags.
    fn call(
        &self,
        (pattern, from): (Pattern, Option<Sender>),
        at: *mut u8,
        len: usize,
        context: *mut c_void,
        flags: u64,
    ) -> isize {
        let piece = sys::iovec { iov_base: at.cast(), iov_len: len };
        let (msg_iov, desc, iov_count, addr) = (&raw const piece, null_mut(), 1, self.number(from));
        let flags = flags | sys::FI_COMPLETION;
        match pattern {
            Some((tag, ignore)) => {
                let message =
                    sys::fi_msg_tagged { msg_iov, desc, iov_count, addr, tag, ignore, context, data: 0 };
                table!(self.side.ep, tagged.recvmsg(&message, flags))
            }
            None => {
                let message = sys::fi_msg { msg_iov, desc, iov_count, addr, context, data: 0 };
                table!(self.side.ep, msg.recvmsg(&message, flags))
            }
        }
    }

    fn look(&mut self, other: &Player, pattern: Pattern, flags: u64) {
        let (taker, before) = (self.taker(pattern, None, flags != sys::FI_PEEK), self.next);
        // A message is not to be seen before what was posted before it, accesses to memory included.
        let accesses = other.operations.iter().filter(|(_, (operation, _))| operation.is_access());
        let oldest = accesses.map(|(context, _)| *context).min().unwrap_or(usize::MAX);
        let arrived = other.sent.iter().take_while(|(_, message)| {
            (message.delivered || message.taken.is_some()) && message.next <= oldest
        });
        let waits = |message: &Message| message.taken.is_none() && fits(message.tag, pattern);
        let waiting = arrived.filter(|(_, message)| waits(message)).map(|(id, _)| *id).collect();
        self.post(Operation::Look { taker, flags, waiting }, Vec::new(), |player, at, context| {
            player.call((pattern, None), at, 0, context, flags)
        });
        if self.next == before {
            self.takers.pop();
        }
    }

    /// Receives or discards a message that was claimed.
    fn settle(&mut self, which: usize, discard: bool) {
        let (context, id, pattern) = self.claims.swap_remove(which);
        let (flags, len) =
            if discard { (sys::FI_CLAIM | sys::FI_DISCARD, 0) } else { (sys::FI_CLAIM, LONGEST) };
        let mut bytes = vec![0; len];
        let answer = self.call((pattern, None), bytes.as_mut_ptr(), len, context as *mut c_void, flags);
        if answer == -(sys::FI_EAGAIN as isize) {
            self.claims.push((context, id, pattern));
            return;
        }
        assert_eq!(answer, 0);
        self.operations.insert(context, (Operation::Claimed { id, discard }, bytes));
    }

    /// Cancels a receive, or any operation but looks and receives for many messages.
    fn cancel(&mut self, random: &mut Random) {
        let only_receives = random.below(2) == 0;
        let can_be = |operation: &Operation| match operation {
            Operation::Receive { .. } => true,
            Operation::Many { .. } | Operation::Look { .. } | Operation::Claimed { .. } => false,
            operation => !only_receives && (operation.is_access() || matches!(operation, Operation::Send(_))),
        };
        let all = self.operations.iter().filter(|(_, (operation, _))| can_be(operation));
        let mut contexts: Vec<usize> = all.map(|(context, _)| *context).collect();
        contexts.sort_unstable();
        if contexts.is_empty() {
            return;
        }
        let context = contexts[random.below(contexts.len() as u64) as usize] as *mut c_void;
        // One that has begun, such as a receive that a message has met, goes on.
        cancel(&self.side, context);
    }

    /// The taker number `taker` has got, or seen, the message `id`, which begins at `offset` of its memory. Returns its length
    /// and its sender.
    fn take(
        &mut self,
        other: &mut Player,
        taker: usize,
        (id, tag): (u64, Option<u64>),
        offset: usize,
    ) -> (usize, Sender) {
        let (message, sender) = match self.to_itself.get_mut(&id) {
            Some(message) => (Some(message), Sender::Own),
            None => (other.sent.get_mut(&id), Sender::Other),
        };
        let message = message.unwrap_or_else(|| panic!("nobody has sent message {id}"));
        let entry = &mut self.takers[taker];
        let wanted = (entry.pattern, entry.from);
        assert!(entry.takes(message.tag, sender), "message {id} of {sender:?} does not fit {wanted:?}");
        if let Some(tag) = tag {
            assert_eq!(message.tag, Some(tag));
        }
        entry.messages.push((offset, id));
        if entry.keeps {
            assert_eq!(message.taken.replace(taker), None, "message {id} was received before");
        }
        (message.len, sender)
    }

    /// As [`Player::take`], of a message that was received whole or looked at, as the entry says.
    fn take_whole(&mut self, other: &mut Player, taker: usize, entry: &Entry, offset: usize) {
        let tag = (entry.flags & sys::FI_TAGGED != 0).then_some(entry.tag);
        let (len, sender) = self.take(other, taker, (entry.data, tag), offset);
        assert_eq!((entry.len, entry.source), (len, self.number(Some(sender))), "message {}", entry.data);
    }

    /// Takes the entries that are there.
    fn drain(&mut self, other: &mut Player) {
        while let Some((result, at)) = self.side.cq.read_at() {
            match result {
                Ok(entry) => self.succeeded(other, entry, at),
                Err(failed) => self.failed(other, failed),
            }
        }
    }

    fn succeeded(&mut self, other: &mut Player, entry: Entry, at: usize) {
        if entry.flags & sys::FI_REMOTE_WRITE != 0 {
            return self.announced.push(entry.data);
        }
        let (operation, bytes) =
            self.operations.remove(&entry.context).unwrap_or_else(|| panic!("{entry:?} has ended before"));
        match operation {
            Operation::Send(to) => {
                let id = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                self.sent_to(to).get_mut(&id).unwrap().delivered = true;
            }
            Operation::Receive { taker, .. } => {
                self.take_whole(other, taker, &entry, 0);
                assert!(bytes[..entry.len] == content(entry.data, entry.len), "message {}", entry.data);
            }
            Operation::Many { taker } => {
                let offset = at - bytes.as_ptr().addr();
                self.take_whole(other, taker, &entry, offset);
                let place = &bytes[offset..offset + entry.len];
                assert!(place == content(entry.data, entry.len), "message {}, one of many", entry.data);
                if entry.flags & sys::FI_MULTI_RECV == 0 {
                    self.operations.insert(entry.context, (Operation::Many { taker }, bytes));
                } else {
                    self.end_many(taker);
                }
            }
            Operation::Look { taker, flags, .. } => {
                let pattern = self.takers[taker].pattern;
                self.take_whole(other, taker, &entry, 0);
                if flags & sys::FI_CLAIM != 0 {
                    self.claims.push((entry.context, entry.data, pattern));
                }
            }
            Operation::Claimed { id, discard } => {
                assert_eq!(entry.data, id);
                if !discard {
                    assert!(bytes[..entry.len] == content(id, entry.len), "message {id} was claimed");
                }
            }
            Operation::Write { id, writes, pieces } => {
                self.accesses[1] += writes.len() as u64;
                for write in &writes {
                    self.slots[write.slot].busy = false;
                    assert!(is_there(&other.memory, write.slot, write.written), "write {id}: {write:?}");
                }
                self.count_kinds(WRITES, writes.iter().map(|write| write.written.1), pieces.len());
            }
            Operation::Read { reads, pieces } => {
                self.accesses[0] += reads.len() as u64;
                reads.iter().for_each(|read| self.slots[read.slot].busy = false);
                let count = self.count_read(&reads, &pieces, &bytes);
                assert!(count == reads.len(), "part {count} of a read: {reads:?}, in pieces of {pieces:?}");
                self.count_kinds(READS, reads.iter().map(|read| read.len), pieces.len());
            }
            Operation::Swap { word, compare, value } => {
                let (before, _) = self.words[word];
                let fetched = u64::from_le_bytes(bytes.try_into().unwrap());
                assert_eq!(fetched, before, "word {word}, compared with {compare}");
                let now = if compare == before { value } else { before };
                assert_eq!(number_at(&other.memory, word_at(word)), now, "word {word} was {before}");
                self.words[word] = (now, false);
                self.accesses[0] += 1;
                self.kinds[SWAPS + usize::from(compare != before)] += 1;
            }
            Operation::Count { fetches, counter } => {
                self.accesses[usize::from(!fetches)] += 1;
                self.kinds[COUNTS + usize::from(fetches)] += 1;
                if fetches {
                    self.fetched[counter].push(u64::from_le_bytes(bytes.try_into().unwrap()));
                }
            }
        }
    }

    /// A receive for many messages has ended.
    fn end_many(&mut self, taker: usize) {
        let entry = &mut self.takers[taker];
        (entry.ended, entry.void) = (true, entry.messages.is_empty());
        self.gathered += entry.messages.len();
    }

    fn failed(&mut self, other: &mut Player, failed: Failed) {
        let (operation, bytes) =
            self.operations.remove(&failed.context).unwrap_or_else(|| panic!("{failed:?} has ended before"));
        match (operation, failed.error) {
            (Operation::Receive { taker, .. }, sys::FI_ECANCELED) => {
                self.takers[taker].void = true;
                self.cancelled += 1;
            }
            (Operation::Many { taker }, sys::FI_ECANCELED) => self.end_many(taker),
            // Nobody has got it, or ever will.
            (Operation::Send(to), sys::FI_ECANCELED) => {
                let id = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                let message = self.sent_to(to).remove(&id).unwrap();
                assert_eq!(message.taken, None, "message {id} was cancelled, and received");
                self.cancelled += 1;
                self.unsent += 1;
            }
            // It has written the places before the one at which it had not begun, and nothing has changed there and behind it.
            (Operation::Write { id, writes, .. }, sys::FI_ECANCELED) => {
                let is_done = |write: &&Write| is_there(&other.memory, write.slot, write.written);
                let done = writes.iter().take_while(is_done).count();
                assert!(done < writes.len(), "write {id} was cancelled, and is done");
                for (number, write) in writes.iter().enumerate() {
                    let written = if number < done { write.written } else { write.before };
                    self.slots[write.slot] = Slot { written, busy: false };
                    assert!(
                        is_there(&other.memory, write.slot, written),
                        "write {id} was cancelled: {write:?}"
                    );
                }
                self.accesses[1] += done as u64;
                self.announcing.retain(|other| *other != id);
                self.cancelled += 1;
            }
            (Operation::Read { reads, pieces }, sys::FI_ECANCELED) => {
                let done = self.count_read(&reads, &pieces, &bytes);
                assert!(done < reads.len(), "a read was cancelled, and is done");
                reads.iter().for_each(|read| self.slots[read.slot].busy = false);
                self.accesses[0] += done as u64;
                self.cancelled += 1;
            }
            (Operation::Swap { word, .. }, sys::FI_ECANCELED) => {
                let (before, _) = self.words[word];
                assert_eq!(
                    number_at(&other.memory, word_at(word)),
                    before,
                    "a swap of word {word} was cancelled"
                );
                self.words[word].1 = false;
                self.cancelled += 1;
            }
            (Operation::Count { counter, .. }, sys::FI_ECANCELED) => {
                self.counted[counter] -= 1;
                self.cancelled += 1;
            }
            (Operation::Receive { taker, room }, TRUNCATED) => {
                let id = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                let (len, _) = self.take(other, taker, (id, None), 0);
                assert_eq!(failed.beyond, len - room);
                assert!(bytes == content(id, room), "the beginning of message {id}");
            }
            (Operation::Look { taker, waiting, .. }, sys::FI_ENOMSG) => {
                self.takers[taker].void = true;
                self.takers[taker].missed = waiting;
            }
            _ => panic!("{failed:?}"),
        }
    }

    /// A call that chance decides.
    fn play(&mut self, other: &Player, random: &mut Random, id: u64) {
        let pick = |random: &mut Random, of: &[usize]| of[random.below(of.len() as u64) as usize];
        let len = pick(random, &LENGTHS);
        let tag = (random.below(2) == 0).then(|| random.below(TAGS));
        let pattern = pattern(random);
        let whom = if random.below(4) == 0 { Sender::Own } else { Sender::Other };
        let from = [None, None, Some(Sender::Other), Some(whom)][random.below(4) as usize];
        match random.below(25) {
            0..=4 => self.send(whom, id, tag, len, false),
            5 => self.send(whom, id, tag, len.min(1_400), true),
            6..=9 => self.receive(pattern, from, LONGEST),
            10 => self.receive(pattern, from, 50),
            11 => self.look(other, pattern, sys::FI_PEEK),
            12 => self.look(other, pattern, sys::FI_PEEK | sys::FI_CLAIM),
            13 => self.look(other, pattern, sys::FI_PEEK | sys::FI_DISCARD),
            14 => self.cancel(random),
            15 => {
                if !self.claims.is_empty() {
                    let which = random.below(self.claims.len() as u64) as usize;
                    self.settle(which, random.below(3) == 0);
                }
            }
            16 => self.receive_many(from),
            _ => self.access(random, id, len),
        }
    }

    /// Whether the order in which messages of each sender were received is the one in which they were sent.
    fn check_order(&self, other: &Player) {
        for (at, taker) in self.takers.iter().enumerate().filter(|(_, taker)| !taker.void) {
            let (mut end, mut messages) = (0, taker.messages.clone());
            messages.sort_unstable();
            for (offset, id) in &messages {
                let (sent, sender) = match self.to_itself.get(id) {
                    Some(_) => (&self.to_itself, Sender::Own),
                    None => (&other.sent, Sender::Other),
                };
                self.check_place(at, sent, *id, sender);
                assert!(
                    !taker.many || *offset == end,
                    "message {id} lies at {offset}, not behind the others"
                );
                end = offset + sent[id].len;
            }
            // Those of one sender are in its order.
            for sent in [&self.to_itself, &other.sent] {
                let own = messages.iter().filter(|(_, id)| sent.contains_key(id));
                assert!(own.is_sorted_by_key(|(_, id)| *id), "number {at}: {messages:?}");
            }
        }
    }

    /// Whether the taker number `at` has rightly got the message `id`, one of those that `sender` has sent.
    fn check_place(&self, at: usize, sent: &BTreeMap<u64, Message>, id: u64, sender: Sender) {
        let taker = &self.takers[at];
        for (earlier, message) in sent.range(..id).filter(|(_, message)| taker.takes(message.tag, sender)) {
            let taken = message.taken.unwrap_or_else(|| panic!("message {earlier} was lost"));
            assert!(
                taken < at || taken == at && taker.many,
                "number {at} got message {id}, but {earlier} was there before: {taken} got that"
            );
        }
        let taken = sent[&id].taken.unwrap_or_else(|| panic!("message {id} was lost"));
        assert!(taken >= at, "number {at} has seen message {id}, which {taken} had got");
        for (before, idle) in self.takers[..at].iter().enumerate().filter(|(_, idle)| idle.waits()) {
            assert!(!idle.takes(sent[&id].tag, sender), "receive {before} waits, and {at} got message {id}");
        }
    }

    /// Whether looks that have found nothing had nothing to find: what had been delivered before went to others that were posted
    /// before them. Returns how often that says something.
    fn check_misses(&self, other: &Player) -> usize {
        let mut misses = 0;
        for (at, look) in self.takers.iter().enumerate() {
            for id in &look.missed {
                let taken = other.sent[id].taken;
                assert!(
                    taken.is_some_and(|taken| taken < at),
                    "look {at} found nothing, and message {id} was there"
                );
                misses += 1;
            }
        }
        misses
    }

    /// Posts a receive for each message of `other` that has none.
    fn receive_rest(&mut self, other: &Player) {
        for pattern in [None, Some((0, !FILLING_TAG))] {
            let left = |message: &&Message| message.taken.is_none() && fits(message.tag, pattern);
            let missing = other.sent.values().chain(self.to_itself.values()).filter(left).count();
            let is_one = |operation: &Operation| match operation {
                Operation::Receive { taker, .. } => {
                    let taker = &self.takers[*taker];
                    taker.pattern == pattern && taker.from.is_none()
                }
                _ => false,
            };
            let posted = self.operations.values().filter(|(operation, _)| is_one(operation)).count();
            for _ in posted..missing {
                self.receive(pattern, None, LONGEST);
            }
        }
    }

    /// Whether it waits for something that nobody has to receive: long messages are sent when they are received.
    fn is_busy(&self) -> bool {
        let waits = |operation: &Operation| {
            matches!(operation, Operation::Receive { .. } | Operation::Many { .. } | Operation::Send(_))
        };
        self.operations.values().any(|(operation, _)| !waits(operation))
    }

    fn sends(&self) -> bool {
        self.operations.values().any(|(operation, _)| matches!(operation, Operation::Send(_)))
    }
}

/// `fi_cancel`, of an operation that may have ended.
fn cancel(side: &Side, context: *mut c_void) {
    // SAFETY: the endpoint is open.
    let answer = unsafe { (*(*side.ep).ops).cancel.unwrap()(side.ep.cast(), context) };
    assert!(answer == 0 || answer == -(sys::FI_ENOENT as isize), "{answer}");
}
