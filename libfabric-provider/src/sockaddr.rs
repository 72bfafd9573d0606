//! Socket addresses of IPv4 and IPv6, as libfabric's programs have them.

use std::ffi::c_void;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::error::FiError;
use crate::sys;

/// The kind of all addresses of a domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Family {
    #[default]
    V4,
    V6,
}

impl Family {
    pub(crate) fn of(ip: &IpAddr) -> Family {
        if ip.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// The family of libfabric's address format, if that says one.
    pub(crate) fn of_format(format: u32) -> Option<Family> {
        match format {
            sys::FI_SOCKADDR_IN => Some(Family::V4),
            sys::FI_SOCKADDR_IN6 => Some(Family::V6),
            _ => None,
        }
    }

    pub(crate) fn format(self) -> u32 {
        match self {
            Family::V4 => sys::FI_SOCKADDR_IN,
            Family::V6 => sys::FI_SOCKADDR_IN6,
        }
    }

    /// How the text form of an address begins, as libfabric has it.
    pub(crate) fn scheme(self) -> &'static str {
        match self {
            Family::V4 => "fi_sockaddr_in://",
            Family::V6 => "fi_sockaddr_in6://",
        }
    }

    /// Bytes of an address.
    pub(crate) fn len(self) -> usize {
        match self {
            Family::V4 => size_of::<libc::sockaddr_in>(),
            Family::V6 => size_of::<libc::sockaddr_in6>(),
        }
    }

    pub(crate) fn unspecified(self) -> IpAddr {
        match self {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    pub(crate) fn localhost(self) -> IpAddr {
        match self {
            Family::V4 => Ipv4Addr::LOCALHOST.into(),
            Family::V6 => Ipv6Addr::LOCALHOST.into(),
        }
    }
}

/// The address at `addr`; `None` if it is of neither family, or too short.
///
/// # Safety
/// There are `len` bytes at `addr`, or `addr` is null.
pub(crate) unsafe fn read(addr: *const c_void, len: usize) -> Option<SocketAddr> {
    if addr.is_null() || len < Family::V4.len() {
        return None;
    }
    // SAFETY: there are enough bytes, and every pattern of them is a value. They may be anywhere.
    let v4 = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
    match i32::from(v4.sin_family) {
        libc::AF_INET => {
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 if len >= Family::V6.len() => {
            // SAFETY: as before.
            let v6 = unsafe { addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, 0).into())
        }
        _ => None,
    }
}

/// Writes an address to where an application wants it, and its length: as much of it as `len` says there is room for.
/// Returns whether it is all of it.
///
/// # Safety
/// There are `*len` bytes at `at`.
pub(crate) unsafe fn write(addr: &SocketAddr, at: *mut c_void, len: &mut usize) -> bool {
    let whole = Family::of(&addr.ip()).len();
    let room = std::mem::replace(len, whole);
    let copy = |raw: *const u8| {
        if !at.is_null() {
            // SAFETY: there is room for so many bytes, and so many are there.
            unsafe { at.cast::<u8>().copy_from_nonoverlapping(raw, room.min(whole)) };
        }
    };
    match addr {
        SocketAddr::V4(v4) => copy(std::ptr::from_ref(&raw_v4(v4)).cast()),
        SocketAddr::V6(v6) => copy(std::ptr::from_ref(&raw_v6(v6)).cast()),
    }
    room >= whole && !at.is_null()
}

fn raw_v4(addr: &SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: addr.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*addr.ip()).to_be() },
        sin_zero: [0; 8],
    }
}

fn raw_v6(addr: &SocketAddrV6) -> libc::sockaddr_in6 {
    libc::sockaddr_in6 {
        sin6_family: libc::AF_INET6 as libc::sa_family_t,
        sin6_port: addr.port().to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: addr.ip().octets() },
        sin6_scope_id: 0,
    }
}

/// An address that libfabric frees with `free`.
pub(crate) fn duplicate(addr: &SocketAddr) -> Result<*mut c_void, FiError> {
    let mut len = Family::of(&addr.ip()).len();
    // SAFETY: it is a number of bytes.
    let at = unsafe { libc::malloc(len) };
    if at.is_null() {
        return Err(FiError::NO_MEMORY);
    }
    // SAFETY: so many bytes have been allocated.
    unsafe { write(addr, at, &mut len) };
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_were_written() {
        for (text, len) in [("192.0.2.1:4000", 16), ("[fd00::1]:4000", 28)] {
            let addr: SocketAddr = text.parse().unwrap();
            let (mut room, mut room_len) = ([0xffu8; 32], 32);
            // SAFETY: there are so many bytes.
            unsafe {
                assert!(write(&addr, room.as_mut_ptr().cast(), &mut room_len));
                assert_eq!(room_len, len);
                assert_eq!(read(room.as_ptr().cast(), len), Some(addr));
                assert_eq!(read(room.as_ptr().cast(), len - 1), None, "too short");
                let mut short = 8;
                assert!(!write(&addr, room.as_mut_ptr().cast(), &mut short), "cut off");
                assert_eq!(short, len);
            }
        }
        // SAFETY: there are so many bytes.
        assert_eq!(unsafe { read([0u8; 32].as_ptr().cast(), 32) }, None, "of no family");
    }
}
