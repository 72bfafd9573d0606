//! The table of an event queue. The provider reports insertions into address vectors (FI_EVENT) and registrations of memory
//! (FI_REG_MR) that were asked to be events, and endpoints that cannot work any more. Applications write events of their own.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex};

use crate::abi::{self, Head, Object};
use crate::cq::ERR_DATA_SIZE_SINCE;
use crate::error::{FiError, lock};
use crate::fabric::{Fabric, FabricObject};
use crate::refused::Refused;
use crate::sys;
use crate::wait::{Member, WaitSet};
use crate::wake::{self, Deadline, Wake};

/// Events of a queue whose application does not say how many it wants.
const DEFAULT_SIZE: usize = 1024;
/// The most events of a queue, and the longest one, bytes.
const MOST: usize = 1 << 16;

#[repr(C)]
pub(crate) struct EqObject {
    _head: Head<sys::fid_eq>,
    wait: sys::fi_wait_obj,
    pub(crate) queue: Arc<Events>,
    fabric: Arc<Fabric>,
    _set: Option<Arc<WaitSet>>,
}

/// The events of a queue.
#[derive(Debug)]
pub(crate) struct Events {
    /// Events beyond which an application can write none.
    size: usize,
    wake: Option<Wake>,
    events: Mutex<VecDeque<Event>>,
}

#[derive(Clone, Debug)]
enum Event {
    /// Written by an application, or the end of an insertion.
    Note { number: u32, bytes: Vec<u8> },
    /// An address that was not inserted, or an endpoint that cannot work any more.
    Failure(Failure),
}

/// The failure of an asynchronous operation or of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The address of the object's descriptor.
    pub(crate) fid: usize,
    /// The application's pointer.
    pub(crate) context: usize,
    /// Which one of several it was.
    pub(crate) number: u64,
    pub(crate) error: FiError,
}

// SAFETY: `repr(C)`, and it begins with a `fid_eq`, whose class is set by `open`.
unsafe impl Object for EqObject {
    const CLASS: u32 = sys::FI_CLASS_EQ;
}

static FID: sys::fi_ops = sys::fi_ops {
    size: size_of::<sys::fi_ops>(),
    close: Some(close),
    bind: Refused::NO,
    control: Some(control),
    ops_open: Refused::NO,
    tostr: None,
    ops_set: None,
};

static TABLE: sys::fi_ops_eq = sys::fi_ops_eq {
    size: size_of::<sys::fi_ops_eq>(),
    read: Some(read),
    readerr: Some(readerr),
    write: Some(write),
    sread: Some(sread),
    strerror: Some(strerror),
};

/// `fi_eq_open`: any thread may call it.
pub(crate) extern "C" fn open(
    fabric: *mut sys::fid_fabric,
    attr: *mut sys::fi_eq_attr,
    eq: *mut *mut sys::fid_eq,
    context: *mut c_void,
) -> c_int {
    abi::answer(|| {
        // SAFETY: it is a fabric of this provider's.
        let fabric: &FabricObject = unsafe { abi::object(fabric)? };
        // SAFETY: libfabric passes attributes and a place for the answer.
        let (attr, place) =
            unsafe { (attr.as_ref().ok_or(FiError::INVALID)?, eq.as_mut().ok_or(FiError::INVALID)?) };
        let wake = if wake::may_wait(attr.wait_obj)? { Some(Wake::new()?) } else { None };
        if attr.flags & !(sys::FI_WRITE | sys::FI_AFFINITY) != 0 {
            return Err(FiError::BAD_FLAGS);
        }
        let size = if attr.size == 0 { DEFAULT_SIZE } else { attr.size };
        if size > MOST {
            return Err(FiError::INVALID);
        }
        let head = sys::fid_eq { fid: abi::fid::<EqObject>(context, &FID), ops: abi::table(&TABLE) };
        // SAFETY: libfabric passes one that is open.
        let set = unsafe { WaitSet::of(attr.wait_obj, attr.wait_set)? };
        let queue = Arc::new(Events { size, wake, events: Mutex::default() });
        if let Some((set, wake)) = set.as_ref().zip(queue.wake.as_ref()) {
            set.add(Member::Events(Arc::downgrade(&queue)), wake)?;
        }
        let (_head, fabric, wait) = (Head::new(head), fabric.fabric.clone(), attr.wait_obj);
        *place = EqObject { _head, wait, queue, fabric, _set: set }.give();
        Ok(0)
    })
}

impl Events {
    /// Whether the caller may sleep on the descriptor.
    pub(crate) fn try_wait(&self) -> Result<bool, FiError> {
        let wake = self.wake.as_ref().ok_or(FiError::NOT_THERE)?;
        let events = lock(&self.events)?;
        if events.is_empty() {
            wake.rest();
        }
        Ok(events.is_empty())
    }

    /// The first event, which is taken unless `peek`.
    fn next(&self, room: usize, peek: bool) -> Result<Event, FiError> {
        let mut events = lock(&self.events)?;
        let event = events.front().ok_or(FiError::AGAIN)?;
        match event {
            Event::Failure(_) => return Err(FiError::ERROR_ENTRY),
            Event::Note { bytes, .. } if bytes.len() > room => return Err(FiError::TOO_SMALL),
            Event::Note { .. } => {}
        }
        let event = event.clone();
        if !peek {
            events.pop_front();
        }
        Ok(event)
    }

    /// The first event, which is taken, if it is a failure.
    fn next_failure(&self) -> Result<Failure, FiError> {
        let mut events = lock(&self.events)?;
        let Some(&Event::Failure(failure)) = events.front() else { return Err(FiError::AGAIN) };
        events.pop_front();
        Ok(failure)
    }

    fn push(&self, event: Event) -> Result<(), FiError> {
        lock(&self.events)?.push_back(event);
        if let Some(wake) = &self.wake {
            wake.wake();
        }
        Ok(())
    }

    /// Adds what did not work.
    pub(crate) fn push_failure(&self, failure: Failure) -> Result<(), FiError> {
        self.push(Event::Failure(failure))
    }

    /// Adds the end of an insertion into the vector `fid`, with the number of addresses that were inserted.
    pub(crate) fn push_inserted(&self, fid: usize, context: usize, count: u64) -> Result<(), FiError> {
        self.push_end(sys::FI_AV_COMPLETE, fid, context, count)
    }

    /// Adds the end of the registration of the memory `fid`.
    pub(crate) fn push_registered(&self, fid: usize, context: usize) -> Result<(), FiError> {
        self.push_end(sys::FI_MR_COMPLETE, fid, context, 0)
    }

    /// Adds the end of an asynchronous operation, as a `struct fi_eq_entry`.
    fn push_end(&self, number: u32, fid: usize, context: usize, data: u64) -> Result<(), FiError> {
        let words = [fid as u64, context as u64, data];
        let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.push(Event::Note { number, bytes })
    }

    fn wait(&self, room: usize, peek: bool, deadline: Deadline) -> Result<Event, FiError> {
        let wake = self.wake.as_ref().ok_or(FiError::NOT_THERE)?;
        let mut is_interrupted = false;
        loop {
            match self.next(room, peek) {
                Err(FiError::AGAIN) if !is_interrupted => {}
                done => return done,
            }
            let left = deadline.left()?;
            if self.try_wait()? {
                is_interrupted = !wake.sleep(left);
            }
        }
    }
}

/// `fi_close`: no other call uses the queue meanwhile.
extern "C" fn close(fid: *mut sys::fid) -> c_int {
    // SAFETY: nobody uses it any more, unless it is held.
    unsafe { abi::close_unless_held(fid, |object: &EqObject| &object.queue) }
}

/// `fi_control`: any thread may call it.
extern "C" fn control(fid: *mut sys::fid, command: c_int, arg: *mut c_void) -> c_int {
    abi::answer(|| {
        // SAFETY: it is an event queue of this provider's.
        let object: &EqObject = unsafe { abi::object(fid)? };
        let wake = object.queue.wake.as_ref().ok_or(FiError::NOT_THERE);
        // SAFETY: libfabric passes what belongs to the command.
        unsafe { abi::get_wait(command, object.wait, wake, arg) }
    })
}

/// Writes an event to where the application wants it.
///
/// # Safety
/// There is room for its bytes at `buf`, and `number` is a place for a number or null.
unsafe fn deliver(event: &Event, number: *mut u32, buf: *mut c_void) -> usize {
    let Event::Note { number: own, bytes } = event else { return 0 };
    // SAFETY: as the caller promises.
    unsafe {
        if let Some(number) = number.as_mut() {
            *number = *own;
        }
        if !bytes.is_empty() {
            buf.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }
    bytes.len()
}

/// The room that an application has.
fn room(buf: *mut c_void, len: usize) -> usize {
    if buf.is_null() { 0 } else { len }
}

/// `fi_eq_read`: any thread may call it.
extern "C" fn read(eq: *mut sys::fid_eq, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> isize {
    abi::answer_size(|| {
        // SAFETY: it is an event queue of this provider's.
        let object: &EqObject = unsafe { abi::object(eq)? };
        let next = object.queue.next(room(buf, len), flags & sys::FI_PEEK != 0)?;
        // SAFETY: the event fits.
        Ok(unsafe { deliver(&next, event, buf) })
    })
}

/// `fi_eq_sread`: any thread may call it, and sleep in it as long as it asked to. A negative timeout is for ever.
extern "C" fn sread(
    eq: *mut sys::fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    abi::answer_size(|| {
        // SAFETY: it is an event queue of this provider's.
        let object: &EqObject = unsafe { abi::object(eq)? };
        let next = object.queue.wait(room(buf, len), flags & sys::FI_PEEK != 0, Deadline::after(timeout))?;
        // SAFETY: the event fits.
        Ok(unsafe { deliver(&next, event, buf) })
    })
}

/// `fi_eq_readerr`: any thread may call it.
extern "C" fn readerr(eq: *mut sys::fid_eq, buf: *mut sys::fi_eq_err_entry, _flags: u64) -> isize {
    abi::answer_size(|| {
        // SAFETY: it is an event queue of this provider's, and libfabric passes room for an entry.
        let object: &EqObject = unsafe { abi::object(eq)? };
        if buf.is_null() {
            return Err(FiError::INVALID);
        }
        let Failure { fid, context, number, error } = object.queue.next_failure()?;
        let error = error.number();
        let has_size = object.fabric.api_version >= ERR_DATA_SIZE_SINCE;
        // Room of the application's for data about the error stays its own: there is none.
        // SAFETY: libfabric promises an entry of the application's version, which from this one on has the last field.
        unsafe {
            (&raw mut (*buf).fid).write(fid as sys::fid_t);
            (&raw mut (*buf).context).write(context as *mut c_void);
            (&raw mut (*buf).data).write(number);
            (&raw mut (*buf).err).write(error);
            (&raw mut (*buf).prov_errno).write(error);
            if has_size {
                (&raw mut (*buf).err_data_size).write(0);
            }
        }
        let without = std::mem::offset_of!(sys::fi_eq_err_entry, err_data_size);
        Ok(if has_size { size_of::<sys::fi_eq_err_entry>() } else { without })
    })
}

/// `fi_eq_write`: any thread may call it.
extern "C" fn write(eq: *mut sys::fid_eq, event: u32, buf: *const c_void, len: usize, _flags: u64) -> isize {
    abi::answer_size(|| {
        // SAFETY: it is an event queue of this provider's.
        let object: &EqObject = unsafe { abi::object(eq)? };
        if len > MOST || (len > 0 && buf.is_null()) {
            return Err(FiError::INVALID);
        }
        let bytes = match len {
            0 => Vec::new(),
            // SAFETY: libfabric promises `len` bytes at `buf`.
            len => unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), len) }.to_vec(),
        };
        if lock(&object.queue.events)?.len() >= object.queue.size {
            return Err(FiError::AGAIN);
        }
        object.queue.push(Event::Note { number: event, bytes })?;
        Ok(len)
    })
}

/// `fi_eq_strerror`: any thread may call it. The provider's error numbers are libfabric's.
extern "C" fn strerror(
    _eq: *mut sys::fid_eq,
    prov_errno: c_int,
    err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    crate::cq::strerror(std::ptr::null_mut(), prov_errno, err_data, buf, len)
}
