//! How an operation or a connection ended, as a code, a detail and words 4 to 6 of a report.
//!
//! | code | outcome | detail | word 4 | word 5 | word 6 |
//! |---|---|---|---|---|---|
//! | 0 | `Ok` | | | | |
//! | 1 | `Failure::NoAnswer` | | bits 0–15 PDC, 32–63 peer | 0–31 PSN, 32–39 times sent | waited, ps |
//! | 2 | `Failure::Refused` | NACK code | as above | 0–31 PSN | |
//! | 3 | `Failure::Busy` | NACK code | as above | 0–31 PSN | waited, ps |
//! | 4 | `Failure::NoCredit` | | as above | 0–31 PSN | waited, ps |
//! | 5 | `Failure::ClosedByPeer` | | as above | | |
//! | 6 | `SendError::Answered` | return code | | | |
//! | 7 | `Cancelled` | | | | |
//! | 8 | `ReceiveError::Truncated` | | bits 0–31 length of the message, 32–63 of the receive | | |
//! | 9 | `ReceiveError::PeerLost` | | | | |
//! | 10 | `Failure::NoProgress` | | bits 0–15 PDC, 16–23 times sent, 24 probes answered, 32–63 peer | 0–31 PSN, 32–63 length of its payload | waited, ps |
//! | 11 | `Failure::FalseAck` | | bits 0–15 PDC, 32–63 peer | 0–31 PSN | |
//!
//! Everything else is 0. Decoding ignores bits that mean nothing: its caller encodes what it gets, and compares.

use weft_cc::Span;

use super::command::DescriptorError;
use super::{Slot, bits};
use crate::fep::{Failure, ReceiveError, SendError};
use crate::packet::Addr;
use crate::wire::pds::{NackCode, PdcId, Psn};
use crate::wire::ses::ReturnCode;

const OK: u8 = 0;
const NO_ANSWER: u8 = 1;
const REFUSED: u8 = 2;
const BUSY: u8 = 3;
const NO_CREDIT: u8 = 4;
const CLOSED_BY_PEER: u8 = 5;
const ANSWERED: u8 = 6;
const CANCELLED: u8 = 7;
const TRUNCATED: u8 = 8;
const PEER_LOST: u8 = 9;
const NO_PROGRESS: u8 = 10;
const FALSE_ACK: u8 = 11;

/// An outcome in a report's words.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    pub(super) code: u8,
    pub(super) detail: u8,
    /// Words 4 to 6.
    pub(super) words: [u64; 3],
}

impl Outcome {
    /// The outcome in `slot`.
    fn of(slot: &Slot) -> Outcome {
        let [_, _, code, detail, ..] = slot[0].to_le_bytes();
        Outcome { code, detail, words: [slot[4], slot[5], slot[6]] }
    }

    #[cold]
    fn failed(failure: Failure) -> Outcome {
        let zero = NackCode(0);
        let (code, pdc, peer, psn, more, nack, waited) = match failure {
            Failure::NoAnswer { pdc, peer, psn, waited, sent } => {
                (NO_ANSWER, pdc, peer, psn, sent.into(), zero, waited)
            }
            Failure::Refused { pdc, peer, psn, code } => (REFUSED, pdc, peer, psn, 0, code, Span::ZERO),
            Failure::Busy { pdc, peer, psn, code, waited } => (BUSY, pdc, peer, psn, 0, code, waited),
            Failure::NoProgress { pdc, peer, psn, len, waited, .. } => {
                (NO_PROGRESS, pdc, peer, psn, len, zero, waited)
            }
            Failure::NoCredit { pdc, peer, psn, waited } => (NO_CREDIT, pdc, peer, psn, 0, zero, waited),
            Failure::FalseAck { pdc, peer, psn } => (FALSE_ACK, pdc, peer, psn, 0, zero, Span::ZERO),
            Failure::ClosedByPeer { pdc, peer } => (CLOSED_BY_PEER, pdc, peer, Psn(0), 0, zero, Span::ZERO),
        };
        let seen = match failure {
            Failure::NoProgress { sent, probed, .. } => u64::from(sent) | u64::from(probed) << 8,
            _ => 0,
        };
        let word4 = u64::from(pdc.0) | seen << 16 | u64::from(peer.0) << 32;
        let word5 = u64::from(psn.0) | u64::from(more) << 32;
        Outcome { code, detail: nack.0, words: [word4, word5, waited.as_ps()] }
    }

    fn failure(&self) -> Result<Failure, DescriptorError> {
        let [word4, word5, word6] = self.words;
        let (pdc, peer) = (PdcId(word4 as u16), Addr(bits(word4, 32, 32) as u32));
        let (psn, sent) = (Psn(word5 as u32), bits(word5, 32, 8) as u8);
        let len = bits(word5, 32, 32) as u32;
        let (code, waited) = (NackCode(self.detail), Span::from_ps(word6));
        Ok(match self.code {
            NO_ANSWER => Failure::NoAnswer { pdc, peer, psn, waited, sent },
            REFUSED => Failure::Refused { pdc, peer, psn, code },
            BUSY => Failure::Busy { pdc, peer, psn, code, waited },
            NO_PROGRESS => {
                let (sent, probed) = (bits(word4, 16, 8) as u8, bits(word4, 24, 1) == 1);
                Failure::NoProgress { pdc, peer, psn, len, sent, probed, waited }
            }
            NO_CREDIT => Failure::NoCredit { pdc, peer, psn, waited },
            FALSE_ACK => Failure::FalseAck { pdc, peer, psn },
            CLOSED_BY_PEER => Failure::ClosedByPeer { pdc, peer },
            code => return Err(DescriptorError::Value("an outcome", code.into())),
        })
    }
}

/// The outcome of a message.
#[inline(always)]
pub(super) fn of_send(result: Result<(), SendError>) -> Outcome {
    match result {
        Ok(()) => Outcome::default(),
        Err(SendError::Failed(failure)) => Outcome::failed(failure),
        Err(SendError::Answered(code)) => Outcome { code: ANSWERED, detail: code.0, words: [0; 3] },
        Err(SendError::Cancelled) => Outcome { code: CANCELLED, ..Outcome::default() },
    }
}

/// # Errors
/// `slot` has no outcome of a message.
#[inline]
pub(super) fn send(slot: &Slot) -> Result<Result<(), SendError>, DescriptorError> {
    let outcome = Outcome::of(slot);
    Ok(match outcome.code {
        OK => Ok(()),
        ANSWERED => Err(SendError::Answered(ReturnCode(outcome.detail))),
        CANCELLED => Err(SendError::Cancelled),
        _ => Err(SendError::Failed(outcome.failure()?)),
    })
}

/// The outcome of a receive.
#[inline(always)]
pub(super) fn of_receive(result: Result<(), ReceiveError>) -> Outcome {
    match result {
        Ok(()) => Outcome::default(),
        Err(ReceiveError::Truncated { len, room }) => {
            let word4 = u64::from(len) | u64::from(room) << 32;
            Outcome { code: TRUNCATED, detail: 0, words: [word4, 0, 0] }
        }
        Err(ReceiveError::PeerLost) => Outcome { code: PEER_LOST, ..Outcome::default() },
        Err(ReceiveError::Cancelled) => Outcome { code: CANCELLED, ..Outcome::default() },
    }
}

/// # Errors
/// `slot` has no outcome of a receive.
#[inline]
pub(super) fn receive(slot: &Slot) -> Result<Result<(), ReceiveError>, DescriptorError> {
    let outcome = Outcome::of(slot);
    let word4 = outcome.words[0];
    Ok(match outcome.code {
        OK => Ok(()),
        TRUNCATED => Err(ReceiveError::Truncated { len: word4 as u32, room: bits(word4, 32, 32) as u32 }),
        PEER_LOST => Err(ReceiveError::PeerLost),
        CANCELLED => Err(ReceiveError::Cancelled),
        code => return Err(DescriptorError::Value("an outcome of a receive", code.into())),
    })
}

/// The outcome of a connection.
pub(super) fn of_connection(result: Result<(), Failure>) -> Outcome {
    result.map_or_else(Outcome::failed, |()| Outcome::default())
}

/// # Errors
/// `slot` has no outcome of a connection.
pub(super) fn connection(slot: &Slot) -> Result<Result<(), Failure>, DescriptorError> {
    let outcome = Outcome::of(slot);
    Ok(if outcome.code == OK { Ok(()) } else { Err(outcome.failure()?) })
}
