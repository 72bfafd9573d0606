//! Atomics: those of the language, or those of the model checker.

#[cfg(not(loom))]
pub(super) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
