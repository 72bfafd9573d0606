//! Pinning threads to cores.

/// Why a thread was not pinned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    /// The thread may not run on this core, or there is none of that number.
    #[error("core {core} is not among those that this thread may use: {usable:?}")]
    NotUsable {
        /// The core.
        core: usize,
        /// Those that may be used.
        usable: Vec<usize>,
    },
    /// The system refused.
    #[error("the system does not pin this thread to core {core}")]
    Refused {
        /// The core.
        core: usize,
    },
}

/// The cores that the calling thread may use, as the system numbers them.
pub fn usable_cores() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect()
}

/// Keeps the calling thread on `core`, so that a worker's caches stay warm and no other core's timer
/// ticks move it. The thread stays there until it is pinned to another core.
///
/// # Errors
/// The core cannot be used.
pub fn pin_to(core: usize) -> Result<(), PinError> {
    let usable = usable_cores();
    if !usable.contains(&core) {
        return Err(PinError::NotUsable { core, usable });
    }
    if core_affinity::set_for_current(core_affinity::CoreId { id: core }) {
        Ok(())
    } else {
        Err(PinError::Refused { core })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_pinned_to_one_core() {
        // In a thread of its own: where the others run is their own affair.
        std::thread::spawn(|| {
            let cores = usable_cores();
            let last = *cores.last().expect("there is a core to run on");
            pin_to(last).unwrap();
            assert_eq!(usable_cores(), [last]);
            let absent = pin_to(100_000).unwrap_err();
            assert_eq!(absent, PinError::NotUsable { core: 100_000, usable: vec![last] });
        })
        .join()
        .unwrap();
    }
}
