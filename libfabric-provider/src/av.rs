//! The table of an address vector.

use std::ffi::{c_char, c_int, c_void};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use crate::abi::{self, Head, Object};
use crate::addresses::Addresses;
use crate::domain::{Domain, DomainObject};
use crate::eq::{EqObject, Events, Failure};
use crate::error::{FiError, lock};
use crate::info;
use crate::refused::Refused;
use crate::sockaddr::{self, Family};
use crate::symmetric::{Range, Symmetric};
use crate::sys::{self, FI_ADDR_NOTAVAIL, fi_addr_t};

#[repr(C)]
pub(crate) struct AvObject {
    _head: Head<sys::fid_av>,
    pub(crate) addresses: Arc<Addresses>,
    /// Whether the ends of insertions are events.
    has_events: bool,
    events: Mutex<Option<Arc<Events>>>,
    domain: Arc<Domain>,
}

// SAFETY: `repr(C)`, and it begins with a `fid_av`, whose class is set by `open`.
unsafe impl Object for AvObject {
    const CLASS: u32 = sys::FI_CLASS_AV;
}

static FID: sys::fi_ops = sys::fi_ops {
    size: size_of::<sys::fi_ops>(),
    close: Some(close),
    bind: Some(bind),
    control: Refused::NO,
    ops_open: Refused::NO,
    tostr: None,
    ops_set: None,
};

static TABLE: sys::fi_ops_av = sys::fi_ops_av {
    size: size_of::<sys::fi_ops_av>(),
    insert: Some(insert),
    insertsvc: Some(insertsvc),
    insertsym: Some(insertsym),
    remove: Some(remove),
    lookup: Some(lookup),
    straddr: Some(straddr),
    av_set: Refused::NO,
};

/// `fi_av_open`: any thread may call it.
pub(crate) extern "C" fn open(
    domain: *mut sys::fid_domain,
    attr: *mut sys::fi_av_attr,
    av: *mut *mut sys::fid_av,
    context: *mut c_void,
) -> c_int {
    abi::answer(|| {
        // SAFETY: it is a domain of this provider's.
        let domain: &DomainObject = unsafe { abi::object(domain)? };
        // SAFETY: libfabric passes attributes and a place for the answer.
        let (attr, place) =
            unsafe { (attr.as_mut().ok_or(FiError::INVALID)?, av.as_mut().ok_or(FiError::INVALID)?) };
        if !attr.name.is_null() || attr.rx_ctx_bits != 0 {
            return Err(FiError::NOT_THERE);
        }
        if attr.flags & !(sys::FI_SYMMETRIC | sys::FI_EVENT) != 0 {
            return Err(FiError::NOT_THERE);
        }
        match attr.type_ {
            sys::FI_AV_UNSPEC => attr.type_ = sys::FI_AV_TABLE,
            sys::FI_AV_MAP | sys::FI_AV_TABLE => {}
            _ => return Err(FiError::INVALID),
        }
        let head = sys::fid_av { fid: abi::fid::<AvObject>(context, &FID), ops: abi::table(&TABLE) };
        let object = AvObject {
            _head: Head::new(head),
            addresses: Arc::new(Addresses::new(attr.type_ == sys::FI_AV_MAP)),
            has_events: attr.flags & sys::FI_EVENT != 0,
            events: Mutex::default(),
            domain: domain.domain.clone(),
        };
        *place = object.give();
        Ok(0)
    })
}

/// `fi_close`: no other call uses the vector meanwhile.
extern "C" fn close(fid: *mut sys::fid) -> c_int {
    abi::answer(|| {
        // SAFETY: it is an address vector of this provider's.
        let object: &AvObject = unsafe { abi::object(fid)? };
        if Arc::strong_count(&object.addresses) > 1 {
            return Err(FiError::BUSY);
        }
        // SAFETY: nobody uses it any more.
        drop(unsafe { abi::take::<AvObject, _>(fid) });
        Ok(0)
    })
}

/// `fi_av_bind`: no other call uses the vector meanwhile. A vector that was not opened for events reports none.
extern "C" fn bind(fid: *mut sys::fid, other: *mut sys::fid, flags: u64) -> c_int {
    abi::answer(|| {
        // fi_av(3): they are reserved.
        if flags != 0 {
            return Err(FiError::BAD_FLAGS);
        }
        // SAFETY: it is an address vector of this provider's, and another descriptor, whose class is checked.
        let (object, eq) = unsafe { (abi::object::<AvObject, _>(fid)?, abi::object::<EqObject, _>(other)?) };
        *lock(&object.events)? = Some(eq.queue.clone());
        Ok(0)
    })
}

impl AvObject {
    /// The queue for the end of an insertion: `None` for a vector without events.
    ///
    /// # Errors
    /// The vector was opened for events, and is bound to no queue.
    fn events(&self) -> Result<Option<Arc<Events>>, FiError> {
        if !self.has_events {
            return Ok(None);
        }
        lock(&self.events)?.clone().ok_or(FiError::NO_EQ).map(Some)
    }
}

/// Where the results of an insertion go.
struct Results {
    numbers: *mut fi_addr_t,
    errors: *mut c_int,
    addresses: Arc<Addresses>,
    /// For those that fail, if they are events: the queue, the vector and the application's pointer.
    events: Option<(Arc<Events>, usize, usize)>,
    inserted: c_int,
}

impl Results {
    /// # Safety
    /// With FI_SYNC_ERR in `flags` the context is an array of numbers, one for each address; so is `numbers`, or null.
    unsafe fn new(
        object: &AvObject,
        numbers: *mut fi_addr_t,
        flags: u64,
        context: *mut c_void,
    ) -> Result<Results, FiError> {
        if flags & !(sys::FI_SYNC_ERR | sys::FI_MORE) != 0 {
            return Err(FiError::BAD_FLAGS);
        }
        let events = object.events()?;
        let wants_errors = flags & sys::FI_SYNC_ERR != 0;
        if events.is_some() && wants_errors {
            // Errors of vectors with events are events.
            return Err(FiError::BAD_FLAGS);
        }
        let errors = if wants_errors { context.cast() } else { std::ptr::null_mut() };
        let fid = (&raw const *object).addr();
        let events = events.map(|events| (events, fid, context.addr()));
        let addresses = object.addresses.clone();
        Ok(Results { numbers, errors, addresses, events, inserted: 0 })
    }

    /// The return value of the call: the number of inserted addresses, or 0 if an event reports it.
    fn finish(self) -> Result<c_int, FiError> {
        self.addresses.introduce()?;
        let Some((events, fid, context)) = self.events else { return Ok(self.inserted) };
        events.push_inserted(fid, context, self.inserted as u64)?;
        Ok(0)
    }

    /// Writes the result of address number `n`.
    ///
    /// # Safety
    /// There are more than `n` addresses.
    unsafe fn write(&mut self, n: usize, result: Result<fi_addr_t, FiError>) -> Result<(), FiError> {
        if !self.numbers.is_null() {
            // SAFETY: as `new` and the caller promise.
            unsafe { self.numbers.add(n).write(result.unwrap_or(FI_ADDR_NOTAVAIL)) };
        }
        if !self.errors.is_null() {
            // SAFETY: as before.
            unsafe { self.errors.add(n).write(result.err().map_or(0, FiError::number)) };
        }
        self.inserted += c_int::from(result.is_ok());
        if let (Err(error), Some((events, fid, context))) = (result, &self.events) {
            let (fid, context, number) = (*fid, *context, n as u64);
            events.push_failure(Failure { fid, context, number, error })?;
        }
        Ok(())
    }
}

fn inserted(object: &AvObject, addr: Option<SocketAddr>) -> Result<fi_addr_t, FiError> {
    let Domain { place, format, .. } = &*object.domain;
    let is_name = |addr: &SocketAddr| Family::of(&addr.ip()) == format.family && place.is_name(addr);
    let addr = addr.filter(is_name).ok_or(FiError::INVALID)?;
    object.addresses.insert(addr)
}

/// `fi_av_insert`: any thread may call it.
extern "C" fn insert(
    av: *mut sys::fid_av,
    addr: *const c_void,
    count: usize,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    abi::answer(|| {
        // SAFETY: it is an address vector of this provider's.
        let object: &AvObject = unsafe { abi::object(av)? };
        // SAFETY: libfabric promises it.
        let mut results = unsafe { Results::new(object, fi_addr, flags, context)? };
        if count > 0 && addr.is_null() {
            return Err(FiError::INVALID);
        }
        for n in 0..count {
            // SAFETY: there are `count` addresses of the domain's format.
            let addr = unsafe { object.domain.format.read_nth(addr, n) };
            // SAFETY: there are `count` places for results.
            unsafe { results.write(n, inserted(object, addr))? };
        }
        results.finish()
    })
}

/// `fi_av_insertsvc`: any thread may call it. It may ask a name server.
extern "C" fn insertsvc(
    av: *mut sys::fid_av,
    node: *const c_char,
    service: *const c_char,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    abi::answer(|| {
        // SAFETY: it is an address vector of this provider's.
        let object: &AvObject = unsafe { abi::object(av)? };
        // SAFETY: libfabric promises it.
        let mut results = unsafe { Results::new(object, fi_addr, flags, context)? };
        // SAFETY: texts or null.
        let (node, service) = unsafe { (abi::text(node)?, abi::text(service)?) };
        let addr = info::resolve(node, service, false, Some(object.domain.format.family)).ok();
        // SAFETY: there is a place for one result.
        unsafe { results.write(0, inserted(object, addr))? };
        results.finish()
    })
}

/// `fi_av_insertsym`: any thread may call it. It may ask a name server.
extern "C" fn insertsym(
    av: *mut sys::fid_av,
    node: *const c_char,
    nodes: usize,
    service: *const c_char,
    services: usize,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    abi::answer(|| {
        // SAFETY: it is an address vector of this provider's.
        let object: &AvObject = unsafe { abi::object(av)? };
        // SAFETY: libfabric promises it.
        let mut results = unsafe { Results::new(object, fi_addr, flags, context)? };
        // SAFETY: texts or null.
        let (node, service) = unsafe { (abi::text(node)?, abi::text(service)?) };
        let (node, service) = (node.ok_or(FiError::INVALID)?, service.ok_or(FiError::INVALID)?);
        let range = Range::parse(node, nodes, service, services).ok_or(FiError::INVALID)?;
        for (n, Symmetric { node, port }) in range.enumerate() {
            let resolved = node.and_then(|node| {
                info::resolve(Some(&node), None, false, Some(object.domain.format.family)).ok()
            });
            let addr = resolved.map(|addr| (addr.ip(), port).into());
            // SAFETY: there are as many places for results as addresses.
            unsafe { results.write(n, inserted(object, addr))? };
        }
        results.finish()
    })
}

/// `fi_av_remove`: any thread may call it.
extern "C" fn remove(av: *mut sys::fid_av, fi_addr: *mut fi_addr_t, count: usize, flags: u64) -> c_int {
    abi::answer(|| {
        // SAFETY: it is an address vector of this provider's.
        let object: &AvObject = unsafe { abi::object(av)? };
        if flags != 0 {
            return Err(FiError::BAD_FLAGS);
        }
        if count > 0 && fi_addr.is_null() {
            return Err(FiError::INVALID);
        }
        for n in 0..count {
            // SAFETY: there are `count` numbers.
            object.addresses.remove(unsafe { fi_addr.add(n).read() })?;
        }
        Ok(0)
    })
}

/// `fi_av_lookup`: any thread may call it.
extern "C" fn lookup(
    av: *mut sys::fid_av,
    fi_addr: fi_addr_t,
    addr: *mut c_void,
    addrlen: *mut usize,
) -> c_int {
    abi::answer(|| {
        // SAFETY: it is an address vector of this provider's.
        let object: &AvObject = unsafe { abi::object(av)? };
        // SAFETY: libfabric passes the length of the room at `addr`.
        let len = unsafe { addrlen.as_mut().ok_or(FiError::INVALID)? };
        let found = object.addresses.get(fi_addr)?.ok_or(FiError::INVALID)?;
        // SAFETY: as before. An address that is cut off is no error: the length tells.
        unsafe { object.domain.format.write(&found, addr, len) };
        Ok(0)
    })
}

/// `fi_av_straddr`: any thread may call it.
extern "C" fn straddr(
    av: *mut sys::fid_av,
    addr: *const c_void,
    buf: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    abi::answer(|| {
        // SAFETY: it is an address vector of this provider's.
        let format = unsafe { abi::object::<AvObject, _>(av)? }.domain.format;
        // SAFETY: an address of the domain's, and the length of the room at `buf`.
        let (addr, len) = unsafe { (format.read(addr), len.as_mut().ok_or(FiError::INVALID)?) };
        let text = addr.map_or_else(|| "no address".to_owned(), |addr| sockaddr::text(&addr));
        // SAFETY: as before.
        unsafe { abi::write_text(&text, buf, *len) };
        *len = text.len() + 1;
        Ok(0)
    });
    buf
}
