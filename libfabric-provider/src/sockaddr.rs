//! Socket addresses of IPv4 and IPv6, as libfabric's programs have them.

use std::ffi::c_void;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::abi;
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
unsafe fn write(addr: &SocketAddr, at: *mut c_void, len: &mut usize) -> bool {
    let whole = Family::of(&addr.ip()).len();
    // SAFETY: as the caller promises.
    let copy = |raw: *const u8, len: &mut usize| unsafe {
        write_bytes(std::slice::from_raw_parts(raw, whole), at, len)
    };
    match addr {
        SocketAddr::V4(v4) => copy(std::ptr::from_ref(&raw_v4(v4)).cast(), len),
        SocketAddr::V6(v6) => copy(std::ptr::from_ref(&raw_v6(v6)).cast(), len),
    }
}

/// # Safety
/// There are `*len` bytes at `at`.
unsafe fn write_bytes(bytes: &[u8], at: *mut c_void, len: &mut usize) -> bool {
    let room = std::mem::replace(len, bytes.len());
    if !at.is_null() {
        // SAFETY: there is room for so many bytes, and so many are there.
        unsafe { at.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), room.min(bytes.len())) };
    }
    room >= bytes.len() && !at.is_null()
}

/// How programs write all addresses of a domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Format {
    pub(crate) family: Family,
    /// As texts that end with a zero (FI_ADDR_STR).
    pub(crate) is_text: bool,
}

impl Format {
    /// libfabric's number of it.
    pub(crate) fn number(self) -> u32 {
        if self.is_text { sys::FI_ADDR_STR } else { self.family.format() }
    }

    /// Reads address number `n` of those that a program inserts into an address vector.
    ///
    /// # Safety
    /// There are more than `n` addresses at `addrs`: one behind the other, or, as texts, a pointer to each.
    pub(crate) unsafe fn read_nth(self, addrs: *const c_void, n: usize) -> Option<SocketAddr> {
        if self.is_text {
            // SAFETY: as the caller promises.
            return unsafe { self.read(addrs.cast::<*const c_void>().add(n).read_unaligned()) };
        }
        // SAFETY: as the caller promises.
        unsafe { self.read(addrs.cast::<u8>().add(n * self.family.len()).cast()) }
    }

    /// Reads an address of the domain's.
    ///
    /// # Safety
    /// There is one at `addr`, or `addr` is null.
    pub(crate) unsafe fn read(self, addr: *const c_void) -> Option<SocketAddr> {
        if self.is_text {
            // SAFETY: as the caller promises.
            return unsafe { abi::text(addr.cast()) }.ok().flatten().and_then(parse);
        }
        // SAFETY: as the caller promises.
        unsafe { read(addr, self.family.len()) }
    }

    /// Reads an address as a text, of `len` bytes at most.
    ///
    /// # Safety
    /// There are so many bytes at `addr`, or a text that ends before.
    pub(crate) unsafe fn read_text(addr: *const c_void, len: usize) -> Option<SocketAddr> {
        if addr.is_null() {
            return None;
        }
        // SAFETY: as the caller promises.
        let bytes = unsafe { std::slice::from_raw_parts(addr.cast(), libc::strnlen(addr.cast(), len)) };
        std::str::from_utf8(bytes).ok().and_then(parse)
    }

    /// Writes an address to where an application wants it, and its length: as much of it as `len` says there is room for.
    /// Returns whether it is all of it.
    ///
    /// # Safety
    /// There are `*len` bytes at `at`.
    pub(crate) unsafe fn write(self, addr: &SocketAddr, at: *mut c_void, len: &mut usize) -> bool {
        if !self.is_text {
            // SAFETY: as the caller promises.
            return unsafe { write(addr, at, len) };
        }
        let text = text(addr) + "\0";
        let room = *len;
        // SAFETY: as the caller promises.
        let is_all = unsafe { write_bytes(text.as_bytes(), at, len) };
        if !is_all && !at.is_null() && room > 0 {
            // SAFETY: as before. A text that is cut off is a text.
            unsafe { at.cast::<u8>().add(room - 1).write(0) };
        }
        is_all
    }

    /// An address that libfabric frees with `free`, and its length.
    pub(crate) fn duplicate(self, addr: &SocketAddr) -> Result<(*mut c_void, usize), FiError> {
        let mut len = if self.is_text { text(addr).len() + 1 } else { Family::of(&addr.ip()).len() };
        // SAFETY: it is a number of bytes.
        let at = unsafe { libc::malloc(len) };
        if at.is_null() {
            return Err(FiError::NO_MEMORY);
        }
        // SAFETY: so many bytes have been allocated.
        unsafe { self.write(addr, at, &mut len) };
        Ok((at, len))
    }
}

/// An address as libfabric writes it for people, and as FI_ADDR_STR.
pub(crate) fn text(addr: &SocketAddr) -> String {
    format!("{}{addr}", Family::of(&addr.ip()).scheme())
}

/// Reads what [`text`] writes. The port may be missing, and is 0 then; `fi_sockaddr://` stands for either family.
pub(crate) fn parse(text: &str) -> Option<SocketAddr> {
    let (scheme, rest) = text.split_once("://")?;
    let family = match scheme {
        "fi_sockaddr" => None,
        "fi_sockaddr_in" => Some(Family::V4),
        "fi_sockaddr_in6" => Some(Family::V6),
        _ => return None,
    };
    let bare_v6 = || rest.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok().map(IpAddr::from);
    let ip = || rest.parse::<IpAddr>().ok().or_else(bare_v6);
    let addr = rest.parse::<SocketAddr>().ok().or_else(|| Some((ip()?, 0).into()))?;
    family.is_none_or(|family| family == Family::of(&addr.ip())).then_some(addr)
}

/// Whether a node that a program names is an address as a text.
pub(crate) fn is_text(node: &str) -> bool {
    node.starts_with("fi_sockaddr")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_as_they_were_written() {
        for addr in ["192.0.2.1:4000", "[fd00::1]:4000"].map(|addr| addr.parse::<SocketAddr>().unwrap()) {
            let format = Format { family: Family::of(&addr.ip()), is_text: true };
            let (at, len) = format.duplicate(&addr).unwrap();
            // SAFETY: it is a text, which ends with a zero and was allocated by `malloc`.
            unsafe {
                assert_eq!(format.read(at), Some(addr));
                assert_eq!(format.read_nth((&raw const at).cast(), 0), Some(addr));
                let mut short = [7u8; 8];
                let mut room = short.len();
                assert!(!format.write(&addr, short.as_mut_ptr().cast(), &mut room));
                assert_eq!((&short, room), (b"fi_sock\0", len));
                libc::free(at);
            }
        }
        let addr = |text: &str| Some(text.parse::<SocketAddr>().unwrap());
        assert_eq!(parse("fi_sockaddr://192.0.2.1:5"), addr("192.0.2.1:5"));
        assert_eq!(parse("fi_sockaddr_in://192.0.2.1"), addr("192.0.2.1:0"));
        assert_eq!(parse("fi_sockaddr_in6://[fd00::1]"), addr("[fd00::1]:0"));
        for wrong in ["fi_sockaddr://[192.0.2.1]", "fi_sockaddr://[[fd00::1]]", "fi_sockaddr://[fd00::1"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        let text = c"fi_sockaddr_in://192.0.2.1:4000";
        // SAFETY: the text has more bytes than are read of it, or ends before.
        let read = |len| unsafe { Format::read_text(text.as_ptr().cast(), len) };
        assert_eq!([read(text.count_bytes() - 3), read(99)], [addr("192.0.2.1:4"), addr("192.0.2.1:4000")]);
        let others = [
            "192.0.2.1:5",
            "fi_sockaddr_in://[fd00::1]:5",
            "fi_sockaddr_in://192.0.2.1:5?a=b",
            "fi_addr://x",
        ];
        assert_eq!(others.map(parse), [None; 4]);
    }

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
