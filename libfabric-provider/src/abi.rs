//! The boundary between libfabric's C and this crate: entries that catch panics, objects behind libfabric's
//! descriptors, and memory and addresses of applications.
//!
//! libfabric promises this of the arguments of every call, beyond what each function's manual page says:
//! - descriptors are those that this provider has returned, of the table's own kind, and not closed before or during the
//!   call; only the descriptors that are *bound* may be of another kind, so their class is checked;
//! - pointers are valid for the call, and may be null only where the manual page says so;
//! - with FI_THREAD_SAFE any thread may make any call at any time.

use std::alloc::{Layout, alloc_zeroed};
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

use weft::core::region::Region;
use weft::{MAX_MESSAGE, MemorySlice, Split};

use crate::error::FiError;
use crate::sys;
use crate::wake::Wake;

/// The answer of an entry that returns 0, a count, or a negated error number. No panic leaves it.
pub(crate) fn answer(body: impl FnOnce() -> Result<c_int, FiError>) -> c_int {
    caught(body).unwrap_or_else(|error| -error.number())
}

/// As [`answer`], for entries that return a size.
pub(crate) fn answer_size(body: impl FnOnce() -> Result<usize, FiError>) -> isize {
    match caught(body) {
        Ok(size) => size as isize,
        Err(error) => -(error.number() as isize),
    }
}

/// As [`answer`], for entries that return a value and have no way to tell an error.
pub(crate) fn answer_value(body: impl FnOnce() -> Result<u64, FiError>) -> u64 {
    caught(body).unwrap_or(0)
}

/// Locks that a panic left behind are poisoned, so that nobody sees a state that is half changed.
fn caught<T>(body: impl FnOnce() -> Result<T, FiError>) -> Result<T, FiError> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(FiError::OTHER))
}

/// So many bytes, all of them zero. A large vector uses no memory before it is written to.
///
/// # Errors
/// [`FiError::NO_MEMORY`] if there is no memory for them.
pub(crate) fn zeroed(len: usize) -> Result<Vec<u8>, FiError> {
    let layout = Layout::array::<u8>(len).map_err(|_| FiError::NO_MEMORY)?;
    if len == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the layout has bytes.
    let bytes = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(FiError::NO_MEMORY)?;
    // SAFETY: they were allocated with the layout that a vector of this capacity has, and all of them are written.
    Ok(unsafe { Vec::from_raw_parts(bytes.as_ptr(), len, len) })
}

/// A type that libfabric knows by a pointer to its first field.
///
/// # Safety
/// The type is `repr(C)` and begins with a [`Head`] of one of libfabric's `fid_*` structs, whose class is `CLASS`.
pub(crate) unsafe trait Object: Sized {
    const CLASS: u32;

    /// Hands the object over to libfabric, until [`take`].
    fn give<F>(self) -> *mut F {
        Box::into_raw(Box::new(self)).cast()
    }
}

/// One of libfabric's `fid_*` structs at the beginning of an object. Applications write to its context, and libfabric to
/// its tables, whenever they like: no reference to it is ever made, and those to the object do not reach into it.
#[repr(transparent)]
pub(crate) struct Head<F>(UnsafeCell<F>);

impl<F> Head<F> {
    pub(crate) fn new(head: F) -> Head<F> {
        Head(UnsafeCell::new(head))
    }
}

/// A descriptor's common part.
pub(crate) fn fid<T: Object>(context: *mut c_void, ops: &'static sys::fi_ops) -> sys::fid {
    sys::fid { fclass: T::CLASS as usize, context, ops: table(ops) }
}

/// A table as libfabric's structs refer to it. Nobody writes to it.
pub(crate) fn table<T>(table: &'static T) -> *mut T {
    (&raw const *table).cast_mut()
}

/// The object that a descriptor stands for.
///
/// # Safety
/// `descriptor` is null, or points to a `fid` of libfabric's that is valid for `'a`; if the class is that of `T`, an
/// [`Object::give`] has returned it, and [`take`] has not been called.
pub(crate) unsafe fn object<'a, T: Object, F>(descriptor: *const F) -> Result<&'a T, FiError> {
    if descriptor.is_null() {
        return Err(FiError::INVALID);
    }
    // SAFETY: as the caller promises. Nobody writes to the class, but others may write beside it.
    let class = unsafe { (&raw const (*descriptor.cast::<sys::fid>()).fclass).read() };
    if class != T::CLASS as usize {
        return Err(FiError::INVALID);
    }
    // SAFETY: the class says that it is a `T`, which is only ever referred to by shared references, and to whose head C
    // may write: that is in an `UnsafeCell`.
    Ok(unsafe { &*descriptor.cast::<T>() })
}

/// The context that a descriptor was opened with, or that its application has written to it since.
///
/// # Safety
/// `fid` is open.
pub(crate) unsafe fn context(fid: *const sys::fid) -> usize {
    // SAFETY: as the caller promises. Applications may write to the context whenever they like.
    unsafe { (&raw const (*fid).context).read() }.addr()
}

/// Takes the object back from libfabric.
///
/// # Safety
/// As [`object`], and nobody uses the descriptor any more.
pub(crate) unsafe fn take<T: Object, F>(descriptor: *mut F) -> Box<T> {
    // SAFETY: `give` made it of a box.
    unsafe { Box::from_raw(descriptor.cast()) }
}

/// `fi_close` of an object whose part `held` others hold while they need it: `-FI_EBUSY` then.
///
/// # Safety
/// As [`take`], with an object that may be of another type than `T`.
pub(crate) unsafe fn close_unless_held<T: Object, U>(
    descriptor: *mut sys::fid,
    held: impl FnOnce(&T) -> &Arc<U>,
) -> c_int {
    answer(|| {
        // SAFETY: as the caller promises.
        let object: &T = unsafe { object(descriptor)? };
        if Arc::strong_count(held(object)) > 1 {
            return Err(FiError::BUSY);
        }
        // SAFETY: it is a `T`, and nobody uses it any more.
        drop(unsafe { take::<T, _>(descriptor) });
        Ok(0)
    })
}

/// A text of an application's.
///
/// # Safety
/// `text` is null or ends with a zero, and lives as long as `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>, FiError> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(text) }.to_str().map(Some).map_err(|_| FiError::INVALID)
}

/// A copy of `text` that libfabric frees with `free`.
pub(crate) fn duplicate(text: &CStr) -> *mut c_char {
    // SAFETY: `text` ends with a zero.
    unsafe { libc::strdup(text.as_ptr()) }
}

/// Bytes of an application's that are sent. libfabric: the application leaves them alone until the completion.
pub(crate) struct AppBytes {
    begin: *const u8,
    len: usize,
}

// SAFETY: they are the process's, and any thread may read them.
unsafe impl Send for AppBytes {}

impl AppBytes {
    /// # Safety
    /// There are `len` bytes at `begin`, which nobody changes until this is dropped.
    pub(crate) unsafe fn new(begin: *const c_void, len: usize) -> AppBytes {
        // No reference may be null, not even one to no bytes.
        let begin = if len == 0 { std::ptr::dangling() } else { begin.cast() };
        AppBytes { begin, len }
    }
}

impl AppBytes {
    /// The same bytes as memory that a worker of this process sends from without a copy of its own; `None` if there are
    /// none, or more than any message has.
    pub(crate) fn lend(self) -> Option<MemorySlice> {
        let base = NonNull::new(self.begin.cast_mut())?;
        // SAFETY: as `new` demands, the bytes are there until the application knows that the message has ended, and nobody
        // changes them until then; when it knows, no packet refers to them (`State::take_back`). Nothing writes to memory
        // that is sent from.
        let region = unsafe { Region::foreign(base, self.len, Box::new(())) }.ok()?;
        let whole = region.slice(0, u32::try_from(self.len).ok()?).ok()?;
        Some(MemorySlice::lent(whole))
    }
}

impl AsRef<[u8]> for AppBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: as `new` demands.
        unsafe { std::slice::from_raw_parts(self.begin, self.len) }
    }
}

/// Memory of an application's that is received into. libfabric: the application leaves it alone until the completion.
pub(crate) struct AppRoom {
    begin: *mut u8,
    len: usize,
}

// SAFETY: it is the process's, and only the owner of this uses it.
unsafe impl Send for AppRoom {}

impl AppRoom {
    /// # Safety
    /// There are `len` bytes at `begin`, which nobody reads or changes until this is dropped.
    pub(crate) unsafe fn new(begin: *mut c_void, len: usize) -> AppRoom {
        let begin = if begin.is_null() { std::ptr::dangling_mut() } else { begin.cast() };
        AppRoom { begin, len }
    }

    /// Where it is, as completions say it.
    pub(crate) fn address(&self) -> usize {
        self.begin.addr()
    }
}

impl Split for AppRoom {
    fn split_to(&mut self, at: usize) -> AppRoom {
        let at = at.min(self.len);
        let first = AppRoom { begin: self.begin, len: at };
        // Within the bytes, or just behind them.
        (self.begin, self.len) = (self.begin.wrapping_add(at), self.len - at);
        first
    }
}

impl AsRef<[u8]> for AppRoom {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: as `new` demands. What is there is initialised as far as this crate can tell: it may be anything.
        unsafe { std::slice::from_raw_parts(self.begin, self.len) }
    }
}

impl AsMut<[u8]> for AppRoom {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as `new` demands, and `self` is the only one that has it.
        unsafe { std::slice::from_raw_parts_mut(self.begin, self.len) }
    }
}

/// The elements of an application's vector of pieces, local or remote.
///
/// # Safety
/// There are `count` elements at `vector`, or it is null.
pub(crate) unsafe fn pieces<'a, T>(vector: *const T, count: usize) -> Result<&'a [T], FiError> {
    match count {
        0 => Ok(&[]),
        count if count > IOV_LIMIT || vector.is_null() => Err(FiError::INVALID),
        // SAFETY: as the caller promises.
        count => Ok(unsafe { std::slice::from_raw_parts(vector, count) }),
    }
}

/// Bytes of all pieces together; `None` if they are more than a message has at most.
pub(crate) fn total(iov: &[sys::iovec]) -> Option<usize> {
    let total = iov.iter().try_fold(0usize, |sum, at| sum.checked_add(at.iov_len))?;
    Some(total).filter(|total| *total as u64 <= MAX_MESSAGE)
}

/// Answers the commands FI_GETWAIT and FI_GETWAITOBJ of an object with this wait object, whose descriptor is that of `wake`.
///
/// # Safety
/// With these commands, `arg` is null or a place for a descriptor or the kind of the wait object.
pub(crate) unsafe fn get_wait(
    command: c_int,
    object: sys::fi_wait_obj,
    wake: Result<&Wake, FiError>,
    arg: *mut c_void,
) -> Result<c_int, FiError> {
    if command == sys::FI_GETWAITOBJ as c_int {
        // SAFETY: as the caller promises.
        let place = unsafe { arg.cast::<sys::fi_wait_obj>().as_mut().ok_or(FiError::INVALID)? };
        *place = object;
        return Ok(0);
    }
    if command != sys::FI_GETWAIT as c_int || object != sys::FI_WAIT_FD {
        return Err(FiError::NOT_THERE);
    }
    let wake = wake?;
    // SAFETY: as the caller promises.
    let place = unsafe { arg.cast::<c_int>().as_mut().ok_or(FiError::INVALID)? };
    *place = wake.as_fd().as_raw_fd();
    Ok(0)
}

/// Runs `body` while all signals are blocked in this thread: a thread that it starts takes none of the application's.
pub(crate) fn with_signals_blocked<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: a set of signals is a plain array of numbers, and zeros are a value.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: both are places for sets. It cannot fail: the first argument is one that it knows.
    unsafe {
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
    }
    let done = body();
    // SAFETY: as before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    done
}

/// The most pieces of a message.
pub(crate) const IOV_LIMIT: usize = 8;

/// Bytes that libfabric frees with `free`.
pub(crate) fn duplicate_bytes(bytes: &[u8]) -> Result<*mut c_void, FiError> {
    // SAFETY: it is a number of bytes, and none would be no memory to free.
    let at = unsafe { libc::malloc(bytes.len().max(1)) };
    if at.is_null() {
        return Err(FiError::NO_MEMORY);
    }
    // SAFETY: so many bytes have been allocated.
    unsafe { at.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    Ok(at)
}

/// Writes a text of an application's buffer, cut off where that ends, and a zero.
///
/// # Safety
/// There are `len` bytes at `at`.
pub(crate) unsafe fn write_text(text: &str, at: *mut c_char, len: usize) {
    if at.is_null() || len == 0 {
        return;
    }
    let count = text.len().min(len - 1);
    // SAFETY: there is room for `count` bytes and one more.
    unsafe {
        at.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), count);
        at.add(count).write(0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::error::lock;

    #[repr(C)]
    struct Thing {
        _head: Head<sys::fid>,
        number: u32,
    }

    // SAFETY: `repr(C)`, and it begins with a `fid`, whose class is set.
    unsafe impl Object for Thing {
        const CLASS: u32 = sys::FI_CLASS_EQ;
    }

    static TABLE: sys::fi_ops = sys::fi_ops {
        size: size_of::<sys::fi_ops>(),
        close: None,
        bind: None,
        control: None,
        ops_open: None,
        tostr: None,
        ops_set: None,
    };

    #[test]
    fn applications_write_to_a_descriptor_while_its_object_is_in_use() {
        let head = Head::new(fid::<Thing>(std::ptr::null_mut(), &TABLE));
        let descriptor: *mut sys::fid = Thing { _head: head, number: 7 }.give();
        // SAFETY: it has just been given.
        let thing: &Thing = unsafe { object(descriptor) }.unwrap_or_else(|error| panic!("{error:?}"));
        // SAFETY: as C does it.
        unsafe { (*descriptor).context = std::ptr::dangling_mut() };
        assert_eq!(thing.number, 7);
        // SAFETY: nobody uses the descriptor any more.
        assert_eq!(unsafe { take::<Thing, _>(descriptor) }.number, 7);
    }

    #[test]
    fn a_panic_is_an_error_of_the_call_and_of_those_that_follow() {
        let state = Mutex::new(7);
        let number = |panics: bool| {
            let state = lock(&state)?;
            assert!(!panics, "a call that goes wrong");
            Ok(*state)
        };
        let (other, call) = (FiError::OTHER.number(), |panics| answer(|| number(panics)));
        assert_eq!([call(false), call(true), call(false)], [7, -other, -other]);
        assert_eq!(answer_size(|| panic!("another")), -(other as isize));
        assert_eq!(answer_value(|| panic!("a third")), 0);
    }

    #[test]
    fn nothing_and_other_classes_are_no_objects() {
        let other = sys::fid { fclass: sys::FI_CLASS_CQ as usize, ..sys::fid::default() };
        // SAFETY: it is a descriptor, or null.
        let found = unsafe {
            [object::<Thing, _>(&raw const other), object::<Thing, _>(std::ptr::null::<sys::fid>())]
        };
        assert!(found.iter().all(|found| found.as_ref().err() == Some(&FiError::INVALID)));
    }
}
