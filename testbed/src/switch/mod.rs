//! The trimming switch: the treatment of a packet between its arrival and its departure at an output port.
//!
//! The simulator and the software testbed share one model, the one that UET asks for: a queue for control
//! packets and trimmed packets, served before the data queue; a data queue that trims arriving packets when
//! it is full; and congestion marks at departure, with a probability that grows from 0 to 1 between two
//! thresholds of the data queue or of a phantom queue.
//!
//! The model is generic over the representation of a packet ([`Queued`]), which is a handle in both.
#![forbid(unsafe_code)]

mod ecmp;
mod lane;
mod occupancy;
mod phantom;
mod queue;
mod routing;

pub use ecmp::{Hasher, flow_hash};
pub use occupancy::Occupancy;
pub use phantom::PhantomConfig;
pub use queue::{EgressQueue, Enqueued, QueueConfig, QueueCounters, Queued};
pub use routing::{Adaptive, AdaptiveState, Backlog, QueueMeasure, Routing, RoutingError, Steering};
