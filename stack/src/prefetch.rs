//! Telling the processor what will be needed soon.

/// Brings a value into the cache without waiting for it: at most 24 cache lines from its start.
#[inline]
pub fn prefetch<T>(value: &T) {
    let start = core::ptr::from_ref(value).cast::<i8>();
    let len = size_of::<T>().min(LINES * 64);
    for offset in (0..len).step_by(64) {
        fetch(start.wrapping_add(offset));
    }
    // Values need not begin where a line does.
    fetch(start.wrapping_add(len.saturating_sub(1)));
}

/// More would push each other out of the processor's list of lines to fetch.
const LINES: usize = 24;

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
