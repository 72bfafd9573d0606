//! Reports: the ends of what an application asked for, as eight words.
//!
//! | word | bits | meaning |
//! |---|---|---|
//! | 0 | 0–7 | 1 connected, 2 sent, 3 received, 4 closed, 5 refused, 6 peer, 7 peeked |
//! | | 8–15 | received and peeked: bit 0 tagged, bit 1 there is a sender; received: bit 2 the receive goes on; peeked: bit 3 claimed |
//! | | 16–23 | sent, received and closed: code of the outcome; refused: code of the error |
//! | | 24–31 | sent, received and closed: detail of the outcome; refused: kind of the command |
//! | | 32–63 | number of the operation or the connection |
//! | 1 | 0–31 | sent: retransmissions; received and peeked: sender; closed and peer: address of the peer |
//! | | 32–63 | received and peeked: length of the message |
//! | 2 | | received and peeked: tag |
//! | 3 | | received and peeked: header data |
//! | 4 | | peeked: claim |
//! | 4–6 | | sent, received and closed: outcome |
//! | 7 | 0–15 | received and peeked: the sender's process |
//! | | 32–63 | received: where the message begins in the memory of its receive, bytes |
//!
//! The outcomes stand in `outcome.rs`, the errors of refusals in `refusal.rs`. Everything else is 0, and no report if
//! it is not.

use super::command::{DescriptorError, process};
use super::{Slot, bits, outcome, refusal};
use crate::fep::{CallError, Failure, ReceiveError, SendError};
use crate::packet::Addr;
use crate::ses::{Claim, Source, Waiting};

/// The end of something that an application asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// A connection is open. Messages may have been posted on it before.
    Connected {
        /// The connection's number.
        connection: u32,
    },
    /// All of a message has arrived, or it failed; or a datagram has left. The number of the operation is free.
    Sent {
        /// The operation's number.
        operation: u32,
        /// How many packets were sent again on its behalf.
        retransmissions: u32,
        /// Whether all of it has arrived.
        result: Result<(), SendError>,
    },
    /// A message or a datagram was received, or will not be. The number of the operation is free, unless the receive goes on.
    Received {
        /// The operation's number.
        operation: u32,
        /// The sender; none if no message has met the receive.
        source: Option<Source>,
        /// The message's tag, if it has one.
        tag: Option<u64>,
        /// The 64 bits that the sender posted with the message.
        header_data: u64,
        /// The message's length in bytes; the memory holds its beginning if it is shorter.
        len: u32,
        /// Where the message begins in the memory of its receive, bytes: not 0 only if that is one for many messages.
        offset: u32,
        /// Whether the receive goes on: the number of the operation is not free yet.
        more: bool,
        /// Whether the memory holds the whole message.
        result: Result<(), ReceiveError>,
    },
    /// Messages that wait were looked at. The number of the operation is free.
    Peeked {
        /// The operation's number.
        operation: u32,
        /// The message that was found.
        message: Option<Waiting>,
        /// Its claim, if it was claimed.
        claim: Option<Claim>,
    },
    /// A connection is closed. Its number is free.
    Closed {
        /// The connection's number.
        connection: u32,
        /// Address of the peer.
        peer: Addr,
        /// Why it is closed, if the application has not asked for it.
        result: Result<(), Failure>,
    },
    /// A peer is in the address book. The number of the operation is free.
    Peer {
        /// The operation's number.
        operation: u32,
        /// The peer's address, to connect to.
        addr: Addr,
    },
    /// A command was refused. The number that it gave to a connection, a message, a receive or a peer is free again.
    Refused {
        /// The kind of the command.
        request: Request,
        /// The number of the operation or connection that the command named.
        number: u32,
        /// Why it was refused.
        error: CallError,
    },
}

/// A kind of command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A kind that does not exist.
    Unknown,
    /// To open a connection.
    Connect,
    /// To post a message.
    Send,
    /// To post a receive.
    Receive,
    /// To cancel an operation.
    Cancel,
    /// To close a connection.
    Close,
    /// To abort a connection.
    Abort,
    /// To enter a peer.
    Peer,
    /// To look for a message that waits.
    Peek,
    /// To receive a message that was claimed.
    ReceiveClaimed,
    /// To drop a message that was claimed.
    Discard,
    /// To post a datagram.
    SendDatagram,
    /// To post a receive of a datagram.
    ReceiveDatagram,
}

pub(super) const REQUESTS: [Request; 13] = [
    Request::Unknown,
    Request::Connect,
    Request::Send,
    Request::Receive,
    Request::Cancel,
    Request::Close,
    Request::Abort,
    Request::Peer,
    Request::Peek,
    Request::ReceiveClaimed,
    Request::Discard,
    Request::SendDatagram,
    Request::ReceiveDatagram,
];

impl Request {
    /// Whether it posts an operation, which ends if the command is refused.
    pub fn posts_operation(self) -> bool {
        match self {
            Request::Send
            | Request::Receive
            | Request::Peer
            | Request::Peek
            | Request::ReceiveClaimed
            | Request::SendDatagram
            | Request::ReceiveDatagram => true,
            Request::Connect
            | Request::Cancel
            | Request::Close
            | Request::Abort
            | Request::Discard
            | Request::Unknown => false,
        }
    }

    /// The kind that the words of a command claim to be.
    pub(super) fn of(slot: &Slot) -> Request {
        REQUESTS.get(slot[0] as usize & 0xff).copied().unwrap_or(Request::Unknown)
    }
}

const CONNECTED: u8 = 1;
const SENT: u8 = 2;
const RECEIVED: u8 = 3;
const CLOSED: u8 = 4;
const REFUSED: u8 = 5;
const PEER: u8 = 6;
const PEEKED: u8 = 7;

const TAGGED: u8 = 1;
const HAS_SENDER: u8 = 2;
const MORE: u8 = 4;
const CLAIMED: u8 = 8;

fn word0(kind: u8, flags: u8, code: u8, detail: u8, number: u32) -> u64 {
    u64::from(u32::from_le_bytes([kind, flags, code, detail])) | u64::from(number) << 32
}

impl Report {
    /// The report's words.
    // Most are of a kind that the caller knows.
    #[inline(always)]
    pub fn encode(&self) -> Slot {
        match *self {
            Report::Connected { connection } => [word0(CONNECTED, 0, 0, 0, connection), 0, 0, 0, 0, 0, 0, 0],
            Report::Sent { operation, retransmissions, result } => {
                let outcome::Outcome { code, detail, words: [word4, word5, word6] } =
                    outcome::of_send(result);
                let word0 = word0(SENT, 0, code, detail, operation);
                [word0, retransmissions.into(), 0, 0, word4, word5, word6, 0]
            }
            Report::Received { operation, source, tag, header_data, len, offset, more, result } => {
                let outcome::Outcome { code, detail, words: [word4, word5, word6] } =
                    outcome::of_receive(result);
                let tagged = if tag.is_some() { TAGGED } else { 0 };
                let more = if more { MORE } else { 0 };
                let flags = tagged | more | if source.is_some() { HAS_SENDER } else { 0 };
                let word0 = word0(RECEIVED, flags, code, detail, operation);
                let (peer, process) = source.map_or((0, 0), |source| (source.peer.0, source.process));
                let word1 = u64::from(peer) | u64::from(len) << 32;
                let word7 = u64::from(process) | u64::from(offset) << 32;
                [word0, word1, tag.unwrap_or(0), header_data, word4, word5, word6, word7]
            }
            Report::Peeked { operation, message, claim } => {
                let claimed = if claim.is_some() { CLAIMED } else { 0 };
                let claim = claim.map_or(0, Claim::to_bits);
                let Some(Waiting { source, tag, header_data, len }) = message else {
                    return [word0(PEEKED, claimed, 0, 0, operation), 0, 0, 0, claim, 0, 0, 0];
                };
                let flags = claimed | HAS_SENDER | if tag.is_some() { TAGGED } else { 0 };
                let word1 = u64::from(source.peer.0) | u64::from(len) << 32;
                let (word0, process) = (word0(PEEKED, flags, 0, 0, operation), source.process.into());
                [word0, word1, tag.unwrap_or(0), header_data, claim, 0, 0, process]
            }
            Report::Closed { connection, peer, result } => {
                let outcome::Outcome { code, detail, words: [word4, word5, word6] } =
                    outcome::of_connection(result);
                let word0 = word0(CLOSED, 0, code, detail, connection);
                [word0, peer.0.into(), 0, 0, word4, word5, word6, 0]
            }
            Report::Peer { operation, addr } => {
                [word0(PEER, 0, 0, 0, operation), addr.0.into(), 0, 0, 0, 0, 0, 0]
            }
            Report::Refused { request, number, error } => {
                let (code, mut slot) = refusal::encode(error);
                slot[0] = word0(REFUSED, 0, code, request as u8, number);
                slot
            }
        }
    }

    /// The report that `slot` stands for.
    ///
    /// # Errors
    /// It stands for none: each report has one form.
    pub fn decode(slot: &Slot) -> Result<Report, DescriptorError> {
        let report = Report::decode_meaning(slot)?;
        match slot.iter().zip(&report.encode()).position(|(given, own)| given != own) {
            Some(word) => Err(DescriptorError::Reserved(word)),
            None => Ok(report),
        }
    }

    /// As [`Report::decode`]; bits that mean nothing are ignored.
    fn decode_meaning(slot: &Slot) -> Result<Report, DescriptorError> {
        let [kind, flags, code, detail] = (slot[0] as u32).to_le_bytes();
        let number = (slot[0] >> 32) as u32;
        let low = slot[1] as u32;
        let source = || match flags & HAS_SENDER {
            0 => Ok(None),
            _ => Ok(Some(Source { peer: Addr(low), process: process(bits(slot[7], 0, 32))? })),
        };
        let (tag, header_data) = ((flags & TAGGED != 0).then_some(slot[2]), slot[3]);
        let len = bits(slot[1], 32, 32) as u32;
        Ok(match kind {
            CONNECTED => Report::Connected { connection: number },
            SENT => Report::Sent { operation: number, retransmissions: low, result: outcome::send(slot)? },
            RECEIVED => Report::Received {
                operation: number,
                source: source()?,
                tag,
                header_data,
                len,
                offset: bits(slot[7], 32, 32) as u32,
                more: flags & MORE != 0,
                result: outcome::receive(slot)?,
            },
            PEEKED => Report::Peeked {
                operation: number,
                message: source()?.map(|source| Waiting { source, tag, header_data, len }),
                claim: (flags & CLAIMED != 0).then_some(Claim::from_bits(slot[4])),
            },
            CLOSED => {
                Report::Closed { connection: number, peer: Addr(low), result: outcome::connection(slot)? }
            }
            PEER => Report::Peer { operation: number, addr: Addr(low) },
            REFUSED => {
                let request = REQUESTS.get(usize::from(detail)).copied();
                let request = request.ok_or(DescriptorError::Value("a request", detail.into()))?;
                Report::Refused { request, number, error: refusal::decode(code, slot)? }
            }
            kind => return Err(DescriptorError::Kind(kind)),
        })
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use proptest::prelude::*;
    use weft_cc::Span;

    use super::*;
    use crate::fep::{MAX_PROCESS, PeerRefusal, Resource, Unreachable};
    use crate::wire::pds::{NackCode, PdcId, Psn};
    use crate::wire::ses::ReturnCode;

    fn failure() -> impl Strategy<Value = Failure> {
        (0..7, any::<(u16, u32, u32)>(), any::<(u8, u8, u64)>()).prop_map(
            |(kind, (pdc, peer, psn), (sent, code, waited))| {
                let (pdc, peer, psn) = (PdcId(pdc), Addr(peer), Psn(psn));
                let (code, waited) = (NackCode(code), Span::from_ps(waited));
                match kind {
                    0 => Failure::NoAnswer { pdc, peer, psn, waited, sent },
                    1 => Failure::Refused { pdc, peer, psn, code },
                    2 => Failure::Busy { pdc, peer, psn, code, waited },
                    3 => Failure::NoCredit { pdc, peer, psn, waited },
                    4 => {
                        let (len, probed) = (waited.as_ps() as u32, code.0 & 1 == 1);
                        Failure::NoProgress { pdc, peer, psn, len, sent, probed, waited }
                    }
                    5 => Failure::FalseAck { pdc, peer, psn },
                    _ => Failure::ClosedByPeer { pdc, peer },
                }
            },
        )
    }

    fn closed() -> impl Strategy<Value = Result<(), Failure>> {
        prop_oneof![Just(Ok(())), failure().prop_map(Err)]
    }

    fn sent() -> impl Strategy<Value = Result<(), SendError>> {
        prop_oneof![
            1 => Just(Ok(())),
            4 => failure().prop_map(|failure| Err(SendError::Failed(failure))),
            1 => any::<u8>().prop_map(|code| Err(SendError::Answered(ReturnCode(code)))),
            1 => Just(Err(SendError::Cancelled)),
        ]
    }

    fn received() -> impl Strategy<Value = Result<(), ReceiveError>> {
        prop_oneof![
            Just(Ok(())),
            any::<(u32, u32)>().prop_map(|(len, room)| Err(ReceiveError::Truncated { len, room })),
            Just(Err(ReceiveError::PeerLost)),
            Just(Err(ReceiveError::Cancelled)),
        ]
    }

    fn refusal() -> impl Strategy<Value = CallError> {
        let plain = [
            CallError::NotOpen,
            CallError::TooLong,
            CallError::TooLate,
            CallError::Malformed,
            CallError::OutsideMemory,
            CallError::ReadOnly,
            CallError::NotDivisible,
            CallError::NotClaimed,
            CallError::DatagramTooLong { most: 4096 },
        ];
        let unreachable = (any::<(u32, u32, IpAddr)>(), 0..3).prop_map(|((peer, asked, hop), kind)| {
            let peer = Addr(peer);
            let why = match kind {
                0 => Unreachable::Resolving { hop, asked },
                1 => Unreachable::NoAnswer { hop },
                _ => Unreachable::Unknown(peer),
            };
            CallError::Unreachable { peer, why }
        });
        prop_oneof![
            prop::sample::select(plain.to_vec()),
            (prop::sample::select(&Resource::ALL[..]), any::<usize>())
                .prop_map(|(what, limit)| CallError::Limit { what, limit }),
            any::<u16>().prop_map(CallError::ProcessOpen),
            any::<u16>().prop_map(CallError::ProcessNotOpen),
            any::<u16>().prop_map(CallError::NoSuchProcess),
            any::<(u32, u32)>().prop_map(|(number, count)| CallError::NoSuchNumber { number, count }),
            any::<u32>().prop_map(CallError::NumberInUse),
            any::<u32>().prop_map(CallError::NumberNotInUse),
            prop::sample::select(&PeerRefusal::ALL[..]).prop_map(CallError::Peer),
            unreachable,
        ]
    }

    proptest! {
        #[test]
        fn a_decoded_report_is_the_one_that_was_encoded(
            (number, other, len) in any::<(u32, u32, u32)>(),
            (tag, header_data) in any::<(Option<u64>, u64)>(),
            source in prop::option::of((any::<u32>(), 0..=MAX_PROCESS)),
            (sent, received, closed) in (sent(), received(), closed()),
            (error, request) in (refusal(), 0..REQUESTS.len()),
        ) {
            let source = source.map(|(peer, process)| Source { peer: Addr(peer), process });
            let reports = [
                Report::Connected { connection: number },
                Report::Sent { operation: number, retransmissions: other, result: sent },
                Report::Received {
                    operation: number,
                    source,
                    tag,
                    header_data,
                    len,
                    offset: other,
                    more: len % 2 == 0,
                    result: received,
                },
                Report::Peeked {
                    operation: number,
                    message: source.map(|source| Waiting { source, tag, header_data, len }),
                    claim: source.map(|_| Claim::from_bits(header_data)),
                },
                Report::Closed { connection: number, peer: Addr(other), result: closed },
                Report::Peer { operation: number, addr: Addr(other) },
                Report::Refused { request: REQUESTS[request], number, error },
            ];
            for report in reports {
                prop_assert_eq!(Report::decode(&report.encode()), Ok(report));
            }
            let _ = (error.to_string(), format!("{sent:?}"));
        }

        /// Each report has one form, and everything else is an error. Bits are set sparsely, so that both happen.
        #[test]
        fn any_words_are_a_report_in_its_only_form_or_an_error(
            (kind, flags) in (0u64..9, prop_oneof![3 => Just(0u64), 1 => 0u64..17]),
            (code, detail) in (0u64..16, prop_oneof![2 => Just(0u64), 1 => 0u64..10, 1 => 0u64..256]),
            number in any::<u32>(),
            words in prop::array::uniform7(prop_oneof![
                4 => Just(0),
                1 => 0u64..16,
                1 => any::<u32>().prop_map(u64::from),
                1 => (0u64..5, 0u64..8, any::<u32>()).prop_map(|(a, b, c)| a << 32 | b << 40 | u64::from(c)),
                1 => any::<u64>(),
            ]),
        ) {
            let mut slot = [kind | flags << 8 | code << 16 | detail << 24 | u64::from(number) << 32, 0, 0, 0, 0, 0, 0, 0];
            slot[1..].copy_from_slice(&words);
            if let Ok(report) = Report::decode(&slot) {
                prop_assert_eq!(report.encode(), slot);
                let _ = format!("{report:?}");
                if let Report::Refused { error, .. } = report {
                    let _ = error.to_string();
                }
            }
        }
    }

    #[test]
    fn words_that_are_no_report_are_refused_with_their_place() {
        let slot =
            |word1: u64, rest: [u64; 3]| [5 | 13 << 16 | 1 << 24, word1, rest[0], rest[1], rest[2], 0, 0, 0];
        let decode = |word1, rest| Report::decode(&slot(word1, rest));
        let v4 = 4 << 40;
        let hop = IpAddr::from([10, 0, 0, 2]);
        let error = CallError::Unreachable { peer: Addr(9), why: Unreachable::Resolving { hop, asked: 2 } };
        let refused = Report::Refused { request: Request::Connect, number: 0, error };
        assert_eq!(decode(9 | 1 << 32 | v4, [2, 0x0a00_0002, 0]), Ok(refused));
        let no_kind = DescriptorError::Value("the reason why a peer is unreachable", 0);
        assert_eq!(decode(9 | v4, [0; 3]), Err(no_kind));
        assert_eq!(decode(9 | 2 << 32 | 5 << 40, [0; 3]), Err(DescriptorError::Value("an IP version", 5)));
        let longer_than_ipv4 = decode(9 | 2 << 32 | v4, [0, 1 << 32, 0]);
        assert_eq!(longer_than_ipv4, Err(DescriptorError::Reserved(3)));
        let asked_after_it_was_given_up = decode(9 | 2 << 32 | v4, [1, 0, 0]);
        assert_eq!(asked_after_it_was_given_up, Err(DescriptorError::Reserved(2)));
        let hop_of_an_unknown_peer = decode(9 | 3 << 32 | v4, [0; 3]);
        assert_eq!(hop_of_an_unknown_peer, Err(DescriptorError::Reserved(1)));
        assert_eq!(Report::decode(&[5, 1, 0, 0, 0, 0, 0, 0]), Err(DescriptorError::Reserved(1)));
        assert_eq!(Report::decode(&[2, 0, 0, 0, 1, 0, 0, 0]), Err(DescriptorError::Reserved(4)));
        let process_of_nobody = [3, 0, 0, 0, 0, 0, 0, 1];
        assert_eq!(Report::decode(&process_of_nobody), Err(DescriptorError::Reserved(7)));
        let of_no_process = [3 | u64::from(HAS_SENDER) << 8, 0, 0, 0, 0, 0, 0, 4096];
        assert_eq!(Report::decode(&of_no_process), Err(DescriptorError::Value("the process", 4096)));
        let truncated_send = [2 | 8 << 16, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(Report::decode(&truncated_send), Err(DescriptorError::Value("an outcome", 8)));
    }
}
