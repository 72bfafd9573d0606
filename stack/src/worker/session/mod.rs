//! Applications that use an endpoint from other threads or processes, through [rings](super::ring).
//!
//! ```text
//!   application: Client ── commands ──▶ Sessions: one for each application ──▶ Fep
//!                       ◀── reports ──
//!                       ═══ memory ═══  messages are sent from it and received into it
//! ```
//!
//! A [`SessionServer`] drives a worker and serves its applications; loops of other owners call [`Sessions::serve`] once
//! each turn. An application holds a [`Client`]. Each application is a process of its own to peers
//! ([`ConnectOptions::process`]): it gets the messages that name it and no others, and the messages that it sends name it
//! ([`Source`](crate::ses::Source)). Datagrams name processes in the same way. The outcomes and errors in its reports are
//! those of the endpoint itself ([`crate::fep`]).
//!
//! An application is not trusted. Each word of its commands is checked; a command that makes no sense is answered with
//! [`Report::Refused`] and affects no other application. Its resources are fixed when its session is opened
//! ([`SessionConfig`]), and operations, connections and memory are reserved then. Reports that its ring has no room for
//! wait, and meanwhile none of its commands is executed; so it can delay only itself, and nothing is lost. The
//! session of an application that breaks its rings, leaves or dies is ended: its connections are closed without sending
//! the messages that wait, so that peers end with an error those that they have received in part; its receives
//! are dropped, and senders to it hear that there is no such process.
//!
//! Where sessions are served for a [`Worker`](super::Worker), a connection to a peer whose Ethernet address is being
//! asked for is held until the answer comes, with its messages; other connections are not. If no host answers, the
//! connection and its messages are refused, with [`CallError::Unreachable`], some three seconds after the first
//! question. If the peer is known to be unreachable already, or is unknown, the connection is refused at once with the
//! same error, and its messages, as those on any connection that is not open, with [`CallError::NotOpen`]. Datagrams to
//! such a peer are held, and refused, likewise.
//!
//! ```
//! # use std::sync::Arc;
//! # use weft_stack::cc::{CcChoice, CcParams, Delays, Rate, Span};
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
//! #     delays: Delays::Known,
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
//! [`CallError::NotOpen`]: crate::fep::CallError::NotOpen
//! [`CallError::Unreachable`]: crate::fep::CallError::Unreachable
//! [`ConnectOptions::process`]: crate::fep::ConnectOptions::process
#![forbid(unsafe_code)]

mod acceptor;
mod accounts;
mod application;
mod attention;
mod client;
mod command;
mod config;
mod connections;
mod held;
mod held_datagrams;
mod held_peers;
mod join;
mod join_queue;
mod limit_rows;
mod link;
mod listener;
mod operations;
mod outcome;
mod peer_costs;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod properties;
mod put_off;
mod refusal;
mod report;
mod sealing;
mod serve;
mod served;
mod server;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod server_properties;
#[cfg(test)]
mod tests;
mod unheard;
mod unmapper;
#[cfg(any(test, feature = "fuzzing"))]
mod world;

pub use acceptor::{GRACE, JOINING};
pub use application::{BYTES_PER_OPERATION, COMMANDS_PER_TURN, REPORTS_PER_TURN};
pub use client::{Client, ClientError, ConnectionHandle, Event, OperationHandle};
pub use command::{Command, DescriptorError, Extent, Found};
pub use config::{OpenError, SessionConfig};
pub use held::{HeldConnections, LET_GO_PER_TURN};
pub use join::{JoinError, ServerFacts};
pub use limit_rows::LimitRow;
pub use listener::{ListenError, SessionListener};
pub use put_off::{BYTES_ALONE, BYTES_PER_TURN, ENDS_PER_QUIET_TURN, ENDS_PER_TURN};
pub use report::{Report, Request};
pub use serve::{ServerEvent, SessionServer};
pub use served::{PlacePeer, Served};
pub use server::{Ended, SessionId, Sessions};

pub use crate::ledger::reserved_part;

/// A descriptor: one cache line.
pub type Slot = [u64; 8];

/// Bits `from` to `from + count` of `word`.
fn bits(word: u64, from: u32, count: u32) -> u64 {
    word >> from & ((1 << count) - 1)
}
