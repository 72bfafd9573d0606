//! Discovery: what the provider can do, at which addresses. Hints are honoured or refused, never ignored.

mod addresses;
mod list;

use std::ffi::{CString, c_char, c_int};
use std::net::SocketAddr;

use weft::MAX_MESSAGE;
use weft::MAX_PROCESS;
use weft::port::longest_payload_at;

pub(crate) use self::addresses::{format_of, resolve, source_of};

use self::addresses::{Wish, domain_of, offered, wish};
use self::list::List;
use crate::abi::{self, IOV_LIMIT};
use crate::error::FiError;
use crate::job::Key;
use crate::kind::Kind;
use crate::params::Params;
use crate::place::{Facts, Place};
use crate::rdm::{DEPTH, INJECT_SIZE};
use crate::sockaddr::Family;
use crate::{NAME, opened, sys};

/// Kinds of operations.
const PRIMARY: u64 = MESSAGES | REMOTE;
const MESSAGES: u64 = sys::FI_MSG | sys::FI_TAGGED;
/// Operations on remote memory.
const REMOTE: u64 = sys::FI_RMA | sys::FI_ATOMIC;
/// Directions of operations on remote memory; all are offered with these if hints name none.
const REMOTE_DIRECTIONS: u64 = sys::FI_READ | sys::FI_WRITE | sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;
/// Directions of messages; all are offered if hints name none.
const DIRECTIONS: u64 = sys::FI_SEND | sys::FI_RECV;
/// Capabilities that an application gets only if its hints name them, since they cost time: receives from one sender, entries
/// that name the sender, and counters of accesses by peers.
const ON_DEMAND: u64 = sys::FI_DIRECTED_RECV | sys::FI_SOURCE | sys::FI_RMA_EVENT;
/// Directions in which peers access registered memory.
const OF_PEERS: u64 = sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;
/// Capabilities of every endpoint.
const ALWAYS: u64 = sys::FI_LOCAL_COMM | sys::FI_REMOTE_COMM;
/// Capabilities of every endpoint that receives messages, unless they bound the length of these and hints do not name them.
const RECEIVING: u64 = sys::FI_MULTI_RECV;
/// All that reliable endpoints are offered with.
pub(crate) const RELIABLE_CAPS: u64 =
    PRIMARY | DIRECTIONS | REMOTE_DIRECTIONS | ON_DEMAND | RECEIVING | ALWAYS;
/// All that endpoints for datagrams are offered with.
pub(crate) const UNRELIABLE_CAPS: u64 = sys::FI_MSG | DIRECTIONS | sys::FI_SOURCE | ALWAYS;

/// Flags of messages that are sent. A message is complete when it was delivered, so that all levels below are as well.
pub(crate) const SEND_FLAGS: u64 = sys::FI_COMPLETION
    | sys::FI_INJECT
    | sys::FI_INJECT_COMPLETE
    | sys::FI_TRANSMIT_COMPLETE
    | sys::FI_DELIVERY_COMPLETE;
/// Flags of accesses to remote memory.
pub(crate) const ACCESS_FLAGS: u64 = SEND_FLAGS | sys::FI_REMOTE_CQ_DATA | sys::FI_MORE;
/// Flags of receives. One that is complete has all its bytes, so that FI_TRANSMIT_COMPLETE, which demands less, holds.
pub(crate) const RECEIVE_FLAGS: u64 = sys::FI_COMPLETION | sys::FI_MULTI_RECV | sys::FI_TRANSMIT_COMPLETE;

/// A protocol of weft's own among those of providers: "weft".
const PROTOCOL: u32 = sys::FI_PROV_SPECIFIC as u32 | 0x7765_6674;
const PROTOCOL_VERSION: u32 = 1;
/// Bytes of data that travel beside a message.
const CQ_DATA_SIZE: usize = 4;
/// Bytes of a sender's messages without a receive that are kept.
const BUFFERED: usize = 64 << 20;
/// Bytes of the keys of registered memory.
const KEY_SIZE: usize = 8;
/// Pieces of registered memory of a domain.
const MEMORIES: usize = 1 << 16;
/// The last of the progress models, which libfabric 2 has added: one thread works for all endpoints of a domain.
const FI_PROGRESS_CONTROL_UNIFIED: sys::fi_progress = 3;
/// The first version of libfabric whose applications name bits of modes of registered memory (FI_VERSION(1, 5)).
const MODES_ARE_BITS: u32 = 1 << 16 | 5;
/// The flag with which providers of libfabric's own ask for endpoints to build others on (OFI_CORE_PROV_ONLY, which its public
/// headers do not have).
const CORE_PROVIDERS_ONLY: u64 = 1 << 59;
/// Queues and counters of a domain.
const MANY: usize = 1 << 12;
/// UDP ports of a host.
const UDP_PORTS: usize = 1 << 16;
/// Endpoints in a server: the applications that a `weft serve` lets in unless it is told otherwise.
const IN_A_SERVER: usize = 64;

/// libfabric calls it for `fi_getinfo`, from any thread.
pub(crate) extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const sys::fi_info,
    info: *mut *mut sys::fi_info,
) -> c_int {
    abi::answer(|| {
        // SAFETY: libfabric passes texts or null, hints or null, and a place for the answer.
        let (node, service) = unsafe { (abi::text(node)?, abi::text(service)?) };
        // SAFETY: as before.
        let (hints, info) = unsafe { (hints.as_ref(), info.as_mut().ok_or(FiError::INVALID)?) };
        // libfabric asks with this flag when it looks for a provider to put a layer on.
        let is_layer = flags & CORE_PROVIDERS_ONLY != 0;
        // Layers need the names of a fabric and a domain.
        if flags & sys::FI_PROV_ATTR_ONLY != 0 && !is_layer {
            *info = of_provider()?;
            return Ok(0);
        }
        let params = Params::read()?;
        let wish = wish(node, service, flags, hints)?;
        // SAFETY: as before; the domain's part of the hints is null or valid, and so is its name.
        let domain = unsafe { domain_of(hints)? };
        let domain = domain.as_deref();
        let place = params.place(domain)?;
        // SAFETY: as before; the endpoint's part of the hints is null or valid.
        let wanted = unsafe { hints.and_then(|hints| hints.ep_attr.as_ref()) };
        let wanted = wanted.map_or(sys::FI_EP_UNSPEC, |endpoint| endpoint.type_);
        demand(Kind::of(wanted).is_some(), "the endpoint type")?;
        // A server is asked once.
        let facts = if place.exists() { place.facts(&params) } else { Err(FiError::NO_DATA) };
        let (mut all, mut refused) = (List::default(), None);
        // Of datagrams libfabric would list reliable endpoints that it builds on them (`weft;ofi_rxd`) before our own.
        for kind in Kind::wanted(wanted).filter(|kind| *kind == Kind::Rdm || !is_layer) {
            let offered = Answer::of(kind, version, hints, &place, &facts, &params)
                .and_then(|answer| answer.list(&wish, &params, &place, &facts, domain));
            match offered {
                Ok(mut offered) => all.join(&mut offered),
                Err(error) => _ = refused.get_or_insert(error),
            }
        }
        *info = all.take().ok_or(refused.unwrap_or(FiError::NO_DATA))?;
        Ok(0)
    })
}

/// The answer to FI_PROV_ATTR_ONLY: one entry that describes the provider, whether it can be used here or not. libfabric adds the
/// provider's name. It answers calls that have no other flag itself.
fn of_provider() -> Result<*mut sys::fi_info, FiError> {
    // SAFETY: without an original it is a new one with all its parts, all of which are zero.
    let info = unsafe { sys::fi_dupinfo(std::ptr::null()) };
    // SAFETY: as before; nobody else knows it yet.
    let fabric = unsafe { info.as_mut().map(|info| &mut *info.fabric_attr) };
    fabric.ok_or(FiError::NO_MEMORY)?.prov_version = crate::VERSION;
    Ok(info)
}

/// The properties of what is offered, beside addresses: those of the provider, narrowed by hints.
struct Answer {
    kind: Kind,
    /// The most endpoints of a domain.
    endpoints: usize,
    /// The longest message, bytes; of datagrams the longest that the hints ask for.
    longest: u64,
    /// The longest that receives for many messages take, if that is less.
    longest_of_many: Option<u64>,
    /// The most bytes to inject that the hints ask for.
    inject: usize,
    /// Receives that may be posted.
    receives: usize,
    caps: u64,
    transmit: Direction,
    receive: Direction,
    threading: sys::fi_threading,
    control_progress: sys::fi_progress,
    data_progress: sys::fi_progress,
    resources: sys::fi_resource_mgmt,
    av_type: sys::fi_av_type,
    mr_mode: c_int,
    tag_format: u64,
    /// Authorisation keys of the endpoint and of the domain.
    endpoint_key: Option<Key>,
    domain_key: Option<Key>,
    /// The addresses of the open fabric and domain that the hints name; 0 for none.
    open_fabric: usize,
    open_domain: usize,
}

/// What is offered for one direction.
struct Direction {
    /// The capabilities that hints name for it, which the endpoint has to have; then those that are offered.
    caps: u64,
    op_flags: u64,
    order: u64,
}

/// The authorisation key in hints.
fn key(at: *const u8, len: usize) -> Result<Option<Key>, FiError> {
    // SAFETY: the hints say how long their keys are.
    let key = unsafe { Key::read(at, len) };
    key.or_else(|_| demand(false, "an authorisation key that is no job").map(|()| None))
}

/// Refuses hints that ask for something else.
fn demand(holds: bool, what: &str) -> Result<(), FiError> {
    if holds {
        return Ok(());
    }
    crate::log::info(&format!("getinfo: {what} is not offered"));
    Err(FiError::NO_DATA)
}

impl Answer {
    fn of(
        kind: Kind,
        version: u32,
        hints: Option<&sys::fi_info>,
        place: &Place,
        facts: &Result<Facts, FiError>,
        params: &Params,
    ) -> Result<Answer, FiError> {
        let mut answer = Answer {
            kind,
            endpoints: match place {
                Place::OwnPorts => MANY.min(UDP_PORTS / usize::from(params.entropies())),
                // A server that is too busy to say how many it lets in is taken for one with as many as usual.
                Place::Named(_) => facts.map_or(IN_A_SERVER, |facts| facts.endpoints),
            },
            longest: if kind == Kind::Rdm { MAX_MESSAGE } else { 0 },
            longest_of_many: place.longest_of_many(params),
            inject: 0,
            receives: kind.receives(),
            caps: kind.caps(),
            transmit: Direction { caps: 0, op_flags: 0, order: kind.order() },
            receive: Direction { caps: 0, op_flags: 0, order: kind.order() },
            threading: sys::FI_THREAD_SAFE,
            control_progress: sys::FI_PROGRESS_AUTO,
            data_progress: sys::FI_PROGRESS_AUTO,
            resources: sys::FI_RM_ENABLED,
            av_type: sys::FI_AV_UNSPEC,
            // An application of before libfabric 1.5 that names no mode wants to know which it gets.
            mr_mode: if version < MODES_ARE_BITS { sys::FI_MR_SCALABLE as c_int } else { 0 },
            tag_format: if kind == Kind::Rdm { place.tag_format() } else { 0 },
            endpoint_key: None,
            domain_key: None,
            open_fabric: 0,
            open_domain: 0,
        };
        match hints {
            Some(hints) => answer.narrow(hints)?,
            None => answer.bound_by_many(),
        }
        let wanted = answer.transmit.caps | answer.receive.caps;
        demand(wanted & !answer.caps == 0, "a capability of one direction that the endpoint is not to have")?;
        let one_way = |messages, accesses| {
            let kinds = |directions, of| {
                if answer.caps & directions == 0 { 0 } else { answer.caps & (directions | of) }
            };
            kinds(messages, MESSAGES) | kinds(accesses, REMOTE)
        };
        let (outwards, inwards) =
            (one_way(sys::FI_SEND, sys::FI_READ | sys::FI_WRITE), one_way(sys::FI_RECV, OF_PEERS));
        answer.transmit.caps = outwards;
        answer.receive.caps = inwards | answer.caps & (ON_DEMAND | RECEIVING);
        Ok(answer)
    }

    fn narrow(&mut self, hints: &sys::fi_info) -> Result<(), FiError> {
        self.caps = caps(hints.caps, self.kind.caps())?;
        let formats = [
            sys::FI_FORMAT_UNSPEC,
            sys::FI_SOCKADDR,
            sys::FI_SOCKADDR_IN,
            sys::FI_SOCKADDR_IN6,
            sys::FI_ADDR_STR,
        ];
        demand(formats.contains(&hints.addr_format), "the address format")?;
        demand(hints.handle.is_null(), "a connection request")?;
        demand(hints.nic.is_null(), "a choice of network cards")?;
        // SAFETY: each part of the hints is null or valid.
        let parts = unsafe {
            (
                hints.ep_attr.as_ref(),
                hints.tx_attr.as_ref(),
                hints.rx_attr.as_ref(),
                hints.domain_attr.as_ref(),
                hints.fabric_attr.as_ref(),
            )
        };
        if let Some(most) = self.longest_of_many {
            let of_one_way = parts.2.map_or(0, |receive| receive.caps | receive.op_flags);
            let is_named = (hints.caps | of_one_way) & RECEIVING != 0;
            let wants_longer = parts.0.is_some_and(|endpoint| endpoint.max_msg_size as u64 > most);
            if !is_named && (hints.caps != 0 || wants_longer) {
                self.caps &= !RECEIVING;
            }
            self.bound_by_many();
        }
        parts.0.map_or(Ok(()), |endpoint| self.endpoint(endpoint))?;
        parts.1.map_or(Ok(()), |transmit| self.transmit(transmit))?;
        parts.2.map_or(Ok(()), |receive| self.receive(receive))?;
        parts.3.map_or(Ok(()), |domain| self.domain(domain))?;
        if let Some(fabric) = parts.4 {
            // SAFETY: the name is null or a text.
            let name = unsafe { abi::text(fabric.name)? };
            demand(name.is_none_or(|name| name.as_bytes() == NAME.to_bytes()), "another fabric")?;
            let is_own = fabric.fabric.is_null() || opened::is_fabric(fabric.fabric.addr())?;
            demand(is_own, "an open fabric that is none of weft's")?;
            self.open_fabric = fabric.fabric.addr();
            demand(fabric.prov_version <= crate::VERSION, "that version of the provider")?;
            // SAFETY: it has no arguments.
            demand(fabric.api_version <= unsafe { sys::fi_version() }, "that version of libfabric")?;
        }
        Ok(())
    }

    /// No message is longer than what receives for many messages take, if the endpoint has those.
    fn bound_by_many(&mut self) {
        if let Some(most) = self.longest_of_many.filter(|_| self.caps & RECEIVING != 0) {
            self.longest = self.longest.min(most);
        }
    }

    /// Bytes of a sender's messages without a receive that are kept.
    fn buffered(&self) -> usize {
        if self.kind == Kind::Rdm { BUFFERED } else { 0 }
    }

    /// Places of remote memory of one access.
    fn places(&self) -> usize {
        if self.kind == Kind::Rdm { IOV_LIMIT } else { 0 }
    }

    fn endpoint(&mut self, hints: &sys::fi_ep_attr) -> Result<(), FiError> {
        demand([sys::FI_PROTO_UNSPEC, PROTOCOL].contains(&hints.protocol), "the protocol")?;
        demand(hints.protocol_version <= PROTOCOL_VERSION, "the protocol version")?;
        match self.kind {
            Kind::Rdm => demand(hints.max_msg_size as u64 <= self.longest, "a message of that length")?,
            // Which is the longest depends on the interface.
            Kind::Datagram => self.longest = hints.max_msg_size as u64,
        }
        let orders = [hints.max_order_raw_size, hints.max_order_war_size, hints.max_order_waw_size];
        demand(orders == [0; 3], "an order of bytes")?;
        demand(hints.tx_ctx_cnt <= 1 && hints.rx_ctx_cnt <= 1, "several contexts")?;
        demand(hints.msg_prefix_size == 0, "room before messages")?;
        self.endpoint_key = key(hints.auth_key, hints.auth_key_size)?;
        if self.kind == Kind::Datagram {
            demand(hints.mem_tag_format == 0, "tags of datagrams")?;
        } else if hints.mem_tag_format != 0 {
            demand(hints.mem_tag_format & !self.tag_format == 0, "the first bit of tags")?;
            self.tag_format = hints.mem_tag_format;
        }
        Ok(())
    }

    fn transmit(&mut self, hints: &sys::fi_tx_attr) -> Result<(), FiError> {
        let flags = hints.op_flags & !self.kind.send_flags();
        self.transmit.narrow(flags, hints.msg_order, hints.comp_order)?;
        (self.transmit.caps, self.transmit.op_flags) = (hints.caps, hints.op_flags);
        demand(hints.inject_size <= INJECT_SIZE, "injection of so many bytes")?;
        self.inject = hints.inject_size;
        demand(hints.size <= DEPTH, "a transmit queue of that size")?;
        demand(hints.iov_limit <= IOV_LIMIT, "so many pieces of a message")?;
        demand(hints.rma_iov_limit <= self.places(), "so many places of remote memory")?;
        let classes = [sys::FI_TC_UNSPEC, sys::FI_TC_BEST_EFFORT];
        demand(classes.contains(&hints.tclass), "the traffic class")
    }

    fn receive(&mut self, hints: &sys::fi_rx_attr) -> Result<(), FiError> {
        let flags = hints.op_flags & !self.kind.receive_flags();
        self.receive.narrow(flags, hints.msg_order, hints.comp_order)?;
        (self.receive.caps, self.receive.op_flags) = (hints.caps, hints.op_flags);
        demand(hints.size <= self.receives, "a receive queue of that size")?;
        if hints.size > 0 {
            self.receives = hints.size;
        }
        demand(hints.iov_limit <= IOV_LIMIT, "so many pieces of a message")
    }

    fn domain(&mut self, hints: &sys::fi_domain_attr) -> Result<(), FiError> {
        let or = |wanted: u32, own: u32| if wanted == 0 { own } else { wanted };
        // Its name has been found.
        self.open_domain = hints.domain.addr();
        demand(hints.threading <= sys::FI_THREAD_ENDPOINT, "the threading model")?;
        let progress = hints.control_progress.max(hints.data_progress);
        demand(progress <= FI_PROGRESS_CONTROL_UNIFIED, "the progress model")?;
        demand(hints.resource_mgmt <= sys::FI_RM_ENABLED, "the resource management")?;
        // Whatever an application takes care of, it may; whatever it does not, the provider does.
        self.threading = or(hints.threading, self.threading);
        self.control_progress = or(hints.control_progress, self.control_progress);
        self.data_progress = or(hints.data_progress, self.data_progress);
        self.resources = or(hints.resource_mgmt, self.resources);
        self.av_type = hints.av_type;
        demand(hints.av_type <= sys::FI_AV_TABLE, "the type of address vectors")?;
        // Applications of before libfabric 1.5 name one of two modes, alone, or accept either; others name the bits that they
        // can deal with. The provider needs none of them, but keys that it draws cannot be guessed.
        let legacy = (sys::FI_MR_BASIC | sys::FI_MR_SCALABLE) as c_int;
        let names_one = [sys::FI_MR_BASIC as c_int, sys::FI_MR_SCALABLE as c_int].contains(&hints.mr_mode);
        demand(names_one || hints.mr_mode & legacy == 0, "a legacy mode of memory with others")?;
        if names_one {
            self.mr_mode = hints.mr_mode;
        } else if self.mr_mode == 0 {
            self.mr_mode = hints.mr_mode & sys::FI_MR_PROV_KEY as c_int;
        }
        demand(hints.cq_data_size <= CQ_DATA_SIZE, "so many bytes of data beside a message")?;
        demand(hints.caps & !ALWAYS == 0, "a capability of domains")?;
        let counts = [hints.cq_cnt, hints.cntr_cnt];
        demand(counts.iter().all(|count| *count <= MANY), "so many objects of a domain")?;
        let counts = [hints.ep_cnt, hints.tx_ctx_cnt, hints.rx_ctx_cnt];
        demand(counts.iter().all(|count| *count <= self.endpoints), "so many endpoints of a domain")?;
        demand(hints.max_ep_stx_ctx == 0 && hints.max_ep_srx_ctx == 0, "shared contexts")?;
        demand(hints.max_ep_tx_ctx <= 1 && hints.max_ep_rx_ctx <= 1, "several contexts")?;
        let memory = hints.mr_cnt <= MEMORIES && hints.mr_iov_limit <= 1 && hints.mr_key_size <= KEY_SIZE;
        demand(memory, "registered memory of so many or of several pieces, or keys of that size")?;
        self.domain_key = key(hints.auth_key, hints.auth_key_size)?;
        demand(hints.max_err_data == 0, "data of errors")?;
        let classes = [sys::FI_TC_UNSPEC, sys::FI_TC_BEST_EFFORT];
        demand(classes.contains(&hints.tclass), "the traffic class")
    }

    /// A list of `fi_info`, one for each address that suits.
    fn list(
        &self,
        wish: &Wish,
        params: &Params,
        place: &Place,
        facts: &Result<Facts, FiError>,
        domain: Option<&str>,
    ) -> Result<List, FiError> {
        let port = wish.source.map_or(0, |source| source.port());
        let mut list = List::default();
        if let Place::Named(name) = place {
            demand(domain.is_none_or(|domain| domain == name), "another domain")?;
            demand(is_port(name), "a port or server of that name")?;
            demand(place.is_built(), "a port of DPDK, as the provider was built without that,")?;
            demand(place.exists(), "a server whose socket is not there")?;
            demand(port <= MAX_PROCESS, "a process with that number")?;
            demand(wish.format.family == Family::V4, "IPv6 at a named port or server")?;
            let wanted = wish.source.map(|source| source.ip()).filter(|ip| !ip.is_unspecified());
            let own = facts.ok().and_then(|facts| facts.ip);
            let is_there = wanted.is_none() || own.is_none() || wanted == own;
            demand(is_there, "an address that endpoints there do not have")?;
            let longest = match self.kind {
                Kind::Rdm => self.longest,
                Kind::Datagram => (*facts)?.longest_datagram.into(),
            };
            let suits = longest > 0 && self.longest <= longest && self.inject as u64 <= longest;
            demand(suits, "a datagram of that length")?;
            list.append(self.info(name, wish, wish.source, longest)?);
            return Ok(list);
        }
        let entropies = params.entropies();
        demand(port.is_multiple_of(entropies), "a UDP port that is no multiple of FI_WEFT_ENTROPIES")?;
        for local in offered(wish, params, domain)? {
            let source = SocketAddr::from((local.ip, port));
            let longest = match self.kind {
                Kind::Rdm => self.longest,
                Kind::Datagram => longest_payload_at(local.ip, params.mtu).into(),
            };
            // An MTU may be too small for any payload.
            if longest > 0 && self.longest <= longest && self.inject as u64 <= longest {
                list.append(self.info(&local.interface, wish, Some(source), longest)?);
            }
        }
        demand(!list.is_empty(), "an address of this host, or a datagram of that length")?;
        Ok(list)
    }

    fn info(
        &self,
        name: &str,
        wish: &Wish,
        source: Option<SocketAddr>,
        longest: u64,
    ) -> Result<*mut sys::fi_info, FiError> {
        let domain_name = CString::new(name).map_err(|_| FiError::INVALID)?;
        let or_first =
            |named: usize, first: Option<usize>| if named == 0 { first.unwrap_or(0) } else { named };
        let open_fabric = or_first(self.open_fabric, opened::first_fabric()?);
        let open_domain = or_first(self.open_domain, opened::first_domain(name)?);
        // SAFETY: without an original it is a new one with all its parts, all of which are zero.
        let at = unsafe { sys::fi_dupinfo(std::ptr::null()) };
        // SAFETY: as before; nobody else knows it yet.
        let info = unsafe { at.as_mut() }.ok_or(FiError::NO_MEMORY)?;
        info.caps = self.caps;
        info.addr_format = wish.format.number();
        if let Some(source) = source {
            (info.src_addr, info.src_addrlen) = wish.format.duplicate(&source)?;
        }
        if let Some(destination) = wish.destination {
            (info.dest_addr, info.dest_addrlen) = wish.format.duplicate(&destination)?;
        }
        // SAFETY: a new one has all its parts.
        let (tx, rx, ep, domain, fabric) = unsafe {
            (
                &mut *info.tx_attr,
                &mut *info.rx_attr,
                &mut *info.ep_attr,
                &mut *info.domain_attr,
                &mut *info.fabric_attr,
            )
        };
        tx.caps = self.transmit.caps;
        tx.op_flags = self.transmit.op_flags;
        tx.msg_order = self.transmit.order;
        (tx.inject_size, tx.size) = (INJECT_SIZE.min(longest as usize), DEPTH);
        (tx.iov_limit, tx.rma_iov_limit) = (IOV_LIMIT, self.places());
        rx.caps = self.receive.caps;
        rx.op_flags = self.receive.op_flags;
        rx.msg_order = self.receive.order;
        (rx.total_buffered_recv, rx.size, rx.iov_limit) = (self.buffered(), self.receives, IOV_LIMIT);
        ep.type_ = self.kind.ep_type();
        (ep.protocol, ep.protocol_version) = (PROTOCOL, PROTOCOL_VERSION);
        ep.max_msg_size = longest as usize;
        ep.mem_tag_format = self.tag_format;
        (ep.tx_ctx_cnt, ep.rx_ctx_cnt) = (1, 1);
        domain.name = abi::duplicate(&domain_name);
        domain.threading = self.threading;
        (domain.control_progress, domain.data_progress) = (self.control_progress, self.data_progress);
        (domain.resource_mgmt, domain.av_type, domain.mr_mode) = (self.resources, self.av_type, self.mr_mode);
        domain.cq_data_size = CQ_DATA_SIZE;
        (domain.cq_cnt, domain.cntr_cnt) = (MANY, MANY);
        (domain.ep_cnt, domain.tx_ctx_cnt, domain.rx_ctx_cnt) =
            (self.endpoints, self.endpoints, self.endpoints);
        (domain.max_ep_tx_ctx, domain.max_ep_rx_ctx) = (1, 1);
        (domain.mr_cnt, domain.mr_iov_limit, domain.mr_key_size) = (MEMORIES, 1, KEY_SIZE);
        domain.caps = ALWAYS;
        if let Some(key) = self.domain_key {
            (domain.auth_key, domain.auth_key_size) = key.duplicate()?;
        }
        if let Some(key) = self.endpoint_key {
            (ep.auth_key, ep.auth_key_size) = key.duplicate()?;
        }
        fabric.name = abi::duplicate(NAME);
        fabric.prov_version = crate::VERSION;
        fabric.fabric = std::ptr::with_exposed_provenance_mut(open_fabric);
        domain.domain = std::ptr::with_exposed_provenance_mut(open_domain);
        Ok(at)
    }
}

impl Direction {
    fn narrow(&mut self, unknown_flags: u64, order: u64, completions: u64) -> Result<(), FiError> {
        demand(unknown_flags == 0, "a flag of operations")?;
        demand(order & !self.order == 0, "the order of messages")?;
        demand(completions == sys::FI_ORDER_NONE, "an order of completions")
    }
}

/// Whether ports or servers have names of this kind.
fn is_port(name: &str) -> bool {
    matches!(name.split_once(':'), Some(("serve" | "udp" | "memif" | "dpdk", _)))
}

/// The capabilities for those that hints ask for, of those that are offered.
fn caps(wanted: u64, offered: u64) -> Result<u64, FiError> {
    demand(wanted & !offered == 0, "a capability")?;
    let all = implied(wanted, offered);
    demand(wanted & RECEIVING & !all == 0, "receives for many messages without any messages")?;
    demand(wanted & DIRECTIONS & !all == 0, "a direction of messages without any messages")?;
    demand(wanted & REMOTE_DIRECTIONS & !all == 0, "a direction of accesses to memory without any accesses")?;
    let counts = all & sys::FI_RMA_EVENT != 0;
    demand(!counts || all & OF_PEERS != 0, "counters of remote accesses without any")?;
    Ok(all)
}

/// Capabilities with those that they imply, of those that are offered: kinds of operations mean all directions of theirs if none is
/// named, and nothing at all means all kinds.
pub(crate) fn implied(wanted: u64, offered: u64) -> u64 {
    let kinds = if wanted & PRIMARY == 0 { PRIMARY & offered } else { wanted & PRIMARY };
    let directions = |all: u64, of: u64| match (kinds & of, wanted & all) {
        (0, _) => 0,
        (_, 0) => all,
        (_, named) => named,
    };
    let (messages, remote) = (directions(DIRECTIONS, MESSAGES), directions(REMOTE_DIRECTIONS, REMOTE));
    let on_demand = if wanted == 0 { ON_DEMAND & offered } else { wanted & ON_DEMAND };
    let receives = messages & sys::FI_RECV != 0 && kinds & sys::FI_MSG != 0;
    let receiving = if receives { RECEIVING & offered } else { 0 };
    kinds | messages | remote | on_demand | receiving | ALWAYS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_those_that_were_asked_for_and_what_they_imply() {
        let tagged = sys::FI_TAGGED | DIRECTIONS | ALWAYS;
        const CAPS: u64 = RELIABLE_CAPS;
        assert_eq!(caps(0, CAPS), Ok(CAPS));
        assert_eq!(caps(0, UNRELIABLE_CAPS), Ok(UNRELIABLE_CAPS));
        assert_eq!(caps(sys::FI_MSG, UNRELIABLE_CAPS), Ok(sys::FI_MSG | DIRECTIONS | ALWAYS));
        assert_eq!(caps(sys::FI_TAGGED, UNRELIABLE_CAPS), Err(FiError::NO_DATA));
        assert_eq!(caps(sys::FI_TAGGED, CAPS), Ok(tagged));
        assert_eq!(caps(sys::FI_TAGGED | sys::FI_SOURCE, CAPS), Ok(tagged | sys::FI_SOURCE));
        assert_eq!(caps(sys::FI_MSG | sys::FI_SEND, CAPS), Ok(sys::FI_MSG | sys::FI_SEND | ALWAYS));
        assert_eq!(caps(sys::FI_MSG, CAPS), Ok(sys::FI_MSG | DIRECTIONS | RECEIVING | ALWAYS));
        assert_eq!(
            caps(sys::FI_TAGGED | sys::FI_MULTI_RECV, CAPS),
            Err(FiError::NO_DATA),
            "messages without tags"
        );
        let remote = sys::FI_RMA | ALWAYS;
        assert_eq!(caps(sys::FI_RMA, CAPS), Ok(remote | REMOTE_DIRECTIONS));
        let both = caps(sys::FI_RMA | sys::FI_TAGGED | sys::FI_SEND, CAPS);
        assert_eq!(both, Ok(remote | REMOTE_DIRECTIONS | sys::FI_TAGGED | sys::FI_SEND));
        for (kind, direction) in [(sys::FI_RMA, sys::FI_SEND), (sys::FI_MSG, sys::FI_READ)] {
            assert_eq!(caps(kind | direction, CAPS), Err(FiError::NO_DATA), "a direction of another kind");
        }
        assert_eq!(caps(sys::FI_SEND, CAPS), Ok(CAPS & !(sys::FI_RECV | RECEIVING | ON_DEMAND)));
        assert_eq!(caps(sys::FI_RMA | sys::FI_READ, CAPS), Ok(remote | sys::FI_READ));
        let counted = sys::FI_RMA | sys::FI_RMA_EVENT;
        assert_eq!(caps(counted, CAPS), Ok(remote | REMOTE_DIRECTIONS | sys::FI_RMA_EVENT));
        assert_eq!(caps(counted | sys::FI_READ, CAPS), Err(FiError::NO_DATA), "peers do nothing");
        for missing in [sys::FI_RMA_EVENT, sys::FI_HMEM, sys::FI_COLLECTIVE] {
            assert_eq!(caps(sys::FI_MSG | missing, CAPS), Err(FiError::NO_DATA));
        }
    }
}
