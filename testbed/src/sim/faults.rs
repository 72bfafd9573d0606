//! Link faults: probabilities, sizes that do not pass, changes during the run, and links that are slow from the
//! start.

use weft_cc::{Rate, Span, Time};

use super::config::RunError;
use super::correlated::CorrelatedLoss;
use crate::topology::{Node, PortId, Topology};

/// The random faults of a link. Probabilities are per packet, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct LinkFaults {
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Probability that a bit is wrong on the wire. Receivers drop a packet with a wrong bit, so the link loses
    /// long packets more often than short ones.
    pub bit_error_rate: f64,
    /// The link loses packets that take more than this number of bytes on the wire, as a path does whose MTU is
    /// smaller than the hosts assume; `None`: it takes packets of any size.
    pub drop_over: Option<u32>,
    /// Probability that one bit of a packet flips, which checksums detect.
    pub corrupt: f64,
    /// Probability that a packet arrives twice.
    pub duplicate: f64,
    /// Probability that a packet is delayed by up to `delay`, and so possibly overtaken.
    pub reorder: f64,
    /// The longest such delay.
    pub delay: Span,
    /// Losses that come in bursts, besides the independent ones.
    pub correlated: Option<CorrelatedLoss>,
    /// Probability that the switch which sends on the link trims a data packet before, whatever room its queue has; drops it
    /// if it does not trim.
    pub trim: f64,
    /// Delay of every packet besides the latency of the link. It does not reorder packets: if it shrinks during the run,
    /// later packets arrive after the earlier ones.
    pub extra_delay: Span,
}

impl LinkFaults {
    /// Whether all probabilities are zero, and packets of any size pass without extra delay.
    pub fn is_none(&self) -> bool {
        let probabilities =
            [self.loss, self.bit_error_rate, self.corrupt, self.duplicate, self.reorder, self.trim];
        let correlated = self.correlated.is_some_and(|model| model.loses_any());
        self.drop_over.is_none()
            && !correlated
            && self.extra_delay == Span::ZERO
            && probabilities.iter().all(|probability| *probability <= 0.0)
    }

    /// The probability that a packet is lost that takes `bytes` bytes on the wire.
    pub(super) fn loss_of(&self, bytes: u32) -> f64 {
        if self.drop_over.is_some_and(|most| bytes > most) {
            return 1.0;
        }
        if self.bit_error_rate <= 0.0 {
            return self.loss;
        }
        1.0 - (1.0 - self.loss) * power(1.0 - self.bit_error_rate, bytes.saturating_mul(8))
    }
}

/// `base` to the power of `exponent`, with the same result on every machine.
fn power(mut base: f64, mut exponent: u32) -> f64 {
    let mut product = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            product *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    product
}

/// Numbers of packets that faults of links have met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FaultCounters {
    /// Packets lost.
    pub lost: u64,
    /// Packets in which a bit was flipped.
    pub corrupted: u64,
    /// Packets that arrived twice.
    pub duplicated: u64,
    /// Packets delayed.
    pub delayed: u64,
}

impl core::iter::Sum for FaultCounters {
    fn sum<I: Iterator<Item = FaultCounters>>(all: I) -> FaultCounters {
        all.fold(FaultCounters::default(), |sum, each| FaultCounters {
            lost: sum.lost + each.lost,
            corrupted: sum.corrupted + each.corrupted,
            duplicated: sum.duplicated + each.duplicated,
            delayed: sum.delayed + each.delayed,
        })
    }
}

/// A change of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LinkChange {
    /// The link loses all packets. Switches do not route around it: that is left to the load balancer.
    Fail,
    /// The link returns to its state at the start of the run.
    Restore,
    /// The link slows down (or speeds up) to this rate.
    Degrade(Rate),
    /// The link loses each packet with this probability, 0 to 1.
    Drop(f64),
    /// The link loses packets that take more than this number of bytes on the wire.
    DropOver(u32),
    /// Each bit is wrong with this probability, 0 to 1, and the link loses packets with a wrong bit.
    BitErrors(f64),
    /// The link flips a bit of each packet with this probability, 0 to 1.
    Corrupt(f64),
    /// The link loses packets in bursts. A model begins anew, and replaces the one before it.
    Correlated(CorrelatedLoss),
    /// Each packet takes this much longer than the link's latency. Packets keep their order.
    Delay(Span),
    /// The switch that sends on the link trims each data packet with this probability, 0 to 1, whatever room its queue has.
    Trim(f64),
}

impl LinkChange {
    /// Checks that the change can happen to `link`, in a fabric whose switches trim packets or not.
    ///
    /// # Errors
    /// Nobody trims there.
    pub(crate) fn check(
        self,
        link: LinkDirections,
        topology: &Topology,
        trimming: bool,
    ) -> Result<(), RunError> {
        let LinkChange::Trim(_) = self else { return Ok(()) };
        let is_switch = |port: PortId| matches!(topology.port(port).owner, Node::Switch(_));
        if trimming && link.ports(topology).any(is_switch) { Ok(()) } else { Err(RunError::NobodyTrims) }
    }
}

/// A link, or one direction of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkDirections {
    /// Both directions of the link at this port, which is either end.
    Both(PortId),
    /// The direction in which this port sends.
    From(PortId),
}

impl LinkDirections {
    /// The sending ports.
    pub fn ports(self, topology: &Topology) -> impl Iterator<Item = PortId> + use<> {
        let (port, other) = match self {
            LinkDirections::Both(port) => (port, Some(topology.port(port).reverse)),
            LinkDirections::From(port) => (port, None),
        };
        [port].into_iter().chain(other)
    }
}

/// A change of a link at a time during the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkEvent {
    /// Time of the change.
    pub at: Time,
    /// The link, or the direction of it, that changes.
    pub link: LinkDirections,
    /// The new state or rate of the link.
    pub change: LinkChange,
}

/// A fraction above 0 and at most 1, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u32);

impl Share {
    /// A share of 1: everything.
    pub const WHOLE: Share = Share(1_000_000);

    /// The fraction of `millionths` millionths, 1 to 1,000,000; `None` outside that range.
    pub fn from_millionths(millionths: u64) -> Option<Share> {
        let share = u32::try_from(millionths).ok().map(Share)?;
        (share.0 > 0 && share <= Share::WHOLE).then_some(share)
    }

    /// The fraction in millionths.
    pub fn millionths(self) -> u32 {
        self.0
    }

    /// This part of `whole`, rounded down.
    pub fn of(self, whole: u64) -> u64 {
        // The result is at most `whole`, so it fits.
        (u128::from(whole) * u128::from(self.0) / u128::from(Share::WHOLE.0)) as u64
    }
}

/// A direction of a link that is slow throughout the run, with a queue to match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowPort {
    /// The sending port.
    pub port: PortId,
    /// The fraction that remains of its rate, and of its queue's size and marking thresholds. The queue
    /// always has room for one packet.
    pub share: Share,
}

/// All faults of a run.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct FaultPlan {
    /// The random faults of every link.
    pub all_links: LinkFaults,
    /// Links that are slow from the start; [`LinkChange::Restore`] makes them as slow again. The last entry
    /// of a port counts.
    pub slow: Vec<SlowPort>,
    /// Changes during the run, in any order. Of several changes of one link at one time, the last in the list
    /// counts.
    pub events: Vec<LinkEvent>,
}
