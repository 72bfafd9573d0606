//! The types of endpoints, and what each of them offers.

use crate::info::{RECEIVE_FLAGS, RELIABLE_CAPS, SEND_FLAGS, UNRELIABLE_CAPS};
use crate::rdm::{DEPTH, RECEIVES};
use crate::sys;

/// A type of endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Reliable messages and accesses to remote memory, without connections (FI_EP_RDM).
    Rdm,
    /// Datagrams, which may be lost (FI_EP_DGRAM).
    Datagram,
}

impl Kind {
    /// All of them, in the order in which they are offered to those who do not name one.
    pub(crate) const ALL: [Kind; 2] = [Kind::Rdm, Kind::Datagram];

    /// Those that hints with this type ask for.
    pub(crate) fn wanted(type_: sys::fi_ep_type) -> impl Iterator<Item = Kind> {
        let is_wanted = move |kind: &Kind| type_ == sys::FI_EP_UNSPEC || type_ == kind.ep_type();
        Kind::ALL.into_iter().filter(is_wanted)
    }

    /// The one of this type; reliable messages if none is named.
    pub(crate) fn of(type_: sys::fi_ep_type) -> Option<Kind> {
        Kind::wanted(type_).next()
    }

    pub(crate) fn ep_type(self) -> sys::fi_ep_type {
        match self {
            Kind::Rdm => sys::FI_EP_RDM,
            Kind::Datagram => sys::FI_EP_DGRAM,
        }
    }

    pub(crate) fn caps(self) -> u64 {
        match self {
            Kind::Rdm => RELIABLE_CAPS,
            Kind::Datagram => UNRELIABLE_CAPS,
        }
    }

    /// Flags of messages that are sent.
    pub(crate) fn send_flags(self) -> u64 {
        match self {
            Kind::Rdm => SEND_FLAGS,
            // Nobody says that a datagram was delivered.
            Kind::Datagram => SEND_FLAGS & !sys::FI_DELIVERY_COMPLETE,
        }
    }

    /// Flags of receives.
    pub(crate) fn receive_flags(self) -> u64 {
        match self {
            Kind::Rdm => RECEIVE_FLAGS,
            Kind::Datagram => RECEIVE_FLAGS & !sys::FI_MULTI_RECV,
        }
    }

    /// Receives that may be posted.
    pub(crate) fn receives(self) -> usize {
        match self {
            Kind::Rdm => RECEIVES,
            Kind::Datagram => DEPTH,
        }
    }

    /// The order of messages.
    pub(crate) fn order(self) -> u64 {
        match self {
            Kind::Rdm => sys::FI_ORDER_SAS,
            Kind::Datagram => sys::FI_ORDER_NONE,
        }
    }
}
