//! Rings between an application and a worker.
//!
//! A [`ring`](Producer) is bounded, for one thread that produces and one that consumes, and consists of
//! slots of 64-bit words. Its two ends may be in one process or in two that share memory; the layout is
//! the same. Neither end trusts the other:
//!
//! - An index that the peer has written is checked each time it is read. One that is out of range, or
//!   goes back, is [`Broken`]; no value of it can make this end leave the ring's memory.
//! - Words are read and written as relaxed atomics, so a peer that writes where it must not is a wrong
//!   value, never undefined behaviour. A slot is copied out before anybody looks at it: what was checked
//!   is what is used.
//!
//! The memory that messages are sent from and received into is a [`Region`](crate::region::Region).
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
