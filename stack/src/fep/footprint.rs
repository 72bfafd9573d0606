//! The memory that an endpoint holds, by purpose.

use core::iter::Sum;
use core::ops::{Add, AddAssign};

use super::Fep;
use super::datagram::Datagrams;
use super::memory::ExposedMemory;
use crate::heap;
use crate::ses::Receives;

/// Bytes that an endpoint holds: the capacity of its allocations, whether in use or not. Excludes configuration shared
/// by endpoints, and memory allocated by congestion-control algorithms and by a user's own load balancers.
///
/// Tables do not shrink: at the end of a run they have their largest capacity. Memory that a closed PDC or a delivered
/// message had allocated for itself is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Footprint {
    /// The endpoint itself: the size of an idle one, and its queues of control packets and completions.
    pub endpoint: u64,
    /// Connections: the initiators' ends of PDCs.
    pub connections: u64,
    /// Congestion contexts, with their load balancers.
    pub contexts: u64,
    /// The targets' ends of PDCs with their stored responses, the records of closed ones, and the table of exposed memory.
    pub targets: u64,
    /// Messages being sent and received, without their contents.
    pub messages: u64,
    /// Posted receives that no message or datagram has met, without their memory, and the queue of datagrams to send.
    pub receives: u64,
    /// The receiver's credit scheduler.
    pub credit: u64,
    /// The timing wheel.
    pub timers: u64,
    /// Memory of messages, reads and posted receives, and exposed memory: the applications' buffers, and those of unexpected messages. 0 if
    /// messages are virtual.
    pub payload: u64,
}

impl Footprint {
    /// The sum of all fields except [`Footprint::payload`]: the memory that the protocol needs.
    pub fn state(&self) -> u64 {
        let Footprint {
            endpoint, connections, contexts, targets, messages, receives, credit, timers, ..
        } = self;
        endpoint + connections + contexts + targets + messages + receives + credit + timers
    }

    /// The sum of all fields.
    pub fn total(&self) -> u64 {
        self.state() + self.payload
    }
}

impl Add for Footprint {
    type Output = Footprint;

    fn add(self, other: Footprint) -> Footprint {
        Footprint {
            endpoint: self.endpoint + other.endpoint,
            connections: self.connections + other.connections,
            contexts: self.contexts + other.contexts,
            targets: self.targets + other.targets,
            messages: self.messages + other.messages,
            receives: self.receives + other.receives,
            credit: self.credit + other.credit,
            timers: self.timers + other.timers,
            payload: self.payload + other.payload,
        }
    }
}

impl AddAssign for Footprint {
    fn add_assign(&mut self, other: Footprint) {
        *self = *self + other;
    }
}

impl Sum for Footprint {
    fn sum<I: Iterator<Item = Footprint>>(all: I) -> Footprint {
        all.fold(Footprint::default(), Add::add)
    }
}

/// Bytes that the table of exposed memory takes.
fn exposed_bytes(exposed: &ExposedMemory) -> u64 {
    size_of_val(exposed) as u64 + exposed.heap_bytes()
}

impl Fep {
    /// The memory that the endpoint holds now. Looks at every connection, context, PDC and message.
    pub fn footprint(&self) -> Footprint {
        let Fep { core, initiator, target, datagrams, .. } = self;
        let exposed = target.processes.memory.as_deref();
        let sends = initiator.sends.iter().map(|(_, message)| heap::of_buffer(&message.buffer));
        Footprint {
            endpoint: size_of::<Fep>() as u64 + core.queue_bytes() + initiator.queue_bytes(),
            connections: initiator.connection_bytes(),
            contexts: initiator.context_bytes(),
            targets: target.pdcs.heap_bytes() + exposed.map_or(0, exposed_bytes),
            messages: initiator.sends.heap_bytes()
                + target.processes.iter().map(Receives::message_bytes).sum::<u64>()
                + target.processes.room.heap_bytes(),
            receives: target.processes.posted_bytes() + datagrams.as_deref().map_or(0, Datagrams::heap_bytes),
            credit: target.granter.as_ref().map_or(0, |granter| granter.bytes()),
            timers: core.wheel.heap_bytes(),
            payload: sends.sum::<u64>()
                + target.processes.payload_bytes()
                + exposed.map_or(0, ExposedMemory::payload_bytes)
                + datagrams.as_deref().map_or(0, Datagrams::payload_bytes),
        }
    }
}
