//! Text for people about unfinished connections and what they wait for; made only on request.

use core::fmt::{self, Display};

use weft_cc::Time;

use super::connection::{Connection, Standing};
use super::context::Context;
use super::datagram::Datagrams;
#[cfg(test)]
use super::initiator::unsent_bytes;
use super::{Fep, liveness};
use crate::pdc::{PacketKind, TxState};
use crate::ses::{Operation, Receives};
use crate::wire::pds::{NackCode, Psn};
use crate::wire::ses::ReturnCode;

#[cfg(test)]
impl super::initiator::Initiator {
    /// Checks that what contexts count of their connections is what these have, and that each connection is where it says.
    fn check_counts(&self, config: &super::FepConfig) {
        let mut queued = 0;
        for (key, context) in self.contexts.iter() {
            let own = || self.connections.iter().map(|(_, own)| own).filter(|own| own.context == key);
            assert_eq!(context.users as usize, own().count(), "connections of a context");
            let in_flight: u64 = own().map(|own| own.pdc.in_flight()).sum();
            assert_eq!(context.in_flight(), in_flight, "bytes in flight");
            let backlog: u64 = own().map(|own| own.backlog).sum();
            assert_eq!(context.backlog, backlog, "bytes that have not left");
            let active = own().filter(|own| own.pdc.in_flight() > 0).count();
            assert_eq!(context.active() as usize, active, "connections with packets in flight");
            let blocked = own().filter(|own| own.standing == Standing::Blocked).count();
            // Those that are gone leave the queue when their turn comes.
            let waiting: Vec<_> =
                context.blocked.iter().filter_map(|key| self.connections.get(key)).collect();
            assert_eq!(waiting.len(), blocked, "connections that wait for the gate");
            assert!(waiting.iter().all(|own| own.context == key && own.standing == Standing::Blocked));
            if let Some(trying) = context.trying {
                let trying = self.connections.get(trying).expect("one that is gone does not try");
                assert!(
                    trying.context == key && matches!(trying.standing, Standing::Ready | Standing::Overdue)
                );
            }
            queued += blocked;
        }
        for (_, own) in self.connections.iter() {
            let messages = own.queue.iter().filter_map(|key| self.sends.get(*key));
            let bytes: u64 = messages.map(|message| unsent_bytes(config, message)).sum();
            assert_eq!(own.backlog, bytes, "bytes of a connection that have not left");
        }
        let waits =
            |own: &Connection| !matches!(own.standing, Standing::Idle | Standing::Overdue | Standing::Held);
        queued += self.ready.iter().filter(|key| self.connections.get(*key).is_some()).count();
        let standing = self.connections.iter().filter(|(_, own)| waits(own)).count();
        assert_eq!(queued, standing, "each connection that waits for a turn is in one queue");
    }
}

impl Fep {
    /// One line for every connection that has not delivered everything: its PDC, the PSN that waits, the reason, and
    /// since when. Then what [`Fep::shortages`] says.
    pub fn explain(&self, now: Time) -> Vec<String> {
        self.waits(now).map(|wait| wait.to_string()).chain(self.shortages()).collect()
    }

    /// What this endpoint has lacked so far, one line for each kind.
    pub fn shortages(&self) -> impl Iterator<Item = String> {
        let (dropped, limit) = (self.counters().control_dropped, self.config().limits.control_queue);
        let text = format!(
            "endpoint {}: {dropped} acknowledgements, NACKs and control packets were dropped: {limit} may wait for the \
             port, and of one peer as many as it leaves to others",
            self.addr().0
        );
        let lost = self.counters().datagrams_dropped;
        let datagrams = format!(
            "endpoint {}: {lost} datagrams were dropped on arrival: there was no receive for them, or they had been trimmed",
            self.addr().0
        );
        let lines = [(dropped, text), (lost, datagrams)];
        lines.into_iter().filter(|(count, _)| *count > 0).map(|(_, text)| text)
    }

    /// As [`Fep::explain`], but as values that format their text only when displayed, because there may be very many.
    pub fn waits(&self, now: Time) -> impl Iterator<Item = Wait<'_>> {
        let waiting = self.initiator.connections.iter().map(|(_, connection)| connection);
        let waiting = waiting.filter(|c| c.has_work() || !c.pdc.is_idle());
        waiting.map(move |connection| Wait { fep: self, connection, now })
    }

    /// Checks that what is counted against limits is what there is, and within them. Returns what is used of the room for
    /// messages without a receive: messages, bytes, places reserved for early ones.
    #[cfg(test)]
    pub(crate) fn check_accounts(&self) -> (u64, u64, u64) {
        let limits = &self.config().limits;
        assert!(self.initiator.sends.len() <= limits.sends);
        assert!(self.initiator.connections.len() <= limits.most_connections());
        self.initiator.check_counts(self.config());
        let data = self.target.processes.memory.as_ref().map_or(0, |_| self.config().mtu);
        self.target.pdcs.usage.check(limits, self.open_targets(), data);
        self.target.check_incomplete();
        self.target.processes.check(limits)
    }

    /// How many congestion contexts of peers are known that ask for credit.
    #[cfg(test)]
    pub(crate) fn credit_senders(&self) -> usize {
        self.target.granter.as_ref().map_or(0, |granter| granter.senders())
    }

    /// Whether ROD packets of `peer` that arrived early are kept.
    #[cfg(test)]
    pub(crate) fn keeps_early_packets_of(&self, peer: crate::packet::Addr) -> bool {
        self.target.pdcs.usage.of(peer).early_bytes > 0
    }

    /// State left over when all work is done, one line for each kind, for tests of leaks. A closed PDC that is
    /// remembered for a while is not a leak.
    pub fn leaks(&self) -> impl Iterator<Item = String> {
        let counts = [
            (self.initiator.connections.len(), "connections"),
            (self.initiator.contexts.len(), "congestion contexts"),
            (self.initiator.names(), "names of congestion contexts"),
            (self.initiator.sends.len(), "messages on their way out"),
            (self.target.processes.iter().map(Receives::posted).sum(), "posted receives"),
            (self.target.processes.iter().map(Receives::under_way).sum(), "messages on their way in"),
            (self.datagrams.as_deref().map_or(0, Datagrams::posted), "posted receives of datagrams"),
            (self.core.replies.len(), "responses with data that wait for the port"),
            (self.open_targets(), "PDCs of peers"),
            (
                self.target.granter.as_ref().map_or(0, |g| g.senders()),
                "senders known to the credit scheduler",
            ),
        ];
        counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"))
    }
}

/// A connection that has not delivered everything. Its text names the PDC, the PSN that waits, the reason, and since
/// when.
pub struct Wait<'a> {
    fep: &'a Fep,
    connection: &'a Connection,
    now: Time,
}

impl Display for Wait<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wait { fep, connection, now } = *self;
        let pdc = &connection.pdc;
        let psn = pdc.first_unacknowledged();
        let context = fep.initiator.contexts.get(connection.context);
        let what = match (pdc.waiting_since(psn), connection.pause.as_deref()) {
            (_, Some(busy)) => format!(
                "PSN {} has been put off by the target for {} with {}",
                psn.0,
                now.since(busy.since),
                Meaning(busy.code)
            ),
            _ if pdc.has_lost() && connection.standing == Standing::Blocked => {
                format!("PSN {} waits to be sent again: {}", psn.0, gate_text(context))
            }
            (Some((since, sent)), None) => format!(
                "PSN {} waits for an acknowledgement for {} (sent {sent} times)",
                psn.0,
                now.since(since)
            ),
            (None, None) if pdc.state == TxState::Closing => format!("PSN {} waits to be closed", psn.0),
            (None, None) if connection.standing == Standing::Blocked => {
                format!("PSN {} waits to be sent: {}", psn.0, gate_text(context))
            }
            (None, None) if connection.standing == Standing::Held => {
                format!("PSN {} waits until there is a way to the peer", psn.0)
            }
            (None, None) => format!("PSN {} waits to be sent", psn.0),
        };
        write!(f, "endpoint {} PDC {} to endpoint {}: {what}", fep.addr().0, pdc.id.0, pdc.peer.0)?;
        self.describe_read(psn).map_or(Ok(()), |read| write!(f, "; {read}"))?;
        let again = pdc.waiting_since(psn).is_some_and(|(_, sent)| sent > 1);
        let context = context.filter(|_| again || connection.pause.is_some());
        let deadline = context.and_then(|context| liveness::deadline(fep.config(), connection, context));
        deadline.map_or(Ok(()), |at| write!(f, "; it is given up in {}", at.since(now)))
    }
}

impl Wait<'_> {
    /// What the packet `psn` reads, or the next packet, if `psn` has not been sent.
    fn describe_read(&self, psn: Psn) -> Option<String> {
        let sends = &self.fep.initiator.sends;
        let (message, offset) = match self.connection.pdc.unanswered(psn).map(|record| record.kind()) {
            Some(PacketKind::Read { send, offset, .. }) => (sends.at(send)?.1, offset),
            Some(_) => return None,
            None => {
                let message = sends.get(*self.connection.queue.front()?)?;
                (message, message.buffer.len() - message.remaining())
            }
        };
        let Operation::Read { key, offset: first, .. } = message.operation else { return None };
        let from = first.wrapping_add(offset.into());
        Some(format!("it reads from offset {from} of memory {key:#x}"))
    }
}

fn gate_text(context: Option<&Context>) -> String {
    match context {
        Some(c) if c.credit.as_ref().is_some_and(|credit| !credit.may_send()) => {
            format!("no credit{}", sharers(c))
        }
        Some(c) => {
            let (in_flight, window) = (c.in_flight(), c.window());
            format!("{in_flight} of {window} bytes of the window are in flight{}", sharers(c))
        }
        None => "no congestion context".to_owned(),
    }
}

/// Says how many connections share a congestion context, if more than one does.
fn sharers(context: &Context) -> String {
    match context.users {
        0 | 1 => String::new(),
        users => format!(", of a context that {users} connections share"),
    }
}

/// Displays a NACK code and its meaning.
pub(super) struct Meaning(pub(super) NackCode);

impl Display for Meaning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NACK code {:#04x}", self.0.0)?;
        let meaning = match self.0 {
            NackCode::TRIMMED => "a switch trimmed it",
            NackCode::TRIMMED_LASTHOP => "the last switch trimmed it",
            NackCode::NO_PDC_AVAIL => "the target has no PDC left",
            NackCode::NO_CCC_AVAIL => "the target has no congestion context left",
            NackCode::NO_BITMAP => "the target has no bitmap left",
            NackCode::NO_PKT_BUFFER => "the target has no packet buffer left",
            NackCode::NO_GTD_DEL_AVAIL => "the target has no room left for guaranteed answers",
            NackCode::NO_SES_MSG_AVAIL => "the target has no room left for messages",
            NackCode::NO_RESOURCE => "something is used up at the target",
            NackCode::PSN_OOR_WINDOW => "the PSN is outside of the target's window",
            NackCode::ROD_OOO => "it came out of order",
            NackCode::INV_DPDCID => "the target knows no such PDC: it was started anew, or has given it up",
            NackCode::PDC_HDR_MISMATCH => "the target knows this PDC as another endpoint's",
            NackCode::CLOSING => "the target is closing the PDC",
            NackCode::CLOSING_IN_ERR => "the target is closing the PDC after an error",
            NackCode::PKT_NOT_RCVD => "it has not arrived",
            NackCode::GTD_RESP_UNAVAIL => "the guaranteed answer is gone",
            NackCode::ACK_WITH_DATA => "an acknowledgement carried data",
            NackCode::INVALID_SYN => "the target opens no such PDC, or the PSN is outside of its window",
            NackCode::PDC_MODE_MISMATCH => "the target knows this PDC with the other delivery mode",
            NackCode::NEW_START_PSN => "the target wants another first PSN",
            NackCode::RCVD_SES_PROCG => "it has arrived, and the answer is not ready",
            NackCode::UNEXP_EVENT => "the target did not expect it",
            NackCode::RCVR_INFER_LOSS => "the target takes it for lost",
            _ => return Ok(()),
        };
        write!(f, " ({meaning})")
    }
}

/// Displays how a message or a read ended that a return code ended: by the target's answer, or by an abort.
pub(super) struct Answered(pub(super) ReturnCode);

impl Display for Answered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            // Weft's targets do not answer with it: it stands for the abort of the connection.
            ReturnCode::CANCELLED => write!(f, "cancelled after a part of it had been sent"),
            code => write!(f, "the target answered with {}", Refused(code)),
        }
    }
}

/// Displays the return code of a message that its target refused, and its meaning.
struct Refused(ReturnCode);

impl Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "return code {:#04x}", self.0.0)?;
        let meaning = match self.0 {
            ReturnCode::BAD_PID => "BAD_PID: it has no process of the number that the message was for",
            ReturnCode::BAD_JOB_ID => {
                "BAD_JOB_ID: the process that the message was for belongs to another job"
            }
            ReturnCode::TOO_LONG => "TOO_LONG: the message is longer than the receive that it met",
            ReturnCode::BAD_MKEY => "BAD_MKEY: its process exposes no memory with this key",
            ReturnCode::PERM_VIOLATION => "PERM_VIOLATION: the memory is for another process or peer",
            ReturnCode::AT_OUT_OF_RANGE => "AT_OUT_OF_RANGE: the range goes beyond the end of the memory",
            ReturnCode::UNSUPPORTED_SIZE => "UNSUPPORTED_SIZE: its packets are too small for the answer",
            ReturnCode::UNSUPPORTED_OP => "UNSUPPORTED_OP: it does not support this operation",
            _ => return Ok(()),
        };
        write!(f, " ({meaning})")
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Failure, SendError};
    use super::*;
    use crate::packet::Addr;
    use crate::wire::pds::PdcId;

    fn refused(code: u8) -> String {
        Failure::Refused { pdc: PdcId(2), peer: Addr(1), psn: Psn(9), code: NackCode(code) }.to_string()
    }

    #[test]
    fn nack_codes_are_displayed_with_their_meaning() {
        let expected = "PDC 2 to endpoint 1: PSN 9 refused with NACK code 0x0e (the target knows no such PDC: \
                        it was started anew, or has given it up)";
        assert_eq!(refused(0x0e), expected);
        assert_eq!(refused(0x7f), "PDC 2 to endpoint 1: PSN 9 refused with NACK code 0x7f");
    }

    #[test]
    fn return_codes_that_weft_sends_are_displayed_with_their_meaning() {
        let answered = |code| SendError::Answered(code).to_string();
        assert_eq!(
            answered(ReturnCode::BAD_PID),
            "the target answered with return code 0x1a (BAD_PID: it has no process of the number that the message \
             was for)"
        );
        assert_eq!(answered(ReturnCode::CANCELLED), "cancelled after a part of it had been sent");
        assert_eq!(answered(ReturnCode(0x3f)), "the target answered with return code 0x3f");
    }
}
