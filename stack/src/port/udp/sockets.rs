//! The sockets of a port, bound to their UDP ports.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use libc::c_int;

use super::config::{UdpConfig, UdpError, own_ports};
use super::{require, system};
use crate::wire::frame::DEFAULT_TTL;

/// How often other ports are tried if one of several consecutive ones is taken. Each time the system chooses the first
/// at random.
const TRIES: usize = 64;

/// The socket that datagrams arrive at, and those that they leave from, by entropy.
pub(super) fn open(config: &UdpConfig) -> Result<(UdpSocket, Vec<UdpSocket>), UdpError> {
    if config.shared_address {
        return consecutive(config);
    }
    let one = |n: u16| {
        let port = if config.first_source == 0 { 0 } else { config.first_source + n };
        let socket = bind(config.address, port)?;
        prepare_sending(&socket, config, Errors::Told)?;
        Ok(socket)
    };
    let socket = bind(config.address, config.port)?;
    Ok((socket, (0..config.sources).map(one).collect::<Result<_, _>>()?))
}

/// Consecutive UDP ports, of which the first is for receiving as well.
fn consecutive(config: &UdpConfig) -> Result<(UdpSocket, Vec<UdpSocket>), UdpError> {
    let (address, count) = (config.address, config.sources);
    let none = UdpError::NoPorts { address, count };
    let sockets = match config.port {
        0 => (0..TRIES).find_map(|_| free(address, count).transpose()).unwrap_or(Err(none))?,
        port => {
            let ports = own_ports(port, count).into_iter().flatten();
            ports.map(|port| bind(address, port)).collect::<Result<Vec<_>, _>>()?
        }
    };
    for (n, socket) in sockets.iter().enumerate() {
        // Errors that the network reports make a socket readable until somebody takes them, which would keep those awake
        // who wait for datagrams.
        prepare_sending(socket, config, if n == 0 { Errors::Ignored } else { Errors::Told })?;
    }
    let first = sockets[0].try_clone();
    let addr = SocketAddr::new(address, config.port);
    Ok((first.map_err(|error| UdpError::Bind { addr, error })?, sockets))
}

/// `count` sockets at ports that the system chooses, from a multiple of `count` on; `None` if one of them is taken.
fn free(address: IpAddr, count: u16) -> Result<Option<Vec<UdpSocket>>, UdpError> {
    let any = bind(address, 0)?;
    let addr = SocketAddr::new(address, 0);
    let chosen = any.local_addr().map_err(|error| UdpError::Bind { addr, error })?.port();
    drop(any);
    let Some(ports) = own_ports(chosen - chosen % count, count) else { return Ok(None) };
    let mut sockets = Vec::new();
    for port in ports {
        match bind(address, port) {
            Ok(socket) => sockets.push(socket),
            Err(UdpError::Bind { error, .. }) if error.kind() == io::ErrorKind::AddrInUse => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(sockets))
}

fn bind(ip: IpAddr, port: u16) -> Result<UdpSocket, UdpError> {
    let addr = SocketAddr::new(ip, port);
    let bound = UdpSocket::bind(addr).and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
    bound.map_err(|error| UdpError::Bind { addr, error })
}

/// Whether a socket keeps the errors that routers and peers report.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Errors {
    Told,
    Ignored,
}

fn prepare_sending(socket: &UdpSocket, config: &UdpConfig, errors: Errors) -> Result<(), UdpError> {
    use libc::{IPPROTO_IP, IPPROTO_IPV6};
    let (ttl, told) = (c_int::from(DEFAULT_TTL), c_int::from(errors == Errors::Told));
    let addr = SocketAddr::new(config.address, 0);
    // Packets are not fragmented, and are sent whatever routers report of their paths: anybody can forge such a report.
    if config.address.is_ipv6() {
        let discover =
            ("IPV6_MTU_DISCOVER", IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE);
        let errors = ("IPV6_RECVERR", IPPROTO_IPV6, libc::IPV6_RECVERR, told);
        let hops = ("IPV6_UNICAST_HOPS", IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, ttl);
        require(socket, addr, &[discover, errors, hops])?;
    } else {
        let discover = ("IP_MTU_DISCOVER", IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE);
        let errors = ("IP_RECVERR", IPPROTO_IP, libc::IP_RECVERR, told);
        require(socket, addr, &[discover, errors, ("IP_TTL", IPPROTO_IP, libc::IP_TTL, ttl)])?;
    }
    // A smaller buffer does no harm: frames wait in the burst.
    let wanted = c_int::try_from(config.send_buffer).unwrap_or(c_int::MAX);
    let _ = system::set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, wanted);
    Ok(())
}
