//! What requests and answers look like. All numbers have their lowest byte first.
//!
//! | request | bytes | | answer | bytes |
//! |---|---|---|---|---|
//! | kind: 0 to ask whether the process is there, and has the requests whose numbers follow, 1 to read, 2 to write, 3 for an atomic operation, 4 to fetch a message, 5 to say which process this is | 1 | | code of the response, as UET has them | 1 |
//! | flags: 1 the access is announced with data, 2 what was there comes back, 4 there is a value to compare with, or the end of the stand-in, or the life of the process that is asked or says so, 8 all pieces of the access have been done | 1 | | 1 if the access is to be counted when all of it has been done | 1 |
//! | operation and datatype of an atomic operation, as UET has them; or why the asker has none of the message, if it says so: 1 the receive has not the room, 2 it could not be fetched | 2 | | zero | 2 |
//! | number that the answer names, or of the question that is answered | 4 | | what comes back: its length | 4 |
//! | key, or the header data of the stand-in, or how much of the [budget](super::super::budgets) is to be taken or was | 8 | | what comes back | as it says |
//! | where the whole access begins, or the tag of the message, or the epoch of the budget, and behind it the number of the count | 8 | | | |
//! | length of the whole access, or of the longest message that there is memory for | 4 | | | |
//! | where in it this piece begins, and its length | 8 | | | |
//! | zero | 4 | | | |
//! | data to announce, or the budget, or how much of it was sent | 8 | | | |
//! | value to compare with, or the last bytes of the stand-in, or the life of a process | 16 | | | |
//! | what is written, the operands, or the numbers | as the length of the piece says | | | |

use weft::core::wire::ses::ReturnCode;
use weft::{AtomicOp, AtomicType};

use super::super::budgets::{Told, Wanted};
use super::super::stand_in::Untaken;

/// Bytes before what is written.
pub(super) const REQUEST: usize = 64;
/// Bytes before what comes back.
pub(super) const ANSWER: usize = 8;

const ANNOUNCED: u8 = 1;
const FETCHES: u8 = 2;
const COMPARES: u8 = 4;
const DONE: u8 = 8;

/// A piece of an access, or a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) kind: Kind,
    /// The number that the answer names.
    pub(super) number: u32,
    pub(super) key: u64,
    /// Where the whole access begins, and its length: all of it is authorised with each piece.
    pub(super) offset: u64,
    pub(super) total: u32,
    /// Where in the access the piece begins, and its length.
    pub(super) at: u32,
    pub(super) len: u32,
    /// What the owner's queue is told when this piece is done, the last one.
    pub(super) data: Option<u64>,
    /// It asks for nothing, and says that all pieces of the access have been done.
    pub(super) is_done: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Whether the process is there: it needs no answer, as who sends it learns that it was delivered. Requests that it names
    /// and the process does not have are answered.
    Question {
        /// The life that the asker knows of the process. A process with another life answers with its own, and with the number
        /// of the question. With 0 the asker knows none, and any process answers.
        life: Option<u64>,
    },
    Read,
    Write,
    Atomic {
        op: AtomicOp,
        datatype: AtomicType,
        compare: Option<u128>,
        fetch: bool,
    },
    /// As a read, of a message of the peer for the asker. The key is the header data of what stands for it, and the offset its tag.
    Message {
        /// The last bytes of the stand-in, if the asker has them: if not, it wants none of the message.
        end: Option<u128>,
        /// Why it has none of the message.
        untaken: Option<Untaken>,
    },
    /// The life of the process that says so, a random number that no other has. It needs no answer.
    Here {
        life: u64,
    },
}

impl Kind {
    /// Whether bytes come back that are as long as the piece.
    pub(super) fn brings(self) -> bool {
        matches!(self, Kind::Read | Kind::Message { .. })
    }
}

/// The end of a piece of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) code: ReturnCode,
    /// Whether the owner counts accesses, and has to be told when all pieces of this one have been done.
    pub(super) counts: bool,
    /// Bytes that come back.
    pub(super) len: u32,
}

impl Request {
    /// A question.
    pub(super) const QUESTION: Request = Request {
        kind: Kind::Question { life: None },
        number: 0,
        key: 0,
        offset: 0,
        total: 0,
        at: 0,
        len: 0,
        data: None,
        is_done: false,
    };

    /// Whether bytes follow.
    pub(super) fn carries(&self) -> bool {
        matches!(self.kind, Kind::Question { .. } | Kind::Write | Kind::Atomic { .. })
    }

    /// Asks how much of the budget was taken.
    pub(super) fn wanting(self, wanted: Wanted) -> Request {
        let sent = Some(wanted.sent).filter(|_| wanted.epoch != 0);
        Request { key: wanted.taken, offset: wanted.epoch.into(), data: sent, ..self }
    }

    /// What a question asks of the budget.
    pub(super) fn wanted(&self) -> Option<Wanted> {
        let epoch = u32::try_from(self.offset).ok().filter(|epoch| *epoch != 0)?;
        Some(Wanted { epoch, taken: self.key, sent: self.data? })
    }

    /// Says how much of the budget was taken, and how long messages may be.
    pub(super) fn telling(self, told: &Told) -> Request {
        let offset = u64::from(told.epoch) | u64::from(told.count) << 32;
        Request { key: told.taken, offset, total: told.longest, data: Some(told.budget), ..self }
    }

    /// What an answer to a question says of the budget.
    pub(super) fn told(&self) -> Option<Told> {
        let (epoch, count) = (self.offset as u32, (self.offset >> 32) as u32);
        Some(Told { epoch, taken: self.key, budget: self.data?, count, longest: self.total })
    }

    pub(super) fn emit(&self) -> [u8; REQUEST] {
        let (kind, op, datatype, compare, fetch) = match self.kind {
            Kind::Question { life } => (0, 0, 0, life.map(u128::from), false),
            Kind::Here { life } => (5, 0, 0, Some(u128::from(life)), false),
            Kind::Read => (1, 0, 0, None, false),
            Kind::Write => (2, 0, 0, None, false),
            Kind::Atomic { op, datatype, compare, fetch } => (3, op.0, datatype.0, compare, fetch),
            Kind::Message { end, untaken } => (4, Untaken::number(untaken), 0, end, false),
        };
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = flag(self.data.is_some(), ANNOUNCED)
            | flag(fetch, FETCHES)
            | flag(compare.is_some(), COMPARES)
            | flag(self.is_done, DONE);
        let mut bytes = [0; REQUEST];
        bytes[..4].copy_from_slice(&[kind, flags, op, datatype]);
        bytes[4..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.key.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.total.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.at.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.len.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.data.unwrap_or(0).to_le_bytes());
        bytes[48..].copy_from_slice(&compare.unwrap_or(0).to_le_bytes());
        bytes
    }

    /// The request at the beginning of a message of `len` bytes; none if it is no request.
    pub(super) fn parse(bytes: &[u8; REQUEST], len: u32) -> Option<Request> {
        let (word, long) = (
            |at: usize| u32::from_le_bytes(four(bytes, at)),
            |at: usize| {
                u64::from(u32::from_le_bytes(four(bytes, at)))
                    | u64::from(u32::from_le_bytes(four(bytes, at + 4))) << 32
            },
        );
        let has = |flag| bytes[1] & flag != 0;
        let compare = u128::from(long(48)) | u128::from(long(56)) << 64;
        let kind = match bytes[0] {
            0 => Kind::Question { life: has(COMPARES).then_some(compare as u64) },
            1 => Kind::Read,
            2 => Kind::Write,
            3 => Kind::Atomic {
                op: AtomicOp(bytes[2]),
                datatype: AtomicType(bytes[3]),
                compare: has(COMPARES).then_some(compare),
                fetch: has(FETCHES),
            },
            5 => Kind::Here { life: compare as u64 },
            4 => Kind::Message { end: has(COMPARES).then_some(compare), untaken: Untaken::of(bytes[2]) },
            _ => return None,
        };
        let request = Request {
            kind,
            number: word(4),
            key: long(8),
            offset: long(16),
            total: word(24),
            at: word(28),
            len: word(32),
            data: has(ANNOUNCED).then_some(long(40)),
            is_done: has(DONE),
        };
        let carried = if request.carries() { request.len } else { 0 };
        let fits = u64::from(request.at) + u64::from(request.len) <= u64::from(request.total);
        (fits && u64::from(len) == REQUEST as u64 + u64::from(carried)).then_some(request)
    }
}

impl Answer {
    pub(super) fn emit(self) -> [u8; ANSWER] {
        let mut bytes = [0; ANSWER];
        (bytes[0], bytes[1]) = (self.code.0, u8::from(self.counts));
        bytes[4..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// The answer at the beginning of a message of `len` bytes; none if it is no answer.
    pub(super) fn parse(bytes: &[u8; ANSWER], len: u32) -> Option<Answer> {
        let (code, counts) = (ReturnCode(bytes[0]), bytes[1] != 0);
        let answer = Answer { code, counts, len: u32::from_le_bytes(four(bytes, 4)) };
        (u64::from(len) == ANSWER as u64 + u64::from(answer.len)).then_some(answer)
    }
}

fn four(bytes: &[u8], at: usize) -> [u8; 4] {
    [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_were_written() {
        let kinds = [
            Kind::Question { life: Some(9) },
            Kind::Here { life: u64::MAX },
            Kind::Read,
            Kind::Write,
            Kind::Atomic {
                op: AtomicOp::SUM,
                datatype: AtomicType::UINT64,
                compare: Some(u128::MAX - 7),
                fetch: true,
            },
            Kind::Message { end: Some(u128::MAX - 9), untaken: None },
            Kind::Message { end: None, untaken: Some(Untaken::TooLong) },
            Kind::Message { end: Some(0), untaken: Some(Untaken::Aborted) },
        ];
        let writes = |kind| (kind == Kind::Write).then_some(1 << 40);
        for (kind, data) in kinds.map(|kind| (kind, writes(kind))) {
            let (key, offset) = (u64::MAX - 1, 1 << 45);
            let is_done = kind == Kind::Write;
            let request = Request { kind, number: 7, key, offset, total: 90, at: 30, len: 60, data, is_done };
            let len = REQUEST as u32 + if request.carries() { 60 } else { 0 };
            assert_eq!(Request::parse(&request.emit(), len), Some(request));
            assert_eq!(Request::parse(&request.emit(), len + 1), None);
            let beyond = Request { at: 31, ..request };
            assert_eq!(Request::parse(&beyond.emit(), len), None);
        }
        let wanted = Wanted { epoch: 7, taken: 1 << 40, sent: 1 << 41 };
        let emitted = Request::QUESTION.wanting(wanted).emit();
        assert_eq!(
            Request::parse(&emitted, REQUEST as u32).and_then(|request| request.wanted()),
            Some(wanted)
        );
        assert_eq!(Request::QUESTION.wanting(Wanted::default()), Request::QUESTION);
        assert_eq!((Request::QUESTION.wanted(), Request::QUESTION.told()), (None, None));
        let told = Told { epoch: u32::MAX, taken: u64::MAX, budget: 3, count: 9, longest: 11 };
        let emitted = Request::QUESTION.telling(&told).emit();
        assert_eq!(Request::parse(&emitted, REQUEST as u32).and_then(|request| request.told()), Some(told));
    }

    #[test]
    fn answers_are_read_as_they_were_written() {
        let answer = Answer { code: ReturnCode::BAD_MKEY, counts: true, len: 3 };
        assert_eq!(Answer::parse(&answer.emit(), 11), Some(answer));
        assert_eq!(Answer::parse(&answer.emit(), 8), None);
    }
}
