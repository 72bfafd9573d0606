//! The enums that dispatch the fast path to the chosen algorithms: built-in ones without indirection, a
//! user's own through a box.

use std::fmt;

use crate::constant::Constant;
use crate::dctcp::Dctcp;
use crate::median::Median;
use crate::nscc::Nscc;
use crate::rccc::Rccc;
use crate::smartt::Smartt;
use crate::swift::Swift;
use crate::unlimited::Unlimited;
use crate::{
    AckSample, CcSnapshot, Credit, DataSample, LossSample, NackSample, PeerId, ReceiverCc, SenderCc,
    SenderId, SentPacket, Span, Time, Window,
};

/// Any sender's algorithm. A new one gets an arm here and a line in the macro below.
#[non_exhaustive]
pub enum SenderAlgorithm {
    /// NSCC after the UE text.
    Nscc(Nscc),
    /// SMaRTT after the paper.
    Smartt(Smartt),
    /// DCTCP.
    Dctcp(Dctcp),
    /// A fixed window.
    Constant(Constant),
    /// No window: the receiver's credits decide alone.
    Unlimited(Unlimited),
    /// Swift and LSwift.
    Swift(Box<Swift>),
    /// Another one, behind a median filter.
    Median(Box<Median>),
    /// A user's own.
    Custom(Box<dyn SenderCc + Send>),
}

/// Calls the algorithm behind a [`SenderAlgorithm`]; with a second call, that one if it is a user's own.
macro_rules! each_sender {
    ($self:expr, $cc:ident => $call:expr) => {
        each_sender!($self, $cc => $call, $cc => $call)
    };
    ($self:expr, $cc:ident => $call:expr, $own:ident => $call_own:expr) => {
        match $self {
            SenderAlgorithm::Nscc($cc) => $call,
            SenderAlgorithm::Smartt($cc) => $call,
            SenderAlgorithm::Dctcp($cc) => $call,
            SenderAlgorithm::Constant($cc) => $call,
            SenderAlgorithm::Unlimited($cc) => $call,
            SenderAlgorithm::Swift($cc) => $call,
            SenderAlgorithm::Median($cc) => $call,
            SenderAlgorithm::Custom($own) => $call_own,
        }
    };
}

impl SenderCc for SenderAlgorithm {
    #[inline]
    fn on_send(&mut self, now: Time, pkt: &SentPacket) {
        each_sender!(self, cc => cc.on_send(now, pkt))
    }

    fn on_hops(&mut self, hops: u8) {
        each_sender!(self, cc => cc.on_hops(hops))
    }

    #[inline]
    fn on_ack(&mut self, now: Time, ack: &AckSample) {
        each_sender!(self, cc => cc.on_ack(now, ack))
    }

    #[inline]
    fn on_nack(&mut self, now: Time, nack: &NackSample) {
        each_sender!(self, cc => cc.on_nack(now, nack))
    }

    #[inline]
    fn on_timeout(&mut self, now: Time, lost: &LossSample) {
        each_sender!(self, cc => cc.on_timeout(now, lost))
    }

    #[inline]
    fn window(&self) -> Window {
        each_sender!(self, cc => cc.window())
    }

    #[inline]
    fn next_departure(&self) -> Option<Time> {
        each_sender!(self, cc => cc.next_departure())
    }

    fn expected_rtt(&self) -> Span {
        each_sender!(self, cc => cc.expected_rtt())
    }

    fn snapshot(&self) -> CcSnapshot {
        each_sender!(self, cc => cc.snapshot())
    }
}

impl fmt::Debug for SenderAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        each_sender!(self, cc => cc.fmt(f), own => f.debug_tuple("Custom").field(&own.snapshot()).finish())
    }
}

/// Any receiver's scheduler. A new one gets an arm here and a line in the macro below.
#[non_exhaustive]
pub enum ReceiverAlgorithm {
    /// Paced round-robin credit.
    Rccc(Rccc),
    /// A user's own.
    Custom(Box<dyn ReceiverCc + Send>),
}

/// Calls the scheduler behind a [`ReceiverAlgorithm`]; with a second call, that one if it is a user's own.
macro_rules! each_receiver {
    ($self:expr, $cc:ident => $call:expr) => {
        each_receiver!($self, $cc => $call, $cc => $call)
    };
    ($self:expr, $cc:ident => $call:expr, $own:ident => $call_own:expr) => {
        match $self {
            ReceiverAlgorithm::Rccc($cc) => $call,
            ReceiverAlgorithm::Custom($own) => $call_own,
        }
    };
}

impl ReceiverCc for ReceiverAlgorithm {
    fn on_join(&mut self, now: Time, sender: SenderId, peer: PeerId) {
        each_receiver!(self, cc => cc.on_join(now, sender, peer))
    }

    #[inline]
    fn on_demand(&mut self, now: Time, sender: SenderId, bytes: u64) {
        each_receiver!(self, cc => cc.on_demand(now, sender, bytes))
    }

    #[inline]
    fn on_data(&mut self, now: Time, sender: SenderId, data: &DataSample) {
        each_receiver!(self, cc => cc.on_data(now, sender, data))
    }

    fn on_leave(&mut self, now: Time, sender: SenderId) {
        each_receiver!(self, cc => cc.on_leave(now, sender))
    }

    #[inline]
    fn poll_credit(&mut self, now: Time) -> Option<Credit> {
        each_receiver!(self, cc => cc.poll_credit(now))
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Time> {
        each_receiver!(self, cc => cc.poll_timeout())
    }

    fn outstanding(&self, sender: SenderId) -> u64 {
        each_receiver!(self, cc => cc.outstanding(sender))
    }
}

impl fmt::Debug for ReceiverAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        each_receiver!(self, cc => cc.fmt(f), _own => f.write_str("Custom"))
    }
}
