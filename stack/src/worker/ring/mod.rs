//! Rings between an application and a worker, and the memory that both of them see.
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
//! - [`Region`]s, the memory that messages are sent from and received into, are never lent as slices.
//!   Bytes are copied in and out with an operation that may race (`copy.rs`).
//!
//! ```
//! use weft_stack::worker::ring::{Region, ring};
//!
//! let (mut here, mut there) = ring::<8>(64)?;
//! assert!(here.push(&[7; 8])?);
//! assert_eq!(there.pop()?, Some([7; 8]));
//! assert_eq!(there.pop()?, None);
//!
//! let memory = Region::allocate(4096)?;
//! let slice = memory.slice(100, 5)?;
//! slice.write(0, b"hello");
//! let mut copy = [0; 5];
//! slice.read(0, &mut copy);
//! assert_eq!(&copy, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod copy;
mod region;
#[cfg(target_os = "linux")]
mod shared;
mod spsc;
mod storage;
mod sync;

#[cfg(test)]
pub(crate) use copy::{LONG, copied};
pub use region::{Region, RegionBytes, RegionError, RegionSlice};
#[cfg(target_os = "linux")]
pub use shared::SharedRegion;
pub use spsc::{Broken, Consumer, Producer, ring};
pub use storage::{RingError, ring_bytes};

/// Bytes between what different threads write: a cache line, and the one that is fetched with it.
pub const SEPARATION: usize = 128;
