//! Applications that use an endpoint from other threads, or other processes, through [rings](super::ring).
//!
//! ```text
//!   application: Client ── commands ──▶ Sessions: one for each application ──▶ Fep
//!                       ◀── reports ──
//!                       ═══ memory ═══  messages are sent from it and received into it
//! ```
//!
//! The thread that drives a worker calls [`Sessions::serve`] once each turn. An application holds a
//! [`Client`]. Each is a process of its own to peers ([`ConnectOptions::process`]): it gets the messages that
//! name it and no others.
//!
//! What comes from an application is not trusted. Each word of its commands is checked; one that makes
//! no sense is answered with [`Report::Refused`] and concerns nobody else. What it may use up is fixed when its
//! session is opened ([`SessionConfig`]), and reserved then: operations, connections, memory. Reports that its
//! ring has no room for wait, and meanwhile none of its commands is looked at; so it can delay nobody but
//! itself, and nothing is lost. One whose rings are broken, who leaves, or who dies, is forgotten: its
//! connections are closed without sending what waits in them, so that peers end what they have received only in
//! part with an error; its receives are dropped, and who sends to it is told that there is no such process.
//!
//! Where sessions are served for a [`Worker`](super::Worker), a connection to a peer whose Ethernet address is being
//! asked for waits for the answer, with its messages; other connections do not. If nobody answers, all that was asked
//! for is refused, with [`Reason::NoWay`], some three seconds after the first question. Where it is known already that
//! there is no way, as to unknown peers, the connection is refused at once with that reason, and its messages, as those
//! on any connection that is not open, with [`Reason::NotOpen`].
//!
//! ```
//! # use std::sync::Arc;
//! # use weft_stack::cc::{CcChoice, CcParams, Rate, Span};
//! # use weft_stack::fep::{ConnectOptions, Fep, FepConfig};
//! # use weft_stack::packet::Addr;
//! # use weft_stack::rng::Rng;
//! # use weft_stack::ses::Matching;
//! # use weft_stack::worker::Clock;
//! use weft_stack::worker::session::{Extent, Report, SessionConfig, Sessions};
//! # let clock = Clock::new();
//! # let network = CcParams {
//! #     mtu: 4096,
//! #     overhead: 64,
//! #     link_rate: Rate::from_gbps(100),
//! #     network_rtt: Span::from_us(10),
//! #     trimming: true,
//! # };
//! # let config = Arc::new(FepConfig::new(&CcChoice::default(), &network));
//! # let mut fep = Fep::new(Addr(0), config, Rng::new(1, 1), clock.now())?;
//! let mut sessions = Sessions::new(8);
//! let mut client = sessions.open(&mut fep, &SessionConfig::default(), None)?;
//!
//! let room = Extent { region: 0, offset: 0, len: 100 };
//! let receive = client.receive(room, None, Matching::Untagged, 7)?;
//! client.cancel(receive)?;
//! sessions.serve(&mut fep, clock.now());
//! let event = client.poll()?.expect("a report");
//! assert_eq!(event.context, 7);
//! assert!(matches!(event.report, Report::Received { .. }));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`ConnectOptions::process`]: crate::fep::ConnectOptions::process
#![forbid(unsafe_code)]

mod client;
mod command;
mod config;
mod door;
mod link;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod properties;
mod reason;
mod report;
mod server;
#[cfg(test)]
mod tests;
mod way;
#[cfg(any(test, feature = "fuzzing"))]
mod world;

pub use client::{Client, ClientError, Connection, Event, Operation};
pub use command::{Command, DescriptorError, Extent};
pub use config::{OpenError, SessionConfig};
pub use door::{Door, DoorError, JoinError};
pub use reason::Reason;
pub use report::{Report, Request, Status};
pub use server::{Ended, SessionId, Sessions};
pub use way::Endpoint;

/// A descriptor: one cache line.
pub type Slot = [u64; 8];

/// Bits `from` to `from + count` of `word`.
fn bits(word: u64, from: u32, count: u32) -> u64 {
    word >> from & ((1 << count) - 1)
}
