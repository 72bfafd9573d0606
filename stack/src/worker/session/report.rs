//! Reports: what an application is told, as eight words.
//!
//! | word | bits | what |
//! |---|---|---|
//! | 0 | 0–7 | 1 connected, 2 sent, 3 received, 4 closed, 5 refused |
//! | | 8–15 | received: bit 0 tagged, bit 1 there is a sender |
//! | | 16–23 | status, or the reason of a refusal |
//! | | 24–31 | detail of the status, or the kind of command that was refused |
//! | | 32–63 | the operation or the connection |
//! | 1 | 0–31 | sent: retransmissions; received: sender; closed: peer |
//! | | 32–63 | received: length of the message |
//! | 2 | | received: tag |
//! | 3 | | received: header data |
//!
//! What a refusal has in words 1 to 7 stands in [`super::reason`].

use super::command::DescriptorError;
use super::reason::Reason;
use super::{Slot, bits};
use crate::fep::{Failure, ReceiveError, SendError};
use crate::packet::Addr;
use crate::wire::pds::NackCode;
use crate::wire::ses::ReturnCode;

/// What an application is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// A connection is open. Messages may have been posted on it before.
    Connected {
        /// Its number.
        connection: u32,
    },
    /// A message is sent, or will not be; the operation is free.
    Sent {
        /// Its number.
        operation: u32,
        /// Packets sent again.
        retransmissions: u32,
        /// How it went.
        status: Status,
    },
    /// A message is received, or none will be; the operation is free.
    Received {
        /// Its number.
        operation: u32,
        /// Who sent it.
        peer: Option<Addr>,
        /// Its tag.
        tag: Option<u64>,
        /// Its sender's 64 bits.
        header_data: u64,
        /// Its length, bytes; the memory may be shorter.
        len: u32,
        /// How it went.
        status: Status,
    },
    /// A connection is closed; its number is free.
    Closed {
        /// Its number.
        connection: u32,
        /// Its peer.
        peer: Addr,
        /// Why.
        status: Status,
    },
    /// A command was refused. If it was to connect, send or receive, its number is as it was before.
    Refused {
        /// The kind of command.
        request: Request,
        /// The operation or connection that it named.
        name: u32,
        /// Why.
        reason: Reason,
    },
}

/// How something went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// As asked.
    Ok,
    /// The peer did not answer.
    NoAnswer,
    /// The peer refused it for good.
    Refused(NackCode),
    /// The peer put it off for too long.
    Busy(NackCode),
    /// The peer granted no credit.
    NoCredit,
    /// The peer asked to close.
    ClosedByPeer,
    /// The peer's message layer answered with an error; BAD_PID if there is no such process.
    Answered(ReturnCode),
    /// It was cancelled.
    Cancelled,
    /// The message was longer than the memory, which holds its beginning.
    Truncated,
    /// The sender left, or fell silent, in the middle.
    PeerLost,
}

/// A kind of command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// None that exists.
    Unknown,
    /// To connect.
    Connect,
    /// To send.
    Send,
    /// To receive.
    Receive,
    /// To cancel.
    Cancel,
    /// To close.
    Close,
    /// To abort.
    Abort,
}

const STATUS: [&str; 10] = [
    "ok",
    "no answer",
    "refused",
    "put off",
    "no credit",
    "closed by the peer",
    "answered with an error",
    "cancelled",
    "longer than its memory",
    "the peer was lost",
];

impl core::fmt::Display for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (code, detail) = self.encode();
        match self {
            Status::Refused(_) | Status::Busy(_) | Status::Answered(_) => {
                write!(f, "{} ({detail:#04x})", STATUS[usize::from(code)])
            }
            _ => f.write_str(STATUS[usize::from(code)]),
        }
    }
}

impl Status {
    fn encode(self) -> (u8, u8) {
        match self {
            Status::Ok => (0, 0),
            Status::NoAnswer => (1, 0),
            Status::Refused(code) => (2, code.0),
            Status::Busy(code) => (3, code.0),
            Status::NoCredit => (4, 0),
            Status::ClosedByPeer => (5, 0),
            Status::Answered(code) => (6, code.0),
            Status::Cancelled => (7, 0),
            Status::Truncated => (8, 0),
            Status::PeerLost => (9, 0),
        }
    }

    fn decode(code: u8, detail: u8) -> Result<Status, DescriptorError> {
        Ok(match (code, detail) {
            (0, 0) => Status::Ok,
            (1, 0) => Status::NoAnswer,
            (2, code) => Status::Refused(NackCode(code)),
            (3, code) => Status::Busy(NackCode(code)),
            (4, 0) => Status::NoCredit,
            (5, 0) => Status::ClosedByPeer,
            (6, code) => Status::Answered(ReturnCode(code)),
            (7, 0) => Status::Cancelled,
            (8, 0) => Status::Truncated,
            (9, 0) => Status::PeerLost,
            _ => return Err(DescriptorError::Value("a status", code.into())),
        })
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Status {
        match failure {
            Failure::NoAnswer { .. } => Status::NoAnswer,
            Failure::Refused { code, .. } => Status::Refused(code),
            Failure::Busy { code, .. } => Status::Busy(code),
            Failure::NoCredit { .. } => Status::NoCredit,
            Failure::ClosedByPeer { .. } => Status::ClosedByPeer,
        }
    }
}

impl From<SendError> for Status {
    fn from(error: SendError) -> Status {
        match error {
            SendError::Failed(failure) => failure.into(),
            SendError::Answered(code) => Status::Answered(code),
            SendError::Cancelled => Status::Cancelled,
        }
    }
}

impl From<ReceiveError> for Status {
    fn from(error: ReceiveError) -> Status {
        match error {
            ReceiveError::Truncated { .. } => Status::Truncated,
            ReceiveError::PeerLost => Status::PeerLost,
            ReceiveError::Cancelled => Status::Cancelled,
        }
    }
}

impl<E: Into<Status>> From<Result<(), E>> for Status {
    fn from(result: Result<(), E>) -> Status {
        result.map_or_else(Into::into, |()| Status::Ok)
    }
}

const REQUESTS: [Request; 7] = [
    Request::Unknown,
    Request::Connect,
    Request::Send,
    Request::Receive,
    Request::Cancel,
    Request::Close,
    Request::Abort,
];

impl Request {
    /// The kind that the words of a command claim to be.
    pub(super) fn of(slot: &Slot) -> Request {
        REQUESTS.get(slot[0] as usize & 0xff).copied().unwrap_or(Request::Unknown)
    }
}

impl Report {
    /// Its words.
    pub fn encode(&self) -> Slot {
        let word0 = |kind: u8, flags: u8, (code, detail): (u8, u8), name: u32| {
            let low = u32::from_le_bytes([kind, flags, code, detail]);
            u64::from(low) | u64::from(name) << 32
        };
        match *self {
            Report::Connected { connection } => [word0(1, 0, (0, 0), connection), 0, 0, 0, 0, 0, 0, 0],
            Report::Sent { operation, retransmissions, status } => {
                [word0(2, 0, status.encode(), operation), retransmissions.into(), 0, 0, 0, 0, 0, 0]
            }
            Report::Received { operation, peer, tag, header_data, len, status } => {
                let flags = u8::from(tag.is_some()) | u8::from(peer.is_some()) << 1;
                let peer = u64::from(peer.map_or(0, |addr| addr.0));
                let word0 = word0(3, flags, status.encode(), operation);
                [word0, peer | u64::from(len) << 32, tag.unwrap_or(0), header_data, 0, 0, 0, 0]
            }
            Report::Closed { connection, peer, status } => {
                [word0(4, 0, status.encode(), connection), peer.0.into(), 0, 0, 0, 0, 0, 0]
            }
            Report::Refused { request, name, reason } => {
                let mut slot = reason.words();
                slot[0] = word0(5, 0, (reason.code(), request as u8), name);
                slot
            }
        }
    }

    /// The report that `slot` stands for.
    ///
    /// # Errors
    /// It stands for none.
    pub fn decode(slot: &Slot) -> Result<Report, DescriptorError> {
        let [kind, flags, code, detail] = (slot[0] as u32).to_le_bytes();
        let name = (slot[0] >> 32) as u32;
        let low = slot[1] as u32;
        let status = || Status::decode(code, detail);
        Ok(match kind {
            1 => Report::Connected { connection: name },
            2 => Report::Sent { operation: name, retransmissions: low, status: status()? },
            3 => Report::Received {
                operation: name,
                peer: (flags & 2 != 0).then_some(Addr(low)),
                tag: (flags & 1 != 0).then_some(slot[2]),
                header_data: slot[3],
                len: bits(slot[1], 32, 32) as u32,
                status: status()?,
            },
            4 => Report::Closed { connection: name, peer: Addr(low), status: status()? },
            5 => {
                let reason = Reason::decode(code, slot)?;
                let request = REQUESTS.get(usize::from(detail)).copied();
                let request = request.ok_or(DescriptorError::Value("a request", detail.into()))?;
                let refused = Report::Refused { request, name, reason };
                let encoded = refused.encode();
                match slot.iter().zip(&encoded).position(|(given, own)| given != own) {
                    Some(word) => return Err(DescriptorError::Reserved(word)),
                    None => refused,
                }
            }
            kind => return Err(DescriptorError::Kind(kind)),
        })
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use proptest::prelude::*;

    use super::super::reason::PLAIN;
    use super::*;
    use crate::worker::neighbours::NoWay;

    fn status() -> impl Strategy<Value = Status> {
        (0u8..10, any::<u8>()).prop_map(|(code, detail)| {
            Status::decode(code, detail).or_else(|_| Status::decode(code, 0)).unwrap()
        })
    }

    fn reason() -> impl Strategy<Value = Reason> {
        let no_way = (any::<(u32, u32, IpAddr)>(), 0..3).prop_map(|((peer, asked, hop), kind)| {
            let peer = Addr(peer);
            let why = match kind {
                0 => NoWay::Resolving { hop, asked },
                1 => NoWay::Unreachable { hop },
                _ => NoWay::Unknown(peer),
            };
            Reason::NoWay { peer, why }
        });
        prop_oneof![prop::sample::select(&PLAIN[..]), no_way]
    }

    proptest! {
        #[test]
        fn reports_survive_the_ring(
            (name, number, len) in any::<(u32, u32, u32)>(),
            (peer, tag, header_data) in any::<(Option<u32>, Option<u64>, u64)>(),
            (status, reason, request) in (status(), reason(), 0usize..7),
        ) {
            let reports = [
                Report::Connected { connection: name },
                Report::Sent { operation: name, retransmissions: number, status },
                Report::Received { operation: name, peer: peer.map(Addr), tag, header_data, len, status },
                Report::Closed { connection: name, peer: Addr(number), status },
                Report::Refused { request: REQUESTS[request], name, reason },
            ];
            for report in reports {
                prop_assert_eq!(Report::decode(&report.encode()), Ok(report));
            }
        }

        #[test]
        fn any_words_are_a_report_or_an_error(mut words in any::<Slot>(), kind in 0u64..8) {
            words[0] = words[0] & !0xff | kind;
            let _ = Report::decode(&words);
        }

        /// A refusal has one form; everything else is no report. Bits are set sparsely, so that both happen.
        #[test]
        fn refusals_have_one_form(
            (code, request, name) in (0u64..9, 0u64..8, any::<u32>()),
            (peer, kind, version) in (any::<u32>(), 0u64..5, prop_oneof![Just(0u64), Just(4), Just(6), 0u64..8]),
            rest in prop::array::uniform6(prop_oneof![4 => Just(0), 1 => any::<u32>().prop_map(u64::from), 1 => any::<u64>()]),
        ) {
            let mut slot = [5 | code << 16 | request << 24 | u64::from(name) << 32, 0, 0, 0, 0, 0, 0, 0];
            slot[1] = if code == 7 { u64::from(peer) | kind << 32 | version << 40 } else { 0 };
            slot[2..].copy_from_slice(&rest);
            if let Ok(report) = Report::decode(&slot) {
                prop_assert_eq!(report.encode(), slot);
            }
        }
    }

    #[test]
    fn refusals_that_make_no_sense_are_named() {
        let slot =
            |word1: u64, rest: [u64; 3]| [5 | 7 << 16 | 1 << 24, word1, rest[0], rest[1], rest[2], 0, 0, 0];
        let decode = |word1, rest| Report::decode(&slot(word1, rest));
        let v4 = 4 << 40;
        let hop = IpAddr::from([10, 0, 0, 2]);
        let reason = Reason::NoWay { peer: Addr(9), why: NoWay::Resolving { hop, asked: 2 } };
        let refused = Report::Refused { request: Request::Connect, name: 0, reason };
        assert_eq!(decode(9 | 1 << 32 | v4, [2, 0x0a00_0002, 0]), Ok(refused));
        assert_eq!(decode(9 | v4, [0; 3]), Err(DescriptorError::Value("a lack of a way", 0)));
        assert_eq!(decode(9 | 2 << 32 | 5 << 40, [0; 3]), Err(DescriptorError::Value("an IP version", 5)));
        assert_eq!(
            decode(9 | 2 << 32 | v4, [0, 1 << 32, 0]),
            Err(DescriptorError::Reserved(3)),
            "longer than IPv4"
        );
        assert_eq!(
            decode(9 | 2 << 32 | v4, [1, 0, 0]),
            Err(DescriptorError::Reserved(2)),
            "it is not asked any more"
        );
        assert_eq!(
            decode(9 | 3 << 32 | v4, [0; 3]),
            Err(DescriptorError::Reserved(1)),
            "nobody is asked for"
        );
        assert_eq!(Report::decode(&[5, 1, 0, 0, 0, 0, 0, 0]), Err(DescriptorError::Reserved(1)));
    }
}
