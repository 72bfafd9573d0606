//! The addresses and the domain that callers of `fi_getinfo` name, and the addresses of this host that suit them.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};

use super::demand;
use crate::abi;
use crate::error::FiError;
use crate::params::Params;
use crate::place::Place;
use crate::sockaddr::{self, Family, Format};
use crate::{opened, sys};

/// An address of this host, and the interface that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Local {
    pub(super) ip: IpAddr,
    pub(super) interface: String,
}

/// The addresses that `node`, `service` and the hints ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wish {
    /// That of both addresses.
    pub(super) format: Format,
    pub(super) source: Option<SocketAddr>,
    pub(super) destination: Option<SocketAddr>,
}

pub(super) fn wish(
    node: Option<&str>,
    service: Option<&str>,
    flags: u64,
    hints: Option<&sys::fi_info>,
) -> Result<Wish, FiError> {
    let mut wish = Wish::default();
    let wanted = hints.and_then(|hints| Family::of_format(hints.addr_format));
    if let Some(hints) = hints {
        wish.format.is_text = hints.addr_format == sys::FI_ADDR_STR;
        // fi_getinfo(3): the node and the service are the source with FI_SOURCE and else the destination, whatever the hints say.
        let is_source = flags & sys::FI_SOURCE != 0;
        if !is_source {
            // SAFETY: the hints say how long their addresses are.
            wish.source = unsafe { hinted(hints.addr_format, hints.src_addr, hints.src_addrlen)? };
        }
        if is_source || node.is_none() && service.is_none() {
            // SAFETY: as before.
            wish.destination = unsafe { hinted(hints.addr_format, hints.dest_addr, hints.dest_addrlen)? };
        }
    }
    let family = |addr: Option<SocketAddr>| addr.map(|addr| Family::of(&addr.ip()));
    let hinted = wanted.or(family(wish.source)).or(family(wish.destination));
    if node.is_some() || service.is_some() {
        let addr = resolve(node, service, flags & sys::FI_NUMERICHOST != 0, hinted)?;
        if flags & sys::FI_SOURCE != 0 {
            wish.source = Some(addr);
        } else {
            // A service alone is one of this host.
            let ip = if node.is_some() { addr.ip() } else { Family::of(&addr.ip()).localhost() };
            wish.destination = Some((ip, addr.port()).into());
        }
    }
    wish.format.family = hinted.or(family(wish.source)).or(family(wish.destination)).unwrap_or_default();
    let all = [family(wish.source), family(wish.destination)];
    demand(all.into_iter().flatten().all(|family| family == wish.format.family), "addresses of two kinds")?;
    Ok(wish)
}

/// # Safety
/// There are `len` bytes at `addr`, or a text if that is the format, or it is null.
unsafe fn hinted(
    format: u32,
    addr: *const std::ffi::c_void,
    len: usize,
) -> Result<Option<SocketAddr>, FiError> {
    if addr.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    let addr = unsafe {
        if format == sys::FI_ADDR_STR { Format::read_text(addr, len) } else { sockaddr::read(addr, len) }
    };
    addr.map(Some).ok_or(FiError::NO_DATA)
}

/// The format of the addresses of a domain that is opened with `info`. Texts are of the family of those that it names.
pub(crate) fn format_of(info: &sys::fi_info) -> Format {
    let is_text = info.addr_format == sys::FI_ADDR_STR;
    let of = |addr, len| {
        // SAFETY: the info says how long its addresses are, and texts end with a zero.
        unsafe { hinted(info.addr_format, addr, len) }.ok().flatten().map(|addr| Family::of(&addr.ip()))
    };
    let named = || of(info.src_addr, info.src_addrlen).or(of(info.dest_addr, info.dest_addrlen));
    let family = if is_text { named() } else { Family::of_format(info.addr_format) };
    Format { family: family.unwrap_or_default(), is_text }
}

/// The address of a host and service, each by name or number: one of this family, or one of IPv4 if there is any.
pub(crate) fn resolve(
    node: Option<&str>,
    service: Option<&str>,
    numeric: bool,
    family: Option<Family>,
) -> Result<SocketAddr, FiError> {
    let port = service.map_or(Ok(0), str::parse::<u16>).map_err(|_| FiError::NO_DATA)?;
    if let Some(text) = node.filter(|node| sockaddr::is_text(node)) {
        let addr = sockaddr::parse(text).filter(|_| service.is_none());
        let addr = addr.filter(|addr| family.is_none_or(|family| family == Family::of(&addr.ip())));
        return addr.ok_or(FiError::NO_DATA);
    }
    let Some(node) = node else { return Ok((family.unwrap_or_default().unspecified(), port).into()) };
    let suits = |ip: &IpAddr| family.is_none_or(|family| family == Family::of(ip));
    if let Ok(ip) = node.parse::<IpAddr>() {
        return if suits(&ip) { Ok((ip, port).into()) } else { Err(FiError::NO_DATA) };
    }
    if numeric {
        return Err(FiError::NO_DATA);
    }
    let all = (node, port).to_socket_addrs().map_err(|_| FiError::NO_DATA)?;
    all.filter(|addr| suits(&addr.ip())).min_by_key(SocketAddr::is_ipv6).ok_or(FiError::NO_DATA)
}

/// The name of the domain in hints: that of the domain that is open, if they name one.
///
/// # Errors
/// They name an open domain that is none of weft's, or has another name than they say.
///
/// # Safety
/// The domain's part of the hints is null or valid, and so is its name.
pub(super) unsafe fn domain_of(hints: Option<&sys::fi_info>) -> Result<Option<String>, FiError> {
    // SAFETY: as the caller promises.
    let domain = unsafe { hints.and_then(|hints| hints.domain_attr.as_ref()) };
    let Some(domain) = domain else { return Ok(None) };
    // SAFETY: as before.
    let name = unsafe { abi::text(domain.name)? };
    if domain.domain.is_null() {
        return Ok(name.map(str::to_owned));
    }
    let own = opened::name_of_domain(domain.domain.addr())?;
    demand(own.is_some(), "an open domain that is none of weft's")?;
    let own = own.flatten();
    demand(name.is_none() || own.is_none() || name == own.as_deref(), "an open domain of another name")?;
    Ok(own.or(name.map(str::to_owned)))
}

/// The addresses of this host that suit, on the interface `domain` if there is a choice, and as the environment says.
pub(super) fn offered(wish: &Wish, params: &Params, domain: Option<&str>) -> Result<Vec<Local>, FiError> {
    let mut locals = locals(wish, domain.or(params.iface.as_deref()))?;
    locals.retain(|local| {
        domain.is_none_or(|name| name == local.interface)
            && params.iface.as_ref().is_none_or(|name| *name == local.interface)
    });
    Ok(locals)
}

/// The address of an endpoint that is opened with `info`: if that names none, the first that `fi_getinfo` would offer to
/// reach the destination, if it names that; at a named place whichever there is.
///
/// # Errors
/// No address of this host suits, or one is of another kind than the others.
pub(crate) fn source_of(info: &sys::fi_info, place: &Place, params: &Params) -> Result<SocketAddr, FiError> {
    // SAFETY: the info says how long its addresses are, and texts end with a zero.
    let hinted = |addr, len| unsafe { hinted(info.addr_format, addr, len) };
    let (source, destination) =
        (hinted(info.src_addr, info.src_addrlen), hinted(info.dest_addr, info.dest_addrlen));
    let (source, destination) = (source.map_err(|_| FiError::INVALID)?, destination.unwrap_or_default());
    let given = source.or(destination).map(|addr| Family::of(&addr.ip()));
    let family = Family::of_format(info.addr_format).or(given).unwrap_or_default();
    if given.is_some_and(|given| given != family) {
        return Err(FiError::INVALID);
    }
    if let Some(source) = source.filter(|source| !source.ip().is_unspecified()) {
        return Ok(source);
    }
    if *place != Place::OwnPorts {
        return Ok(source.unwrap_or((family.unspecified(), 0).into()));
    }
    // SAFETY: the domain's part of the info is null or valid, and so is its name.
    let domain = unsafe { domain_of(Some(info))? };
    let locals = offered(
        &Wish { format: Format { family, is_text: false }, source: None, destination },
        params,
        domain.as_deref(),
    )?;
    let local = locals.first().ok_or(FiError::NO_ADDRESS)?;
    Ok((local.ip, source.map_or(0, |source| source.port())).into())
}

/// The addresses of this host that suit. Those of the loopback interface, and of interfaces that are down or have no carrier, are
/// offered to those who name the interface or an address there, and where there are no others: some programs deal out all
/// addresses to the processes of a host.
fn locals(wish: &Wish, interface: Option<&str>) -> Result<Vec<Local>, FiError> {
    let all = if_addrs::get_if_addrs().map_err(|_| FiError::NO_DATA)?;
    // Addresses that mean something on one link only would need its name beside them.
    let is_of_link = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let suits = |ip: &IpAddr| Family::of(ip) == wish.format.family && !is_of_link(ip);
    let all: Vec<_> = all.into_iter().filter(|at| suits(&at.ip())).collect();
    // Packets to other hosts leave by interfaces that are up and have a carrier.
    let rank = |at: &if_addrs::Interface| (at.is_loopback(), !at.is_oper_up());
    let best = all.iter().map(rank).min();
    let local =
        |at: if_addrs::Interface| (Some(rank(&at)) == best, Local { ip: at.ip(), interface: at.name });
    let mut locals: Vec<(bool, Local)> = all.into_iter().map(local).collect();
    let only = match (wish.source.map(|source| source.ip()), wish.destination) {
        (Some(ip), _) if !ip.is_unspecified() => Some(ip),
        (_, Some(destination)) => Some(towards(destination)?),
        _ => None,
    };
    let Some(ip) = only else {
        locals.retain(|(is_best, local)| *is_best || interface == Some(&local.interface));
        return Ok(locals.into_iter().map(|(_, local)| local).collect());
    };
    // All of 127.0.0.0/8 is the loopback interface's, which lists one address.
    let same = |local: &Local| local.ip == ip || (ip.is_loopback() && local.ip.is_loopback());
    let locals = locals.into_iter().map(|(_, local)| local);
    Ok(locals.filter(same).take(1).map(|local| Local { ip, ..local }).collect())
}

/// The address of this host that packets to `destination` leave with.
fn towards(destination: SocketAddr) -> Result<IpAddr, FiError> {
    let own = || {
        let socket = UdpSocket::bind((Family::of(&destination.ip()).unspecified(), 0))?;
        // Any port will do: nothing is sent.
        socket.connect((destination.ip(), destination.port().max(1)))?;
        socket.local_addr()
    };
    own().map(|addr| addr.ip()).map_err(|_| FiError::NO_DATA)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_services_are_resolved() {
        let at = |ip: [u8; 4], port| Ok(SocketAddr::from((ip, port)));
        assert_eq!(resolve(Some("192.0.2.1"), Some("4000"), true, None), at([192, 0, 2, 1], 4000));
        assert_eq!(resolve(None, Some("4000"), false, None), at([0; 4], 4000));
        assert_eq!(resolve(Some("localhost"), None, false, None), at([127, 0, 0, 1], 0));
        assert_eq!(resolve(Some("localhost"), None, true, None), Err(FiError::NO_DATA));
        assert_eq!(resolve(Some("192.0.2.1"), Some("smtp"), false, None), Err(FiError::NO_DATA));
        let v6: SocketAddr = "[fd00::1]:4000".parse().unwrap();
        assert_eq!(resolve(Some("fd00::1"), Some("4000"), true, None), Ok(v6));
        assert_eq!(resolve(Some("fd00::1"), None, true, Some(Family::V4)), Err(FiError::NO_DATA));
    }

    #[test]
    fn the_address_towards_a_peer_is_the_only_one() {
        let to = |ip: [u8; 4]| Wish { destination: Some((ip, 4000).into()), ..Wish::default() };
        let all = locals(&to([127, 0, 0, 9]), None).unwrap();
        assert!(all.len() == 1 && all[0].ip.is_loopback(), "{all:?}");
        let source = Wish { source: Some(([203, 0, 113, 7], 0).into()), ..Wish::default() };
        assert_eq!(locals(&source, None).unwrap(), []);
    }
}
