//! Memory and the processor: prefetching, and a note on stores.
//!
//! # Store-forwarding stalls
//!
//! A processor that loads bytes it has just stored takes them from its store buffer, if one store covers all of the
//! load. If several smaller stores do, the load waits until they have reached the cache: some 15 cycles, a
//! *store-forwarding stall*. This happens where a value is put together field by field and is then moved as a whole with
//! wide loads: a struct that is returned through memory because it does not fit in registers, an `Option` or a `Result` of
//! it, an element pushed to a queue. On the fast path such values are therefore built where they stay: the function that
//! makes one is inlined, or writes to a place that the caller provides. Comments that say "store-forwarding stall"
//! refer to this.

/// Brings a value into the cache without waiting for it.
#[inline]
pub fn prefetch<T>(value: &T) {
    prefetch_start(value, size_of::<T>());
}

/// Brings the first `len` bytes of a value into the cache without waiting for them.
#[inline]
pub fn prefetch_start<T>(value: &T, len: usize) {
    prefetch_lines(core::ptr::from_ref(value).cast(), len.min(size_of::<T>()));
}

/// Brings the `len` bytes from `start` on into the cache without waiting for them.
#[inline]
pub(crate) fn prefetch_lines(start: *const u8, len: usize) {
    let start = start.cast::<i8>();
    for offset in (0..len).step_by(64) {
        fetch(start.wrapping_add(offset));
    }
    // Values need not begin where a line does.
    fetch(start.wrapping_add(len.saturating_sub(1)));
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[expect(unsafe_code, reason = "there is no safe way to say it")]
fn fetch(address: *const i8) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch reads and writes nothing that a program could see, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address) };
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn fetch(_: *const i8) {}
