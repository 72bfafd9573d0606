//! Copies between memory of this process and memory that other processes may write at the same time.
//!
//! In Rust an ordinary copy of bytes that another thread writes at the same time is undefined behaviour,
//! and for another process the language has no rule at all. Each byte must come out with a value that it
//! had at some time: a copy made of relaxed atomic operations, byte by byte, does that. The language has
//! none that is fast, but the processor's own copies are such: the assembly below does what a
//! loop of relaxed loads and stores would do, and the compiler has to assume that it does.
//! On other processors, and under tools that watch every access, that loop runs instead.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU8, Ordering};

#[cfg(test)]
pub(crate) use self::count::{LONG, copied};

/// Whether the processor's own copies are used.
macro_rules! by_processor {
    () => {
        cfg!(all(target_arch = "x86_64", not(miri), not(weft_plain_copies)))
    };
}

/// Copies `len` bytes from `src`, which other processes may be writing, to `dst`, which only the caller uses.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` bytes, and they do not overlap. Other processes access `src`
/// in no other way than with the functions of this module and with atomics.
#[inline]
pub(super) unsafe fn copy_out(src: *const u8, dst: *mut u8, len: usize) {
    #[cfg(test)]
    count::note(len);
    if by_processor!() && len >= 16 {
        // SAFETY: the caller promises the same to this function, and `len` is 16 at least.
        return unsafe { by_processor(src, dst, len) };
    }
    for at in 0..len {
        // SAFETY: `at < len`, and the caller promises `len` valid bytes on either side. Bytes are always aligned, and
        // atomic accesses may race.
        unsafe { dst.add(at).write(AtomicU8::from_ptr(src.add(at).cast_mut()).load(Ordering::Relaxed)) };
    }
}

/// Copies `len` bytes from `src`, which only the caller uses, to `dst`, which other processes may read or write.
///
/// # Safety
/// As [`copy_out`], with the sides exchanged.
#[inline]
pub(super) unsafe fn copy_in(src: *const u8, dst: *mut u8, len: usize) {
    #[cfg(test)]
    count::note(len);
    if by_processor!() && len >= 16 {
        // SAFETY: the caller promises the same to this function, and `len` is 16 at least.
        return unsafe { by_processor(src, dst, len) };
    }
    for at in 0..len {
        // SAFETY: `at < len`, and the caller promises `len` valid bytes on either side. Bytes are always aligned, and
        // atomic accesses may race.
        unsafe { AtomicU8::from_ptr(dst.add(at)).store(src.add(at).read(), Ordering::Relaxed) };
    }
}

/// Copies `len` bytes from `src` to `dst`, both of which other processes may read or write.
///
/// # Safety
/// As [`copy_out`] for `src`, and as [`copy_in`] for `dst`; but the two may overlap, and then the bytes where they do
/// come out as either side's.
#[inline]
pub(super) unsafe fn copy_across(src: *const u8, dst: *mut u8, len: usize) {
    #[cfg(test)]
    count::note(len);
    if by_processor!() && len >= 16 {
        // SAFETY: the caller promises the same to this function, and `len` is 16 at least.
        return unsafe { by_processor(src, dst, len) };
    }
    for at in 0..len {
        // SAFETY: `at < len`, and the caller promises `len` valid bytes on either side. Bytes are always aligned, and
        // atomic accesses may race.
        unsafe {
            let byte = AtomicU8::from_ptr(src.add(at).cast_mut()).load(Ordering::Relaxed);
            AtomicU8::from_ptr(dst.add(at)).store(byte, Ordering::Relaxed);
        }
    }
}

/// # Safety
/// As [`copy_out`], [`copy_in`] or [`copy_across`], and `len` is at least 16.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn by_processor(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: the caller promises the same to this function, and `len` is 16 at least.
    unsafe {
        // For shorter copies, starting a string instruction costs more than it saves.
        if len <= 256 { sixteens(src, dst, len) } else { string(src, dst, len) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn by_processor(_: *const u8, _: *mut u8, _: usize) {
    unreachable!("only where there is one")
}

/// # Safety
/// As [`by_processor`].
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn sixteens(src: *const u8, dst: *mut u8, len: usize) {
    let last = len - 16;
    let mut at = 0;
    // SAFETY: `at + 16` and `last + 16` are at most `len`.
    unsafe {
        while at < last {
            sixteen(src, dst, at);
            at += 16;
        }
        // It may overlap the one before, and then writes the same bytes once more.
        sixteen(src, dst, last);
    }
}

/// Copies the sixteen bytes from `at` on.
///
/// # Safety
/// As [`by_processor`], with `at + 16` bytes.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn sixteen(src: *const u8, dst: *mut u8, at: usize) {
    // SAFETY: the caller promises `at + 16` valid bytes on either side. These instructions access them unaligned, and
    // touch no other memory, no stack and no flags.
    unsafe {
        core::arch::asm!(
            "movdqu {t}, xmmword ptr [{src} + {at}]",
            "movdqu xmmword ptr [{dst} + {at}], {t}",
            src = in(reg) src,
            dst = in(reg) dst,
            at = in(reg) at,
            t = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// # Safety
/// As [`by_processor`].
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn string(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: reads and writes `len` bytes; the direction flag is clear by the ABI.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") src => _,
            inout("rdi") dst => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Counts of copies, for tests: tools that watch the C library's functions do not see these copies.
#[cfg(test)]
mod count {
    use std::cell::Cell;

    /// Copies of this many bytes or more are of payload; shorter ones are of headers.
    pub(crate) const LONG: usize = 512;

    /// Copies of one thread.
    #[derive(Clone, Copy, Default)]
    pub(crate) struct Copied {
        /// Number of copies of [`LONG`] bytes and more.
        pub(crate) long: u64,
        /// Bytes of all copies, short ones included.
        pub(crate) bytes: u64,
    }

    thread_local! {
        static COPIED: Cell<Copied> = Cell::default();
    }

    pub(super) fn note(len: usize) {
        let Copied { long, bytes } = COPIED.get();
        COPIED.set(Copied { long: long + u64::from(len >= LONG), bytes: bytes + len as u64 });
    }

    /// The copies that this thread has made so far.
    pub(crate) fn copied() -> Copied {
        COPIED.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_touch_exactly_the_given_bytes() {
        let source: Vec<u8> = (0..1200u32).map(|n| (n * 7 + n / 256) as u8).collect();
        for len in (0..300).chain([511, 512, 1000, 1100]) {
            for (copy, shift) in [copy_in, copy_out, copy_across]
                .into_iter()
                .flat_map(|copy| [(copy, 0), (copy, 1), (copy, 7)])
            {
                let (mut source, mut target) = (source.clone(), vec![0xee; 1200]);
                // SAFETY: both are longer than `2 * shift + len`, and distinct.
                unsafe { copy(source.as_mut_ptr().add(shift), target.as_mut_ptr().add(2 * shift), len) };
                assert_eq!(target[2 * shift..][..len], source[shift..][..len]);
                assert!(
                    target[..2 * shift].iter().chain(&target[2 * shift + len..]).all(|&byte| byte == 0xee)
                );
            }
        }
    }
}
