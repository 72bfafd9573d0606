//! The table of a poll set: completion queues and counters that are looked at together.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

use crate::abi::{self, Head, Object};
use crate::cntr::CntrObject;
use crate::counter::{Counter, Counts};
use crate::cq::CqObject;
use crate::domain::{Domain, DomainObject};
use crate::error::{FiError, lock};
use crate::queue::Queue;
use crate::refused::Refused;
use crate::sys;

#[repr(C)]
pub(crate) struct PollObject {
    _head: Head<sys::fid_poll>,
    members: Mutex<Vec<Member>>,
    _domain: Arc<Domain>,
}

/// What a set looks at.
struct Member {
    fid: usize,
    /// The application's pointer.
    context: usize,
    source: Source,
}

enum Source {
    Queue(Arc<Queue>),
    /// With what it was when the set last reported it.
    Counter(Arc<Counter>, Counts),
}

// SAFETY: `repr(C)`, and it begins with a `fid_poll`, whose class is set by `open`.
unsafe impl Object for PollObject {
    const CLASS: u32 = sys::FI_CLASS_POLL;
}

static FID: sys::fi_ops = sys::fi_ops {
    size: size_of::<sys::fi_ops>(),
    close: Some(close),
    bind: Refused::NO,
    control: Refused::NO,
    ops_open: Refused::NO,
    tostr: None,
    ops_set: None,
};

static TABLE: sys::fi_ops_poll = sys::fi_ops_poll {
    size: size_of::<sys::fi_ops_poll>(),
    poll: Some(poll),
    poll_add: Some(add),
    poll_del: Some(remove),
};

/// `fi_poll_open`: any thread may call it.
pub(crate) extern "C" fn open(
    domain: *mut sys::fid_domain,
    attr: *mut sys::fi_poll_attr,
    pollset: *mut *mut sys::fid_poll,
) -> c_int {
    abi::answer(|| {
        // SAFETY: it is a domain of this provider's; libfabric passes attributes or null, and a place for the answer.
        let (domain, attr, place) = unsafe {
            (
                abi::object::<DomainObject, _>(domain)?,
                attr.as_ref(),
                pollset.as_mut().ok_or(FiError::INVALID)?,
            )
        };
        if attr.is_some_and(|attr| attr.flags != 0) {
            return Err(FiError::BAD_FLAGS);
        }
        let fid = abi::fid::<PollObject>(std::ptr::null_mut(), &FID);
        let head = Head::new(sys::fid_poll { fid, ops: abi::table(&TABLE) });
        *place = PollObject { _head: head, members: Mutex::default(), _domain: domain.domain.clone() }.give();
        Ok(0)
    })
}

/// `fi_close`: no other call uses the set meanwhile.
extern "C" fn close(fid: *mut sys::fid) -> c_int {
    abi::answer(|| {
        // SAFETY: it is a poll set of this provider's, and nobody uses it any more.
        drop(unsafe { abi::take::<PollObject, _>(fid) });
        Ok(0)
    })
}

/// `fi_poll_add`: any thread may call it. A queue or counter of a set cannot be closed.
extern "C" fn add(pollset: *mut sys::fid_poll, fid: *mut sys::fid, flags: u64) -> c_int {
    abi::answer(|| {
        // SAFETY: it is a poll set of this provider's, and another descriptor, whose class is checked.
        let (object, cq, cntr) = unsafe {
            (
                abi::object::<PollObject, _>(pollset)?,
                abi::object::<CqObject, _>(fid),
                abi::object::<CntrObject, _>(fid),
            )
        };
        if flags != 0 {
            return Err(FiError::BAD_FLAGS);
        }
        let source = match (cq, cntr) {
            (Ok(cq), _) => Source::Queue(cq.queue.clone()),
            (_, Ok(cntr)) => Source::Counter(cntr.counter.clone(), cntr.counter.now()?),
            _ => return Err(FiError::INVALID),
        };
        // SAFETY: it is open.
        let context = unsafe { abi::context(fid) };
        let mut members = lock(&object.members)?;
        if members.iter().any(|member| member.fid == fid.addr()) {
            return Err(FiError::BUSY);
        }
        members.push(Member { fid: fid.addr(), context, source });
        Ok(0)
    })
}

/// `fi_poll_del`: any thread may call it.
extern "C" fn remove(pollset: *mut sys::fid_poll, fid: *mut sys::fid, flags: u64) -> c_int {
    abi::answer(|| {
        // SAFETY: it is a poll set of this provider's.
        let object: &PollObject = unsafe { abi::object(pollset)? };
        if flags != 0 {
            return Err(FiError::BAD_FLAGS);
        }
        let mut members = lock(&object.members)?;
        let at = members.iter().position(|member| member.fid == fid.addr()).ok_or(FiError::INVALID)?;
        members.remove(at);
        Ok(0)
    })
}

/// `fi_poll`: any thread may call it. It lets the endpoints work. That one of them cannot is an error when no member has news.
extern "C" fn poll(pollset: *mut sys::fid_poll, contexts: *mut *mut c_void, count: c_int) -> c_int {
    abi::answer(|| {
        // SAFETY: it is a poll set of this provider's.
        let object: &PollObject = unsafe { abi::object(pollset)? };
        let count = usize::try_from(count).map_err(|_| FiError::INVALID)?;
        if count > 0 && contexts.is_null() {
            return Err(FiError::INVALID);
        }
        let (mut ready, mut members) = (0, lock(&object.members)?);
        let (mut is_new, mut worked) = (false, Ok(()));
        for member in members.iter_mut() {
            // All of them work, also if nobody has room for what they say.
            let has_news = match &mut member.source {
                Source::Queue(queue) => queue.has_entries().unwrap_or_else(|error| {
                    worked = Err(error);
                    false
                }),
                Source::Counter(counter, seen) => {
                    worked = worked.and(counter.endpoints().progress());
                    let now = counter.now()?;
                    let changed = *seen != now;
                    if ready < count {
                        *seen = now;
                    }
                    changed
                }
            };
            is_new |= has_news;
            if has_news && ready < count {
                // SAFETY: there are `count` places.
                unsafe { contexts.add(ready).write(member.context as *mut c_void) };
                ready += 1;
            }
        }
        if is_new { Ok(ready as c_int) } else { worked.map(|()| 0) }
    })
}
