//! The trimming switch: what happens to a packet between its arrival and its departure at an output port.
//!
//! One model for the simulator and the software testbed, the one that UET asks for: a queue for
//! control packets and trimmed ones, served before the data queue; a data queue that, when full,
//! costs the arriving packet its payload; congestion marks at departure with a probability that
//! grows from 0 to 1 between two thresholds of the data queue, or of a phantom queue.
//!
//! The model is generic over what stands for a packet: a handle in the simulator, a buffer in real time.
#![forbid(unsafe_code)]

mod ecmp;
mod lane;
mod phantom;
mod queue;

pub use ecmp::{Hasher, flow_hash};
pub use phantom::PhantomConfig;
pub use queue::{EgressQueue, Enqueued, QueueConfig, QueueCounters, Queued};
