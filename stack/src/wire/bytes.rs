//! Big-endian fields at fixed offsets of fixed-size headers.
//!
//! Headers are read and written through arrays whose size is a constant. The one length check is in [`head`] or
//! [`room`]; accesses inside the array compile to plain loads and stores.

use super::error::{HeaderName, WireError};

/// The first `N` bytes of `bytes`.
#[inline]
pub(super) fn head<const N: usize>(bytes: &[u8], header: HeaderName) -> Result<&[u8; N], WireError> {
    bytes.first_chunk().ok_or(WireError::Truncated { header, needed: N, found: bytes.len() })
}

/// Room for `N` bytes at the start of `buf`.
#[inline]
pub(super) fn room<const N: usize>(buf: &mut [u8], header: HeaderName) -> Result<&mut [u8; N], WireError> {
    let room = buf.len();
    buf.first_chunk_mut().ok_or(WireError::NoRoom { header, needed: N, room })
}

#[inline]
pub(super) fn take<const N: usize, const M: usize>(b: &[u8; N], at: usize) -> [u8; M] {
    let mut out = [0; M];
    out.copy_from_slice(&b[at..at + M]);
    out
}

#[inline]
pub(super) fn be16<const N: usize>(b: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes(take(b, at))
}

#[inline]
pub(super) fn be24<const N: usize>(b: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([0, b[at], b[at + 1], b[at + 2]])
}

#[inline]
pub(super) fn be32<const N: usize>(b: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes(take(b, at))
}

#[inline]
pub(super) fn be64<const N: usize>(b: &[u8; N], at: usize) -> u64 {
    u64::from_be_bytes(take(b, at))
}

#[inline]
pub(super) fn be128<const N: usize>(b: &[u8; N], at: usize) -> u128 {
    u128::from_be_bytes(take(b, at))
}

#[inline]
pub(super) fn put<const N: usize, const M: usize>(b: &mut [u8; N], at: usize, bytes: [u8; M]) {
    b[at..at + M].copy_from_slice(&bytes);
}

/// The low 24 bits of `v`.
#[inline]
pub(super) fn put24<const N: usize>(b: &mut [u8; N], at: usize, v: u32) {
    let [_, x, y, z] = v.to_be_bytes();
    put(b, at, [x, y, z]);
}
