//! Who waits for what: text for people, made only when somebody asks.

use core::fmt::{self, Display};

use weft_cc::Time;

use super::Fep;
use super::connection::{Connection, Standing};
use crate::pdc::TxState;
use crate::ses::Receives;

impl Fep {
    /// One line for every connection that has not delivered everything: which PDC and PSN wait for
    /// what, and since when.
    pub fn explain(&self, now: Time) -> Vec<String> {
        self.waits(now).map(|wait| wait.to_string()).collect()
    }

    /// What [`Fep::explain`] tells, as text that is made when it is displayed: there may be very many.
    pub fn waits(&self, now: Time) -> impl Iterator<Item = Wait<'_>> {
        let waiting = self.connections.iter().map(|(_, connection)| connection);
        let waiting = waiting.filter(|c| c.has_work() || !c.pdc.is_idle());
        waiting.map(move |connection| Wait { fep: self, connection, now })
    }

    /// What is left of work that is over, one line each: for tests that nothing leaks. A closed PDC
    /// that is remembered for a while is not a leak.
    pub fn leaks(&self) -> impl Iterator<Item = String> {
        let counts = [
            (self.connections.len(), "connections"),
            (self.contexts.len(), "congestion contexts"),
            (self.by_peer.len(), "peers"),
            (self.sends.len(), "messages on their way out"),
            (self.all_receives().map(Receives::posted).sum(), "posted receives"),
            (self.all_receives().map(Receives::under_way).sum(), "messages on their way in"),
            (self.targets.table.len(), "PDCs of peers"),
            (self.granter.as_ref().map_or(0, |g| g.senders()), "senders known to the credit scheduler"),
        ];
        counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"))
    }
}

/// A connection that has not delivered everything. Its text says which PDC and PSN wait for what, and since when.
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
        let context = fep.contexts.get(connection.context);
        let what = match (pdc.waiting_since(psn), connection.pause.as_deref()) {
            (_, Some(busy)) => format!(
                "PSN {} was put off by the target with NACK code {:#04x} since {}",
                psn.0, busy.code.0, busy.since
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
        write!(f, "endpoint {} PDC {} to endpoint {}: {what}", fep.addr.0, pdc.id.0, pdc.peer.0)
    }
}

fn gate_text(context: Option<&super::Context>) -> String {
    match context {
        Some(c) if c.credit.as_ref().is_some_and(|credit| !credit.may_send()) => "no credit".to_owned(),
        Some(c) => format!("{} of {} bytes of the window are in flight", c.in_flight(), c.window()),
        None => "no congestion context".to_owned(),
    }
}
