//! Rings between an application and a worker.
//!
//! A [`ring`](Producer) is a bounded queue for one producing and one consuming thread, made of slots of 64-bit words.
//! Its two ends may be in one process or in two processes that share memory; the layout is the same. Neither end
//! trusts the other:
//!
//! Every read of the peer's index is checked. An index that is out of range, or goes back, gives [`Broken`]; no value
//! of it can make this end leave the ring's memory.
//! Words are read and written as relaxed atomics, so a misbehaving peer causes wrong values, never undefined
//! behaviour. A slot is copied out before it is examined, so that the checked value is the one used.
//!
//! Messages are sent from, and received into, the memory of a [`Region`](crate::region::Region).
//!
//! ```
//! use weft_stack::worker::ring::ring;
//!
//! let (mut here, mut there) = ring::<8>(64)?;
//! assert!(here.push(&[7; 8])?);
//! assert_eq!(there.pop()?, Some([7; 8]));
//! assert_eq!(there.pop()?, None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod spsc;
mod storage;
mod sync;

pub use spsc::{Broken, Consumer, Producer, ring};
pub use storage::{RingError, ring_bytes};
