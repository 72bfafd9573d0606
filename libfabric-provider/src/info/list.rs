//! The list that `fi_getinfo` returns.

use crate::sys;

/// A list that is freed unless its first entry is taken.
pub(super) struct List {
    first: *mut sys::fi_info,
    last: *mut sys::fi_info,
}

impl Default for List {
    fn default() -> List {
        List { first: std::ptr::null_mut(), last: std::ptr::null_mut() }
    }
}

impl List {
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// Moves the entries of `other` to the end of this list.
    pub(super) fn join(&mut self, other: &mut List) {
        if !other.first.is_null() {
            let last = other.last;
            self.append(std::mem::take(other).release());
            self.last = last;
        }
    }

    /// The first entry, unless there is none; all of them are the caller's then.
    pub(super) fn take(self) -> Option<*mut sys::fi_info> {
        let first = self.release();
        (!first.is_null()).then_some(first)
    }

    fn release(mut self) -> *mut sys::fi_info {
        std::mem::replace(&mut self.first, std::ptr::null_mut())
    }

    pub(super) fn append(&mut self, info: *mut sys::fi_info) {
        if self.first.is_null() {
            self.first = info;
        } else {
            // SAFETY: the last entry is one that was appended, and is still ours.
            unsafe { (*self.last).next = info };
        }
        self.last = info;
    }
}

impl Drop for List {
    fn drop(&mut self) {
        if !self.first.is_null() {
            // SAFETY: nobody else has it.
            unsafe { sys::fi_freeinfo(self.first) };
        }
    }
}
