//! The tables of an endpoint: binding, enabling, names; and those of [messages].
//!
//! Any thread may make any of these calls at any time, except that libfabric promises that no other call is under way
//! while an endpoint is bound, enabled or closed.

mod messages;

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

pub(crate) use self::messages::{context_and_wanted, one, outgoing};

use self::messages::{MESSAGES, TAGGED};
use crate::abi::{self, Head, Object};
use crate::atomic;
use crate::av::AvObject;
use crate::cntr::CntrObject;
use crate::counter::Counter;
use crate::cq::CqObject;
use crate::dgram;
use crate::domain::{Domain, DomainObject};
use crate::eq::{EqObject, Events};
use crate::error::{FiError, lock};
use crate::info;
use crate::job::Key;
use crate::keeper::Keeper;
use crate::kind::Kind;
use crate::log;
use crate::params::Params;
use crate::rdm::{Binding, Bindings, Caps, DEPTH, EndpointEvents, Rdm};
use crate::refused::Refused;
use crate::rma;
use crate::sockaddr::Family;
use crate::sys;

#[repr(C)]
pub(crate) struct EndpointObject {
    _head: Head<sys::fid_ep>,
    pub(crate) rdm: Arc<Rdm>,
    kind: Kind,
    /// From enabling to closing.
    keeper: Mutex<Option<Keeper>>,
    /// Flags of calls that have none of their own.
    send_flags: AtomicU64,
    receive_flags: AtomicU64,
    domain: Arc<Domain>,
}

// SAFETY: `repr(C)`, and it begins with a `fid_ep`, whose class is set by `open`.
unsafe impl Object for EndpointObject {
    const CLASS: u32 = sys::FI_CLASS_EP;
}

impl EndpointObject {
    /// Flags of messages and accesses whose calls have none of their own.
    pub(crate) fn send_flags(&self) -> u64 {
        self.send_flags.load(Ordering::Relaxed)
    }

    /// FI_GETOPSFLAG and FI_SETOPSFLAG: reads or sets the flags of one direction, which `flags` names.
    ///
    /// # Errors
    /// None is named or both are, or calls of that direction have no such flag.
    fn operation_flags(&self, flags: &mut u64, sets: bool) -> Result<(), FiError> {
        let directions = *flags & (sys::FI_TRANSMIT | sys::FI_RECV);
        let (own, possible) = match directions {
            sys::FI_TRANSMIT => (&self.send_flags, self.kind.send_flags()),
            sys::FI_RECV => (&self.receive_flags, self.kind.receive_flags()),
            _ => return Err(FiError::INVALID),
        };
        let new = *flags & !directions;
        if !sets {
            *flags = own.load(Ordering::Relaxed);
        } else if new & !possible == 0 {
            own.store(new, Ordering::Relaxed);
        } else {
            return Err(FiError::BAD_FLAGS);
        }
        Ok(())
    }
}

static FID: sys::fi_ops = sys::fi_ops {
    size: size_of::<sys::fi_ops>(),
    close: Some(close),
    bind: Some(bind),
    control: Some(control),
    ops_open: Refused::NO,
    tostr: None,
    ops_set: None,
};

static TABLE: sys::fi_ops_ep = sys::fi_ops_ep {
    size: size_of::<sys::fi_ops_ep>(),
    cancel: Some(cancel),
    getopt: Some(getopt),
    setopt: Some(setopt),
    tx_ctx: Refused::NO,
    rx_ctx: Refused::NO,
    rx_size_left: Some(rx_size_left),
    tx_size_left: Some(tx_size_left),
};

static NAMES: sys::fi_ops_cm = sys::fi_ops_cm {
    size: size_of::<sys::fi_ops_cm>(),
    setname: Refused::NO,
    getname: Some(getname),
    getpeer: Refused::NO,
    connect: Refused::NO,
    listen: Refused::NO,
    accept: Refused::NO,
    reject: Refused::NO,
    shutdown: Refused::NO,
    join: Refused::NO,
};

/// Collective operations are not there. `fi_barrier` and the like call through the table without a look at it.
static COLLECTIVES: sys::fi_ops_collective = sys::fi_ops_collective {
    size: size_of::<sys::fi_ops_collective>(),
    barrier: Refused::NO,
    broadcast: Refused::NO,
    alltoall: Refused::NO,
    allreduce: Refused::NO,
    allgather: Refused::NO,
    reduce_scatter: Refused::NO,
    reduce: Refused::NO,
    scatter: Refused::NO,
    gather: Refused::NO,
    msg: Refused::NO,
    barrier2: Refused::NO,
};

/// `fi_endpoint`: any thread may call it.
pub(crate) extern "C" fn open(
    domain: *mut sys::fid_domain,
    info: *mut sys::fi_info,
    ep: *mut *mut sys::fid_ep,
    context: *mut c_void,
) -> c_int {
    open2(domain, info, ep, 0, context)
}

/// `fi_endpoint2`: any thread may call it.
pub(crate) extern "C" fn open2(
    domain: *mut sys::fid_domain,
    info: *mut sys::fi_info,
    ep: *mut *mut sys::fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    abi::answer(|| {
        if flags != 0 {
            return Err(FiError::BAD_FLAGS);
        }
        // SAFETY: it is a domain of this provider's.
        let domain: &DomainObject = unsafe { abi::object(domain)? };
        // SAFETY: libfabric passes an info, whose parts are null or valid, and a place for the answer.
        let (info, answer) =
            unsafe { (info.as_ref().ok_or(FiError::INVALID)?, ep.as_mut().ok_or(FiError::INVALID)?) };
        // SAFETY: as before.
        let (ep_attr, tx, rx) =
            unsafe { (info.ep_attr.as_ref(), info.tx_attr.as_ref(), info.rx_attr.as_ref()) };
        // SAFETY: as before; the attributes say how long the key is.
        let key = unsafe { ep_attr.map_or(Ok(None), |ep| Key::read(ep.auth_key, ep.auth_key_size))? };
        let kind = Kind::of(ep_attr.map_or(sys::FI_EP_UNSPEC, |ep| ep.type_)).ok_or(FiError::NO_DATA)?;
        if info.caps & !kind.caps() != 0 {
            log::warn("an endpoint cannot have capabilities that fi_getinfo has not offered");
            return Err(FiError::NO_DATA);
        }
        // FI_SHARED_CONTEXT is a large number.
        if ep_attr.is_some_and(|ep| ep.tx_ctx_cnt > 1 || ep.rx_ctx_cnt > 1) {
            log::warn("an endpoint has one transmit context and one receive context, both its own");
            return Err(FiError::NO_DATA);
        }
        let params = Params::read()?;
        let place = &domain.domain.place;
        let source = info::source_of(info, place, &params)?;
        if Family::of(&source.ip()) != domain.domain.format.family {
            return Err(FiError::INVALID);
        }
        let job = key.or(domain.domain.key).map_or(params.job, |key| key.job());
        let endpoint = place.open(kind, source, job, &params)?;
        let rdm = Arc::new(Rdm::new(endpoint, place, Caps::of(kind, info.caps))?);
        let wanted = ep_attr.map_or(0, |ep| ep.max_msg_size);
        if kind == Kind::Datagram && wanted > rdm.longest_datagram()? {
            log::warn(&format!(
                "a datagram has at most {} bytes there, not {wanted}",
                rdm.longest_datagram()?
            ));
            let _ = rdm.close(&domain.domain.memories);
            return Err(FiError::NO_DATA);
        }
        let (tagged, rma, atomic) = match kind {
            Kind::Rdm => (&TAGGED, &rma::TABLE, &atomic::TABLE),
            Kind::Datagram => (&dgram::TAGGED, &dgram::REMOTE, &dgram::ATOMIC),
        };
        let head = sys::fid_ep {
            fid: abi::fid::<EndpointObject>(context, &FID),
            ops: abi::table(&TABLE),
            cm: abi::table(&NAMES),
            msg: abi::table(&MESSAGES),
            rma: abi::table(rma),
            tagged: abi::table(tagged),
            atomic: abi::table(atomic),
            collective: abi::table(&COLLECTIVES),
        };
        let object = EndpointObject {
            _head: Head::new(head),
            rdm,
            kind,
            keeper: Mutex::new(None),
            send_flags: tx.map_or(0, |tx| tx.op_flags).into(),
            receive_flags: rx.map_or(0, |rx| rx.op_flags).into(),
            domain: domain.domain.clone(),
        };
        *answer = object.give();
        Ok(0)
    })
}

/// `fi_close`: no other call uses the endpoint meanwhile. It waits up to a second until messages are delivered and peers have their
/// answers.
extern "C" fn close(fid: *mut sys::fid) -> c_int {
    abi::answer(|| {
        // SAFETY: it is an endpoint of this provider's, and nobody uses it any more.
        let object = unsafe { abi::take::<EndpointObject, _>(fid) };
        // The object is gone whatever fails, and only what a panic has left behind does: the caller cannot try again.
        let _ = object.rdm.detach();
        if let Ok(mut keeper) = lock(&object.keeper) {
            drop(keeper.take());
        }
        let _ = object.rdm.close(&object.domain.memories);
        Ok(0)
    })
}

/// `fi_ep_bind`: no other call uses the endpoint meanwhile.
extern "C" fn bind(fid: *mut sys::fid, other: *mut sys::fid, flags: u64) -> c_int {
    abi::answer(|| {
        // SAFETY: it is an endpoint of this provider's; the class of what is bound is checked.
        let (object, cq, cntr, av, eq) = unsafe {
            (
                abi::object::<EndpointObject, _>(fid)?,
                abi::object::<CqObject, _>(other),
                abi::object::<CntrObject, _>(other),
                abi::object::<AvObject, _>(other),
                abi::object::<EqObject, _>(other),
            )
        };
        if let Ok(cq) = cq {
            return bind_queue(object, cq, flags).map(|()| 0);
        }
        if let Ok(cntr) = cntr {
            return bind_counter(object, cntr, flags).map(|()| 0);
        }
        if let Ok(av) = av {
            let addresses = av.addresses.clone();
            if object.kind == Kind::Datagram {
                addresses.introduce_to(&object.rdm)?;
            }
            return object
                .rdm
                .bind(|all| match &mut all.addresses {
                    Some(_) => Err(FiError::INVALID),
                    none => {
                        *none = Some(addresses);
                        Ok(())
                    }
                })
                .map(|()| 0);
        }
        let queue = eq.map_err(|_| FiError::NOT_THERE)?.queue.clone();
        // SAFETY: it is an endpoint of this provider's.
        let events = unsafe { endpoint_events(fid, queue) };
        object
            .rdm
            .bind(|all| match &mut all.events {
                Some(_) => Err(FiError::INVALID),
                none => {
                    *none = Some(events);
                    Ok(())
                }
            })
            .map(|()| 0)
    })
}

/// Events of an endpoint for `queue`.
///
/// # Safety
/// `fid` is open.
unsafe fn endpoint_events(fid: *mut sys::fid, queue: Arc<Events>) -> EndpointEvents {
    // SAFETY: as the caller promises.
    let context = unsafe { abi::context(fid) };
    EndpointEvents { queue, fid: fid.addr(), context, is_told: false }
}

fn bind_queue(object: &EndpointObject, cq: &CqObject, flags: u64) -> Result<(), FiError> {
    if flags & !(sys::FI_SEND | sys::FI_RECV | sys::FI_SELECTIVE_COMPLETION) != 0 {
        return Err(FiError::BAD_FLAGS);
    }
    let (sends, receives) = (flags & sys::FI_SEND != 0, flags & sys::FI_RECV != 0);
    if !sends && !receives {
        return Err(FiError::BAD_FLAGS);
    }
    // A call that is refused changes nothing. No other call is under way meanwhile.
    object.rdm.bind(|all| {
        let taken = sends && all.transmit.is_some() || receives && all.receive.is_some();
        if taken { Err(FiError::INVALID) } else { Ok(()) }
    })?;
    cq.queue.endpoints().attach(&object.rdm)?;
    let selective = flags & sys::FI_SELECTIVE_COMPLETION != 0;
    let binding = Binding { queue: cq.queue.clone(), selective };
    object.rdm.bind(|all| {
        if sends {
            all.transmit = Some(binding.clone());
        }
        if receives {
            all.receive = Some(binding);
        }
        Ok(())
    })
}

/// Binds a counter to messages that are sent, received or both, to reads, to writes, and to atomic operations as they are
/// either; or to what peers read and write, if the endpoint was opened with FI_RMA_EVENT.
fn bind_counter(object: &EndpointObject, cntr: &CntrObject, flags: u64) -> Result<(), FiError> {
    let of_peers = if object.rdm.counts_peers() { sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE } else { 0 };
    if flags == 0 || flags & !(sys::FI_SEND | sys::FI_RECV | sys::FI_READ | sys::FI_WRITE | of_peers) != 0 {
        return Err(FiError::BAD_FLAGS);
    }
    let places = |all: &mut Bindings, with: &mut dyn FnMut(&mut Option<Arc<Counter>>)| {
        let kinds = [
            (sys::FI_SEND, &mut all.sent),
            (sys::FI_RECV, &mut all.received),
            (sys::FI_READ, &mut all.read),
            (sys::FI_WRITE, &mut all.written),
            (sys::FI_REMOTE_READ, &mut all.read_by_peers),
            (sys::FI_REMOTE_WRITE, &mut all.written_by_peers),
        ];
        kinds.into_iter().filter(|(kind, _)| flags & kind != 0).for_each(|(_, place)| with(place));
    };
    // A call that is refused changes nothing. No other call is under way meanwhile.
    object.rdm.bind(|all| {
        let mut taken = false;
        places(all, &mut |place| taken |= place.is_some());
        if taken { Err(FiError::INVALID) } else { Ok(()) }
    })?;
    cntr.counter.endpoints().attach(&object.rdm)?;
    object.rdm.bind(|all| {
        places(all, &mut |place| *place = Some(cntr.counter.clone()));
        Ok(())
    })
}

/// `fi_enable`: no other call uses the endpoint meanwhile. `fi_control`: any thread may call it.
extern "C" fn control(fid: *mut sys::fid, command: c_int, arg: *mut c_void) -> c_int {
    abi::answer(|| {
        // SAFETY: it is an endpoint of this provider's.
        let object: &EndpointObject = unsafe { abi::object(fid)? };
        let sets = command == sys::FI_SETOPSFLAG as c_int;
        if sets || command == sys::FI_GETOPSFLAG as c_int {
            // SAFETY: libfabric passes flags with these commands.
            let flags = unsafe { arg.cast::<u64>().as_mut().ok_or(FiError::INVALID)? };
            return object.operation_flags(flags, sets).map(|()| 0);
        }
        if command != sys::FI_ENABLE as c_int {
            return Err(FiError::NOT_THERE);
        }
        if object.rdm.is_enabled()? {
            return Ok(0);
        }
        if let Some(queue) = object.domain.events()? {
            // SAFETY: as before.
            let events = unsafe { endpoint_events(fid, queue) };
            object.rdm.bind(|all| {
                all.events.get_or_insert(events);
                Ok(())
            })?;
        }
        enable(object).map(|()| 0)
    })
}

/// Enables an endpoint. One for which that fails stays as it was.
fn enable(object: &EndpointObject) -> Result<(), FiError> {
    object.rdm.check_bindings()?;
    let keeper = Keeper::start(&object.rdm)?;
    match object.kind {
        Kind::Rdm if object.rdm.is_target() => object.domain.memories.join(&object.rdm)?,
        Kind::Rdm => {}
        Kind::Datagram => object.rdm.meet()?,
    }
    *lock(&object.keeper)? = Some(keeper);
    object.rdm.enable()
}

/// `fi_cancel`: any thread may call it.
extern "C" fn cancel(fid: sys::fid_t, context: *mut c_void) -> isize {
    abi::answer_size(|| {
        // SAFETY: it is an endpoint of this provider's.
        let object: &EndpointObject = unsafe { abi::object(fid)? };
        object.rdm.cancel(context.addr()).map(|()| 0)
    })
}

/// `fi_getopt`: any thread may call it.
extern "C" fn getopt(
    fid: sys::fid_t,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    abi::answer(|| {
        // SAFETY: it is an endpoint of this provider's.
        let object: &EndpointObject = unsafe { abi::object(fid)? };
        let size = match (level as u32, name as u32) {
            (sys::FI_OPT_ENDPOINT, sys::FI_OPT_TX_SIZE) => DEPTH,
            (sys::FI_OPT_ENDPOINT, sys::FI_OPT_RX_SIZE) => object.kind.receives(),
            (sys::FI_OPT_ENDPOINT, sys::FI_OPT_MIN_MULTI_RECV) => object.rdm.least()? as usize,
            // There is no data of connection requests.
            (sys::FI_OPT_ENDPOINT, sys::FI_OPT_CM_DATA_SIZE) => 0,
            _ => return Err(FiError::NO_OPTION),
        };
        // SAFETY: libfabric passes the length of the room at `value`.
        let len = unsafe { len.as_mut().ok_or(FiError::INVALID)? };
        if value.is_null() || std::mem::replace(len, size_of::<usize>()) < size_of::<usize>() {
            return Err(FiError::TOO_SMALL);
        }
        // SAFETY: as before. Applications may give any address.
        unsafe { value.cast::<usize>().write_unaligned(size) };
        Ok(0)
    })
}

/// `fi_setopt`: any thread may call it.
extern "C" fn setopt(fid: sys::fid_t, level: c_int, name: c_int, value: *const c_void, len: usize) -> c_int {
    abi::answer(|| {
        // SAFETY: it is an endpoint of this provider's.
        let object: &EndpointObject = unsafe { abi::object(fid)? };
        match (level as u32, name as u32) {
            (sys::FI_OPT_ENDPOINT, sys::FI_OPT_MIN_MULTI_RECV) => {}
            // There are no transfers of memory of devices (FI_HMEM) for which a way could be chosen.
            (sys::FI_OPT_ENDPOINT, sys::FI_OPT_FI_HMEM_P2P) => return Err(FiError::NO_OPERATION),
            _ => return Err(FiError::NO_OPTION),
        }
        if value.is_null() || len != size_of::<usize>() {
            return Err(FiError::INVALID);
        }
        // SAFETY: there are so many bytes. Applications may give any address.
        let least = unsafe { value.cast::<usize>().read_unaligned() };
        let least = u32::try_from(least).map_err(|_| FiError::INVALID)?;
        object.rdm.set_least(least).map(|()| 0)
    })
}

/// `fi_rx_size_left`: any thread may call it.
extern "C" fn rx_size_left(ep: *mut sys::fid_ep) -> isize {
    // SAFETY: it is an endpoint of this provider's.
    abi::answer_size(|| Ok(unsafe { abi::object::<EndpointObject, _>(ep)? }.rdm.left()?.1))
}

/// `fi_tx_size_left`: any thread may call it.
extern "C" fn tx_size_left(ep: *mut sys::fid_ep) -> isize {
    // SAFETY: it is an endpoint of this provider's.
    abi::answer_size(|| Ok(unsafe { abi::object::<EndpointObject, _>(ep)? }.rdm.left()?.0))
}

/// `fi_getname`: any thread may call it.
extern "C" fn getname(fid: sys::fid_t, addr: *mut c_void, addrlen: *mut usize) -> c_int {
    abi::answer(|| {
        // SAFETY: it is an endpoint of this provider's.
        let object: &EndpointObject = unsafe { abi::object(fid)? };
        // SAFETY: libfabric passes the length of the room at `addr`.
        let len = unsafe { addrlen.as_mut().ok_or(FiError::INVALID)? };
        // SAFETY: as before.
        let all = unsafe { object.domain.format.write(&object.rdm.local(), addr, len) };
        if all { Ok(0) } else { Err(FiError::TOO_SMALL) }
    })
}
