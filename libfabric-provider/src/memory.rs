//! The registered memory of a domain: every endpoint of the domain that was opened for accesses by peers exposes all of it.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, Weak};

use weft::Rights;
use weft::core::region::RegionSlice;

use crate::counter::Counter;
use crate::error::{FiError, lock};
use crate::rdm::{Rdm, is_key_of_notes};

/// `fi_mr_key` returns this value if a region has no key (FI_KEY_NOTAVAIL).
const NO_KEY: u64 = u64::MAX;

/// Held while an endpoint of the process performs an atomic operation of a peer: all endpoints of a domain expose its memory, and
/// the operations that they perform are atomic to each other. libfabric's domains are told apart by their names, so that two that
/// were opened with one name are one as well: one lock serves all.
static ATOMICS: LazyLock<Arc<Mutex<()>>> = LazyLock::new(Arc::default);

pub(crate) fn lock_of_atomics() -> &'static Arc<Mutex<()>> {
    &ATOMICS
}

/// Memory that peers may access.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    pub(crate) key: u64,
    /// The memory; `None` for no bytes at all.
    pub(crate) bytes: Option<RegionSlice>,
    /// By which offset peers name its first byte.
    pub(crate) base: u64,
    pub(crate) rights: Rights,
}

#[derive(Debug, Default)]
pub(crate) struct Memories(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    registrations: HashMap<u64, Registration>,
    /// Those that count writes to the memory under a key.
    counters: HashMap<u64, Arc<Counter>>,
    endpoints: Vec<Weak<Rdm>>,
}

impl State {
    fn endpoints(&self) -> impl Iterator<Item = Arc<Rdm>> {
        self.endpoints.iter().filter_map(Weak::upgrade)
    }
}

impl Memories {
    /// A key that nobody can guess, also no process that was forked from the same one.
    pub(crate) fn draw_key() -> u64 {
        loop {
            match crate::random::number() {
                NO_KEY => {}
                key if is_key_of_notes(key) => {}
                key => return key,
            }
        }
    }

    /// Exposes memory at all endpoints, and at those that follow.
    ///
    /// # Errors
    /// The key is in use.
    pub(crate) fn register(&self, registration: &Registration) -> Result<(), FiError> {
        let mut state = lock(&self.0)?;
        if state.registrations.contains_key(&registration.key) {
            return Err(FiError::NO_KEY);
        }
        let endpoints: Vec<_> = state.endpoints().collect();
        for (at, endpoint) in endpoints.iter().enumerate() {
            if let Err(error) = endpoint.expose(registration) {
                // The application may free the memory: nobody may keep access.
                let _ = withdraw_from(&endpoints[..at], registration.key);
                return Err(error);
            }
        }
        state.registrations.insert(registration.key, registration.clone());
        Ok(())
    }

    /// Peers have no access from here on, and no packet that is under way refers to the memory.
    pub(crate) fn withdraw(&self, key: u64) -> Result<(), FiError> {
        let mut state = lock(&self.0)?;
        state.registrations.remove(&key);
        state.counters.remove(&key);
        withdraw_from(&state.endpoints().collect::<Vec<_>>(), key)
    }

    /// Counts what peers write to the memory under `key`.
    ///
    /// # Errors
    /// Another counter does already.
    pub(crate) fn bind(&self, key: u64, counter: &Arc<Counter>) -> Result<(), FiError> {
        let mut state = lock(&self.0)?;
        if state.counters.contains_key(&key) {
            return Err(FiError::INVALID);
        }
        state.endpoints().try_for_each(|endpoint| endpoint.count_writes(key, counter))?;
        state.counters.insert(key, counter.clone());
        Ok(())
    }

    /// An endpoint of the domain is enabled. One that is refused exposes nothing.
    pub(crate) fn join(&self, endpoint: &Arc<Rdm>) -> Result<(), FiError> {
        let mut state = lock(&self.0)?;
        state.counters.iter().try_for_each(|(key, counter)| endpoint.count_writes(*key, counter))?;
        let mut exposed = Vec::new();
        for registration in state.registrations.values() {
            if let Err(error) = endpoint.expose(registration) {
                for key in exposed {
                    let _ = endpoint.withdraw(key);
                }
                return Err(error);
            }
            exposed.push(registration.key);
        }
        state.endpoints.retain(|other| other.strong_count() > 0);
        state.endpoints.push(Arc::downgrade(endpoint));
        Ok(())
    }

    /// An endpoint of the domain ends. Nobody has access to memory through it from here on: it may need a second to end, and programs
    /// close memory meanwhile.
    pub(crate) fn leave(&self, endpoint: &Rdm) -> Result<(), FiError> {
        let mut state = lock(&self.0)?;
        state.endpoints.retain(|other| !std::ptr::eq(other.as_ptr(), endpoint));
        let mut done = Ok(());
        for key in state.registrations.keys() {
            done = done.and(endpoint.withdraw(*key));
        }
        done
    }
}

/// Takes the memory back at all of them, also if one of them cannot.
fn withdraw_from(endpoints: &[Arc<Rdm>], key: u64) -> Result<(), FiError> {
    let mut done = Ok(());
    for endpoint in endpoints {
        done = done.and(endpoint.withdraw(key));
    }
    done
}
