//! The queues, counters and addresses that are bound to an endpoint, and what reaches them.

use std::collections::HashMap;
use std::sync::Arc;

use weft::core::Accessed;

use super::{Rdm, State};
use crate::addresses::Addresses;
use crate::counter::Counter;
use crate::eq::{Events, Failure};
use crate::error::{FiError, lock};
use crate::queue::{Entry, Queue};

/// Where the ends of operations of one direction go.
#[derive(Clone, Debug)]
pub(crate) struct Binding {
    pub(crate) queue: Arc<Queue>,
    /// Only operations that ask for it have an entry, and those that fail.
    pub(crate) selective: bool,
}

/// Where it is said that the endpoint cannot work any more.
#[derive(Clone, Debug)]
pub(crate) struct EndpointEvents {
    pub(crate) queue: Arc<Events>,
    /// The address of the endpoint's descriptor.
    pub(crate) fid: usize,
    /// The application's pointer.
    pub(crate) context: usize,
    pub(crate) is_told: bool,
}

/// What the application binds before it enables an endpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bindings {
    pub(crate) transmit: Option<Binding>,
    pub(crate) receive: Option<Binding>,
    /// Counts messages that were sent.
    pub(crate) sent: Option<Arc<Counter>>,
    /// Counts messages that were received.
    pub(crate) received: Option<Arc<Counter>>,
    /// Counts reads of remote memory, and fetching atomic operations.
    pub(crate) read: Option<Arc<Counter>>,
    /// Counts writes to remote memory, and other atomic operations.
    pub(crate) written: Option<Arc<Counter>>,
    /// Counts what peers read of registered memory, and their fetching atomic operations.
    pub(crate) read_by_peers: Option<Arc<Counter>>,
    /// Counts what peers write to registered memory, and their other atomic operations.
    pub(crate) written_by_peers: Option<Arc<Counter>>,
    /// Count what peers write to the memory under a key, and all their atomic operations on it.
    pub(crate) of_memory: HashMap<u64, Arc<Counter>>,
    pub(crate) addresses: Option<Arc<Addresses>>,
    pub(crate) events: Option<EndpointEvents>,
}

/// Which operations have an entry in their queue when they have succeeded. Those that fail always have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// All, unless the queue is bound for selective completion.
    AsBound,
    Always,
    /// Of calls for injection.
    Never,
}

impl Wanted {
    pub(super) fn is_reported(self, selective: bool) -> bool {
        match self {
            Wanted::AsBound => !selective,
            Wanted::Always => true,
            Wanted::Never => false,
        }
    }

    /// Whether it is wanted of a call for injection, which has no context of its own.
    pub(super) fn is_injected(self) -> bool {
        self == Wanted::Never
    }
}

impl Rdm {
    /// Changes what is bound.
    ///
    /// # Errors
    /// The endpoint is enabled, or `bind` says so.
    pub(crate) fn bind(
        &self,
        bind: impl FnOnce(&mut Bindings) -> Result<(), FiError>,
    ) -> Result<(), FiError> {
        let mut state = lock(&self.state)?;
        if state.enabled {
            return Err(FiError::BAD_STATE);
        }
        bind(&mut state.bindings)
    }

    /// Lets packets of the peers in the address vector in.
    pub(crate) fn meet(&self) -> Result<(), FiError> {
        let mut state = lock(&self.state)?;
        let met = state.meet();
        self.rearm(&mut state);
        met
    }

    /// The queues and counters that are bound do not know the endpoint from here on.
    pub(crate) fn detach(self: &Arc<Rdm>) -> Result<(), FiError> {
        let all = lock(&self.state)?.bindings.clone();
        for binding in [all.transmit, all.receive].into_iter().flatten() {
            binding.queue.endpoints().detach(self)?;
        }
        let counters =
            [all.sent, all.received, all.read, all.written, all.read_by_peers, all.written_by_peers];
        for counter in counters.into_iter().flatten().chain(all.of_memory.into_values()) {
            counter.endpoints().detach(self)?;
        }
        Ok(())
    }

    /// # Errors
    /// It lacks an address vector, or the queue of operations that it was opened for. What peers access has no entries but those of
    /// data beside a write, which are dropped without a queue.
    pub(crate) fn check_bindings(&self) -> Result<(), FiError> {
        let state = lock(&self.state)?;
        let Bindings { transmit, receive, addresses, .. } = &state.bindings;
        if addresses.is_none() {
            return Err(FiError::NO_AV);
        }
        if self.caps.initiates() && transmit.is_none() || self.caps.receives() && receive.is_none() {
            return Err(FiError::NO_CQ);
        }
        Ok(())
    }

    /// Nothing more can be bound, and operations can be posted.
    pub(crate) fn enable(&self) -> Result<(), FiError> {
        lock(&self.state)?.enabled = true;
        Ok(())
    }

    pub(crate) fn is_enabled(&self) -> Result<bool, FiError> {
        Ok(lock(&self.state)?.enabled)
    }
}

impl State {
    /// The binding of an endpoint that is enabled.
    pub(super) fn ready(&self, of: impl FnOnce(&Bindings) -> &Option<Binding>) -> Result<Binding, FiError> {
        if !self.enabled {
            return Err(FiError::BAD_STATE);
        }
        of(&self.bindings).clone().ok_or(FiError::NO_CQ)
    }
}

impl Bindings {
    /// The endpoint cannot work any more, which is an event once.
    pub(super) fn report_end(&mut self, error: FiError) -> Result<(), FiError> {
        let Some(EndpointEvents { queue, fid, context, is_told }) = &mut self.events else { return Ok(()) };
        if std::mem::replace(is_told, true) {
            return Ok(());
        }
        queue.push_failure(Failure { fid: *fid, context: *context, number: 0, error })
    }

    /// Whether anybody counts what peers do with the memory under this key.
    pub(super) fn count_accesses(&self, key: u64) -> bool {
        self.read_by_peers.is_some() || self.written_by_peers.is_some() || self.of_memory.contains_key(&key)
    }

    /// Counts what peers have done with registered memory.
    pub(super) fn count(&self, accessed: &Accessed) -> Result<(), FiError> {
        let Accessed { key, reads, writes, fetches, .. } = *accessed;
        let add = |counter: Option<&Arc<Counter>>, more: u64| match counter {
            Some(counter) if more > 0 => {
                counter.change(|counts| counts.succeeded = counts.succeeded.wrapping_add(more))
            }
            _ => Ok(()),
        };
        add(self.read_by_peers.as_ref(), reads + fetches)?;
        add(self.written_by_peers.as_ref(), writes)?;
        add(self.of_memory.get(&key), writes + fetches)
    }
}

/// An operation has ended: all are counted, and those that are `reported` or have failed get an entry.
pub(super) fn report(
    binding: &Option<Binding>,
    counter: &Option<Arc<Counter>>,
    reported: bool,
    entry: Entry,
) -> Result<(), FiError> {
    if let Some(counter) = counter {
        counter.change(|counts| match entry.problem {
            None => counts.succeeded = counts.succeeded.wrapping_add(1),
            Some(_) => counts.failed = counts.failed.wrapping_add(1),
        })?;
    }
    match binding {
        Some(binding) if reported || entry.problem.is_some() => binding.queue.push(entry),
        _ => Ok(()),
    }
}
