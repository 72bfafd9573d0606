//! The system calls.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

use arrayvec::ArrayVec;
use libc::c_int;

use super::control::Control;
use crate::port::BURST;

/// Sets an option that is a number.
pub(super) fn set(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the pointer and the length are those of `value`, which the call only reads.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) }).map(drop)
}

/// Reads an option that is a number.
pub(super) fn get(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the pointers are those of `value` and of its length, and outlive the call.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &mut len) })?;
    Ok(value)
}

/// Messages for the socket that the kernel has dropped since it was opened, modulo 2³².
pub(super) fn drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut values = [0u32; libc::SK_MEMINFO_DROPS as usize + 1];
    let mut len = size_of_val(&values) as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_MEMINFO);
    // SAFETY: the pointers are those of `values` and of its length in bytes, and outlive the call.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, values.as_mut_ptr().cast(), &mut len) })?;
    Ok(values[libc::SK_MEMINFO_DROPS as usize])
}

fn check(result: c_int) -> io::Result<usize> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as usize) }
}

/// A socket address in the kernel's form.
#[derive(Clone, Copy)]
pub(super) enum RawAddr {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl RawAddr {
    pub(super) fn new(addr: SocketAddr) -> RawAddr {
        match addr {
            SocketAddr::V4(v4) => RawAddr::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(v6) => RawAddr::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            }),
        }
    }

    fn as_ptr(&self) -> (*const libc::c_void, usize) {
        match self {
            RawAddr::V4(addr) => ((&raw const *addr).cast(), size_of_val(addr)),
            RawAddr::V6(addr) => ((&raw const *addr).cast(), size_of_val(addr)),
        }
    }
}

/// A datagram to be sent, or with a segment size among its `control` several of them.
pub(super) struct Message<'a> {
    pub(super) to: &'a RawAddr,
    pub(super) control: &'a Control,
    pub(super) parts: &'a [IoSlice<'a>],
}

/// Sends messages. Returns how many the kernel took; an error is that of the first one.
pub(super) fn send(fd: BorrowedFd<'_>, messages: &[Message<'_>]) -> io::Result<usize> {
    let mut headers: ArrayVec<libc::mmsghdr, BURST> = messages.iter().take(BURST).map(header).collect();
    let count = headers.len() as libc::c_uint;
    // SAFETY: `headers` holds `count` headers whose pointers are to parts of `messages`, borrowed until
    // after the call; the kernel reads what they point to, and writes to the headers only.
    check(unsafe { libc::sendmmsg(fd.as_raw_fd(), headers.as_mut_ptr(), count, 0) })
}

fn header(message: &Message<'_>) -> libc::mmsghdr {
    let mut header = empty_header();
    let (name, name_len) = message.to.as_ptr();
    header.msg_hdr.msg_name = name.cast_mut();
    header.msg_hdr.msg_namelen = name_len as libc::socklen_t;
    // `IoSlice` has the layout of `iovec`.
    header.msg_hdr.msg_iov = message.parts.as_ptr().cast_mut().cast();
    header.msg_hdr.msg_iovlen = message.parts.len() as _;
    let control = message.control.bytes();
    if !control.is_empty() {
        header.msg_hdr.msg_control = control.as_ptr().cast_mut().cast();
        header.msg_hdr.msg_controllen = control.len() as _;
    }
    header
}

fn empty_header() -> libc::mmsghdr {
    // SAFETY: all fields are numbers and pointers, for which zero is a value.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Room for the address and control messages of one received message.
pub(super) struct Arrival {
    pub(super) control: Control,
    name: libc::sockaddr_storage,
    /// Bytes of all parts together.
    pub(super) len: usize,
    flags: c_int,
}

impl Arrival {
    pub(super) fn new() -> Arrival {
        // SAFETY: all fields are numbers, for which zero is a value.
        let name = unsafe { MaybeUninit::zeroed().assume_init() };
        Arrival { control: Control::new(), name, len: 0, flags: 0 }
    }

    /// What the kernel would write about a message of `len` bytes of `from`, with these control messages.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn invented(control: &[u8], from: SocketAddr, len: usize, is_cut: bool) -> Arrival {
        let mut arrival = Arrival::new();
        let told = control.len().min(super::control::CAPACITY);
        arrival.control.room()[..told].copy_from_slice(&control[..told]);
        arrival.control.set_len(told);
        let place = &raw mut arrival.name;
        match RawAddr::new(from) {
            // SAFETY: a `sockaddr_storage` is as large and aligned as any address.
            RawAddr::V4(addr) => unsafe { place.cast::<libc::sockaddr_in>().write(addr) },
            // SAFETY: as above.
            RawAddr::V6(addr) => unsafe { place.cast::<libc::sockaddr_in6>().write(addr) },
        }
        Arrival { len, flags: if is_cut { libc::MSG_TRUNC } else { 0 }, ..arrival }
    }

    /// Whether the message was longer than its room.
    pub(super) fn is_cut(&self) -> bool {
        self.flags & libc::MSG_TRUNC != 0
    }

    /// The sender's address.
    pub(super) fn from(&self) -> SocketAddr {
        let name = &raw const self.name;
        if c_int::from(self.name.ss_family) == libc::AF_INET6 {
            // SAFETY: a `sockaddr_storage` is as large and aligned as any address, and the family says
            // that the kernel has written this kind.
            let v6 = unsafe { *name.cast::<libc::sockaddr_in6>() };
            let ip = v6.sin6_addr.s6_addr.into();
            SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id).into()
        } else {
            // SAFETY: a `sockaddr_storage` is as large and aligned as any address. It holds what the kernel has
            // written, or zeroes before anything was received; any bytes are a valid `sockaddr_in`.
            let v4 = unsafe { *name.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into()
        }
    }
}

/// The most messages that one call receives.
pub(super) const MESSAGES: usize = 8;

/// Receives as many messages as there are and as `into` has places for, without waiting. Returns how
/// many; the message in `into[i]` fills `parts[i]` in turn.
pub(super) fn receive<'a, const N: usize>(
    fd: BorrowedFd<'_>,
    parts: &mut [ArrayVec<IoSliceMut<'a>, N>],
    into: &mut [Arrival],
) -> io::Result<usize> {
    let mut headers: ArrayVec<libc::mmsghdr, MESSAGES> = ArrayVec::new();
    for (parts, arrival) in parts.iter_mut().zip(into.iter_mut()).take(MESSAGES) {
        let mut header = empty_header();
        header.msg_hdr.msg_name = (&raw mut arrival.name).cast();
        header.msg_hdr.msg_namelen = size_of_val(&arrival.name) as libc::socklen_t;
        // `IoSliceMut` has the layout of `iovec`.
        header.msg_hdr.msg_iov = parts.as_mut_ptr().cast();
        header.msg_hdr.msg_iovlen = parts.len() as _;
        let control = arrival.control.room();
        header.msg_hdr.msg_control = control.as_mut_ptr().cast();
        header.msg_hdr.msg_controllen = control.len() as _;
        headers.push(header);
    }
    let (count, flags) = (headers.len() as libc::c_uint, libc::MSG_DONTWAIT);
    let wait = std::ptr::null_mut();
    // SAFETY: the headers point to `parts`, whose buffers are borrowed for `'a`, and into `into`, each
    // with its length; all are borrowed exclusively until after the call.
    let got =
        check(unsafe { libc::recvmmsg(fd.as_raw_fd(), headers.as_mut_ptr(), count, flags as _, wait) })?;
    for (header, arrival) in headers.iter().zip(into).take(got) {
        arrival.len = header.msg_len as usize;
        arrival.flags = header.msg_hdr.msg_flags;
        arrival.control.set_len(header.msg_hdr.msg_controllen);
    }
    Ok(got)
}

/// An error in the queue of a socket.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QueuedError {
    pub(super) errno: c_int,
    /// Whether the kernel has refused a datagram itself. Else a router or the peer has reported one that was sent earlier.
    pub(super) is_local: bool,
    /// For `EMSGSIZE` the MTU of the interface, or of the path as a router says; 0 if it does not.
    pub(super) mtu: u32,
}

/// Takes one error out of the socket's queue.
pub(super) fn next_error(fd: BorrowedFd<'_>) -> Option<QueuedError> {
    let mut control = Control::new();
    let mut header = empty_header().msg_hdr;
    let room = control.room();
    header.msg_control = room.as_mut_ptr().cast();
    header.msg_controllen = room.len() as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the header has no buffer but that for control messages, whose length it states.
    let got = unsafe { libc::recvmsg(fd.as_raw_fd(), &mut header, flags) };
    if got < 0 {
        return None;
    }
    control.set_len(header.msg_controllen);
    Some(error_in(&control))
}

/// The error that the control messages of an error queue tell; zeros if they tell none.
pub(super) fn error_in(control: &Control) -> QueuedError {
    let kinds = [(libc::IPPROTO_IP, libc::IP_RECVERR), (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)];
    let error = control.iter().find(|(level, kind, _)| kinds.contains(&(*level, *kind)));
    // `sock_extended_err`: the number, four bytes of which the first is the origin, then the MTU.
    let word = |data: &[u8], at: usize| {
        data.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
    };
    error.map_or(QueuedError::default(), |(.., data)| QueuedError {
        errno: word(data, 0) as c_int,
        is_local: data.get(4) == Some(&libc::SO_EE_ORIGIN_LOCAL),
        mtu: word(data, 8),
    })
}

/// The MTU of the path from `own` to `peer`, as far as the kernel knows it.
pub(super) fn path_mtu(own: IpAddr, peer: SocketAddr) -> io::Result<usize> {
    use std::os::fd::AsFd;
    // Connecting sends nothing; it looks up the route.
    let probe = std::net::UdpSocket::bind((own, 0))?;
    probe.connect(peer)?;
    let (level, name) = match own {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    get(probe.as_fd(), level, name).map(|mtu| mtu as usize)
}

/// Bytes of the longest IP packet, `most` or fewer, that the interface on the way from `own` to `peer` sends, whatever
/// routers have reported of the path.
pub(super) fn interface_mtu(own: IpAddr, peer: SocketAddr, most: usize) -> io::Result<usize> {
    use std::os::fd::AsFd;
    let probe = std::net::UdpSocket::bind((own, 0))?;
    let (headers, level, discover, probing, told) = match own {
        IpAddr::V4(_) => {
            (28, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE, libc::IP_RECVERR)
        }
        IpAddr::V6(_) => {
            (48, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE, libc::IPV6_RECVERR)
        }
    };
    set(probe.as_fd(), level, discover, probing)?;
    set(probe.as_fd(), level, told, 1)?;
    // The kernel refuses the beginning of a datagram that is too long already, and forgets it when the socket is closed.
    let beginning = vec![0; most.saturating_sub(headers)];
    match rustix::net::sendto(&probe, &beginning, rustix::net::SendFlags::MORE, &peer) {
        Ok(_) => Ok(most),
        Err(error) => match next_error(probe.as_fd()) {
            Some(QueuedError { errno: libc::EMSGSIZE, is_local: true, mtu }) => Ok(mtu as usize),
            _ => Err(error.into()),
        },
    }
}
