//! The table of a domain: it opens address vectors, completion queues, counters and endpoints.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

use crate::abi::{self, Head, Object};
use crate::eq::{EqObject, Events};
use crate::error::{FiError, lock};
use crate::fabric::{Fabric, FabricObject};
use crate::info;
use crate::job::Key;
use crate::memory::Memories;
use crate::params::Params;
use crate::place::Place;
use crate::refused::Refused;
use crate::sockaddr::Format;
use crate::{atomic, av, cntr, cq, endpoint, mr, opened, poll, sys};

/// What the objects of a domain have in common.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) fabric: Arc<Fabric>,
    /// Where its endpoints are.
    pub(crate) place: Place,
    /// The kind of all addresses.
    pub(crate) format: Format,
    /// The authorisation key of endpoints that have none of their own.
    pub(crate) key: Option<Key>,
    pub(crate) modes: Modes,
    pub(crate) memories: Memories,
    events: Mutex<Option<Bound>>,
}

/// The event queue that is bound to a domain.
#[derive(Debug)]
struct Bound {
    queue: Arc<Events>,
    /// Whether registrations of memory are events.
    has_registrations: bool,
}

impl Domain {
    /// The event queue of endpoints that have none of their own.
    pub(crate) fn events(&self) -> Result<Option<Arc<Events>>, FiError> {
        Ok(lock(&self.events)?.as_ref().map(|bound| bound.queue.clone()))
    }

    /// The event queue for the ends of registrations of memory, if they are events.
    pub(crate) fn events_of_registrations(&self) -> Result<Option<Arc<Events>>, FiError> {
        let events = lock(&self.events)?;
        let bound = events.as_ref().filter(|bound| bound.has_registrations);
        Ok(bound.map(|bound| bound.queue.clone()))
    }
}

/// How peers name registered memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Modes {
    /// By its addresses in this process, instead of offsets from its first byte.
    pub(crate) virtual_addresses: bool,
    /// Under keys of the provider's, instead of the application's.
    pub(crate) own_keys: bool,
}

impl Modes {
    fn of(mode: u64) -> Modes {
        let basic = mode == u64::from(sys::FI_MR_BASIC);
        let has = |bit: u64| basic || mode & bit != 0;
        Modes { virtual_addresses: has(sys::FI_MR_VIRT_ADDR), own_keys: has(sys::FI_MR_PROV_KEY) }
    }
}

#[repr(C)]
pub(crate) struct DomainObject {
    _head: Head<sys::fid_domain>,
    pub(crate) domain: Arc<Domain>,
}

// SAFETY: `repr(C)`, and it begins with a `fid_domain`, whose class is set by `open`.
unsafe impl Object for DomainObject {
    const CLASS: u32 = sys::FI_CLASS_DOMAIN;
}

static FID: sys::fi_ops = sys::fi_ops {
    size: size_of::<sys::fi_ops>(),
    close: Some(close),
    bind: Some(bind),
    control: Some(mr::control_domain),
    ops_open: Refused::NO,
    tostr: None,
    ops_set: None,
};

static TABLE: sys::fi_ops_domain = sys::fi_ops_domain {
    size: size_of::<sys::fi_ops_domain>(),
    av_open: Some(av::open),
    cq_open: Some(cq::open),
    endpoint: Some(endpoint::open),
    scalable_ep: Refused::NO,
    cntr_open: Some(cntr::open),
    poll_open: Some(poll::open),
    stx_ctx: Refused::NO,
    srx_ctx: Refused::NO,
    query_atomic: Some(atomic::query),
    query_collective: Refused::NO,
    endpoint2: Some(endpoint::open2),
};

/// `fi_domain`: any thread may call it.
pub(crate) extern "C" fn open(
    fabric: *mut sys::fid_fabric,
    info: *mut sys::fi_info,
    domain: *mut *mut sys::fid_domain,
    context: *mut c_void,
) -> c_int {
    open2(fabric, info, domain, 0, context)
}

/// `fi_domain2`: any thread may call it.
pub(crate) extern "C" fn open2(
    fabric: *mut sys::fid_fabric,
    info: *mut sys::fi_info,
    domain: *mut *mut sys::fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    abi::answer(|| {
        if flags != 0 {
            return Err(FiError::BAD_FLAGS);
        }
        // SAFETY: it is a fabric of this provider's.
        let fabric: &FabricObject = unsafe { abi::object(fabric)? };
        // SAFETY: a place for the answer.
        let answer = unsafe { domain.as_mut().ok_or(FiError::INVALID)? };
        let fid = abi::fid::<DomainObject>(context, &FID);
        let head = sys::fid_domain { fid, ops: abi::table(&TABLE), mr: abi::table(&mr::TABLE) };
        // SAFETY: libfabric passes an info, whose parts are null or valid.
        let attr = unsafe { info.as_ref().and_then(|info| info.domain_attr.as_ref()) };
        // SAFETY: as before.
        let format = unsafe { info.as_ref() }.map(info::format_of).unwrap_or_default();
        let modes = Modes::of(attr.map_or(0, |domain| domain.mr_mode as u64));
        // SAFETY: as before; the name is null or a text.
        let name = unsafe { attr.map_or(Ok(None), |domain| abi::text(domain.name))? };
        let place = Params::read()?.place(name)?;
        // SAFETY: as before; the attributes say how long the key is.
        let key =
            unsafe { attr.map_or(Ok(None), |domain| Key::read(domain.auth_key, domain.auth_key_size))? };
        let (fabric, memories) = (fabric.fabric.clone(), Memories::default());
        let events = Mutex::default();
        let domain = Arc::new(Domain { fabric, place, format, key, modes, memories, events });
        *answer = DomainObject { _head: Head::new(head), domain }.give();
        opened::add_domain((*answer).expose_provenance(), name).map(|()| 0)
    })
}

/// `fi_close`: no other call uses the domain meanwhile.
extern "C" fn close(fid: *mut sys::fid) -> c_int {
    abi::answer(|| {
        // SAFETY: it is a domain of this provider's.
        let object: &DomainObject = unsafe { abi::object(fid)? };
        if Arc::strong_count(&object.domain) > 1 {
            return Err(FiError::BUSY);
        }
        opened::remove(fid.addr())?;
        // SAFETY: nobody uses it any more.
        drop(unsafe { abi::take::<DomainObject, _>(fid) });
        Ok(0)
    })
}

/// `fi_domain_bind`: any thread may call it. It binds the event queue of endpoints that have none of their own, and with FI_REG_MR
/// that of registrations of memory, which are done when their call returns.
extern "C" fn bind(fid: *mut sys::fid, other: *mut sys::fid, flags: u64) -> c_int {
    abi::answer(|| {
        // SAFETY: it is a domain of this provider's; the class of what is bound is checked.
        let (object, eq) =
            unsafe { (abi::object::<DomainObject, _>(fid)?, abi::object::<EqObject, _>(other)?) };
        if flags & !sys::FI_REG_MR != 0 {
            return Err(FiError::BAD_FLAGS);
        }
        let mut events = lock(&object.domain.events)?;
        if events.is_some() {
            return Err(FiError::INVALID);
        }
        let (queue, has_registrations) = (eq.queue.clone(), flags & sys::FI_REG_MR != 0);
        *events = Some(Bound { queue, has_registrations });
        Ok(0)
    })
}
