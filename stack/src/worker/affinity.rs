//! Pinning threads to cores.

/// Why a thread was not pinned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    /// The thread may not run on this core, or the core does not exist.
    #[error("core {core} is not among those that this thread may use: {usable:?}")]
    NotUsable {
        /// Number of the requested core.
        core: usize,
        /// The cores that may be used.
        usable: Vec<usize>,
    },
    /// The system refused.
    #[error("the system does not pin this thread to core {core}")]
    Refused {
        /// Number of the requested core.
        core: usize,
    },
}

/// Errors in a list of cores.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoreListError {
    /// An entry is not a core or a range of cores.
    #[error("{0:?} is neither a core nor a range of cores, as in 2,4-7")]
    Form(String),
    /// A core appears twice: two workers on one core would wait for each other.
    #[error("core {0} is named twice")]
    Twice(usize),
}

/// The largest number of a core in a list, more than any machine has.
const MAX_CORE: usize = 65_535;

/// Parses a list of cores such as `2,4-7`; returns the cores in its order.
///
/// # Errors
/// The list is malformed, or a core appears twice.
pub fn parse_cores(list: &str) -> Result<Vec<usize>, CoreListError> {
    let mut cores = Vec::new();
    for part in list.split(',') {
        let form = || CoreListError::Form(part.to_string());
        let number = |text: &str| {
            let number = text.trim().parse().ok();
            number.filter(|core| *core <= MAX_CORE).ok_or_else(form)
        };
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if last < first {
            return Err(form());
        }
        for core in first..=last {
            if cores.contains(&core) {
                return Err(CoreListError::Twice(core));
            }
            cores.push(core);
        }
    }
    Ok(cores)
}

/// The cores that the calling thread may use, by the system's numbers.
pub fn usable_cores() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect()
}

/// Pins the calling thread to `core`, so that a worker's caches stay warm. The thread stays there until it is pinned
/// to another core.
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
    fn lists_of_cores_are_parsed() {
        assert_eq!(parse_cores("3"), Ok(vec![3]));
        assert_eq!(parse_cores("8, 2-4,0"), Ok(vec![8, 2, 3, 4, 0]));
        for bad in ["", "1,", "a", "3-2", "-1", "1-", "0-100000"] {
            assert!(matches!(parse_cores(bad), Err(CoreListError::Form(_))), "{bad}");
        }
        assert_eq!(parse_cores("1-3,2"), Err(CoreListError::Twice(2)));
    }

    #[test]
    fn a_thread_is_pinned_to_one_core() {
        // In a thread of its own, so that the test's own thread is not pinned.
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
