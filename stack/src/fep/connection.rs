//! A connection: one PDC for sending and the messages that wait for it.

use std::collections::VecDeque;

use weft_cc::Time;

use super::Failure;
use crate::pdc::{TxPdc, TxState};
use crate::spray::Entropy;
use crate::table::Key;
use crate::wire::pds::{NackCode, Psn};

/// Where a connection stands with the send scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing to send, or held back by its own window or the target.
    Idle,
    /// In the scheduler's queue.
    Ready,
    /// In its context's queue of those that wait for the gate.
    Blocked,
}

pub(super) struct Connection {
    pub(super) pdc: TxPdc,
    pub(super) context: Key,
    /// Messages not completely cut into packets, in order.
    pub(super) queue: VecDeque<Key>,
    pub(super) standing: Standing,
    /// The one entropy of all that a ROD PDC has in flight.
    pub(super) fixed_entropy: Option<Entropy>,
    pub(super) next_msg_id: u16,
    /// The earliest wake-up that the wheel holds for this connection.
    pub(super) timer: Option<Time>,
    /// Nothing leaves before this: the target was busy.
    pub(super) hold: Option<Busy>,
    /// When something of it last arrived, or it last began to send.
    pub(super) progress_at: Time,
    /// When to probe for losses.
    pub(super) probe_at: Option<Time>,
    /// Probes since the last acknowledgement.
    pub(super) unanswered_probes: u8,
    /// It waits for credit.
    pub(super) credit_wait: Option<CreditWait>,
    /// The CLEAR_PSN of the last CLEAR_CMD, so that the same is not said with every acknowledgement.
    pub(super) cleared: Option<Psn>,
    /// It is the target that wanted it closed.
    pub(super) closed_by_peer: bool,
}

/// Something waits to be sent and there is no credit.
#[derive(Clone, Copy, Debug)]
pub(super) struct CreditWait {
    pub(super) since: Time,
    /// When to ask for it again.
    pub(super) ask_at: Time,
}

/// The target refuses for lack of something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Busy {
    pub(super) code: NackCode,
    pub(super) since: Time,
    pub(super) until: Time,
    pub(super) count: u32,
}

impl Connection {
    pub(super) fn new(pdc: TxPdc, context: Key, now: Time) -> Connection {
        Connection {
            pdc,
            context,
            queue: VecDeque::new(),
            standing: Standing::Idle,
            fixed_entropy: None,
            next_msg_id: 0,
            timer: None,
            hold: None,
            progress_at: now,
            probe_at: None,
            unanswered_probes: 0,
            credit_wait: None,
            cleared: None,
            closed_by_peer: false,
        }
    }

    /// Whether anything could leave if nothing held it back.
    pub(super) fn has_work(&self) -> bool {
        self.pdc.has_lost() || !self.queue.is_empty() || self.wants_close()
    }

    /// Whether CLOSE_CMD is due: no message is left and everything is acknowledged.
    pub(super) fn wants_close(&self) -> bool {
        self.pdc.state == TxState::Draining && self.queue.is_empty() && self.pdc.is_idle()
    }

    /// What to say when it is closed in good order.
    pub(super) fn close_result(&self) -> Result<(), Failure> {
        match self.closed_by_peer {
            true => Err(Failure::ClosedByPeer { pdc: self.pdc.id, peer: self.pdc.peer }),
            false => Ok(()),
        }
    }

    pub(super) fn is_held(&self, now: Time) -> bool {
        self.hold.is_some_and(|busy| now.is_before(busy.until))
    }
}
