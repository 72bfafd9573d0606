//! The addresses of an address vector.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::error::{FiError, lock};
use crate::rdm::Rdm;
use crate::sys::fi_addr_t;

/// The most addresses of one vector.
pub(crate) const MOST: usize = 1 << 20;

/// Addresses by `fi_addr_t`: in a table the lowest number that is free, as fi_av(3) has it. A map gives none again before it has to,
/// so that nobody takes the peer of a stale number for another one.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    is_map: bool,
    all: Mutex<All>,
    /// Grows with every change.
    version: AtomicU64,
    /// Grows with every address that is in no entry any more.
    removals: AtomicU64,
    /// Endpoints that have to know new hosts at once.
    waiting: Mutex<Vec<Weak<Rdm>>>,
}

#[derive(Debug, Default)]
struct All {
    by_number: Vec<Option<SocketAddr>>,
    /// The numbers of addresses that were removed.
    free: BTreeSet<fi_addr_t>,
    /// The numbers of an address, the lowest first.
    numbers: BTreeMap<SocketAddr, Vec<fi_addr_t>>,
}

impl Addresses {
    /// An empty address vector of type FI_AV_MAP if `is_map`, else FI_AV_TABLE.
    pub(crate) fn new(is_map: bool) -> Addresses {
        Addresses { is_map, ..Addresses::default() }
    }

    /// # Errors
    /// There is no room.
    pub(crate) fn insert(&self, addr: SocketAddr) -> Result<fi_addr_t, FiError> {
        let mut all = lock(&self.all)?;
        let is_full = all.by_number.len() >= MOST;
        let free = if self.is_map && !is_full { None } else { all.free.pop_first() };
        let number = match free {
            Some(number) => number,
            None if is_full => return Err(FiError::NO_MEMORY),
            None => {
                all.by_number.push(None);
                all.by_number.len() as fi_addr_t - 1
            }
        };
        all.by_number[number as usize] = Some(addr);
        let numbers = all.numbers.entry(addr).or_default();
        let at = numbers.partition_point(|other| *other < number);
        numbers.insert(at, number);
        self.version.fetch_add(1, Ordering::Release);
        Ok(number)
    }

    /// Lets `endpoint` know hosts as soon as they are inserted. Others get to know them when they work next, which is too late for
    /// datagrams that come at once: nobody sends them again.
    pub(crate) fn introduce_to(&self, endpoint: &Arc<Rdm>) -> Result<(), FiError> {
        let mut waiting = lock(&self.waiting)?;
        waiting.retain(|endpoint| endpoint.strong_count() > 0);
        waiting.push(Arc::downgrade(endpoint));
        Ok(())
    }

    /// Addresses have been inserted.
    pub(crate) fn introduce(&self) -> Result<(), FiError> {
        let waiting: Vec<Arc<Rdm>> = lock(&self.waiting)?.iter().filter_map(Weak::upgrade).collect();
        // One that cannot be reached is an error of those who send to it.
        waiting.iter().for_each(|endpoint| _ = endpoint.meet());
        Ok(())
    }

    /// # Errors
    /// There is no such address.
    pub(crate) fn remove(&self, number: fi_addr_t) -> Result<(), FiError> {
        let mut all = lock(&self.all)?;
        let entry = usize::try_from(number).ok().and_then(|n| all.by_number.get_mut(n));
        let addr = entry.and_then(Option::take).ok_or(FiError::INVALID)?;
        all.free.insert(number);
        if let Some(numbers) = all.numbers.get_mut(&addr) {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                all.numbers.remove(&addr);
                self.removals.fetch_add(1, Ordering::Release);
            }
        }
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    pub(crate) fn get(&self, number: fi_addr_t) -> Result<Option<SocketAddr>, FiError> {
        let all = lock(&self.all)?;
        Ok(usize::try_from(number).ok().and_then(|n| all.by_number.get(n).copied().flatten()))
    }

    /// The number of an address, the first if it was inserted more than once.
    pub(crate) fn find(&self, addr: &SocketAddr) -> Result<Option<fi_addr_t>, FiError> {
        Ok(lock(&self.all)?.numbers.get(addr).and_then(|numbers| numbers.first().copied()))
    }

    /// The IP addresses of all.
    pub(crate) fn hosts(&self) -> Result<BTreeSet<Ipv4Addr>, FiError> {
        let all = lock(&self.all)?;
        let v4 = |addr: &SocketAddr| if let IpAddr::V4(ip) = addr.ip() { Some(ip) } else { None };
        Ok(all.numbers.keys().filter_map(v4).collect())
    }

    /// A number that is another one after an address was removed for good.
    pub(crate) fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
    }

    /// A number that is another one after each change.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_number_for_each_insertion_and_is_found_by_the_first() {
        let (all, at) = (Addresses::default(), |port| SocketAddr::from(([127, 0, 0, 1], port)));
        let numbers: Vec<_> = [1, 2, 1].map(|port| all.insert(at(port)).unwrap()).to_vec();
        assert_eq!(numbers, [0, 1, 2]);
        assert_eq!((all.find(&at(1)), all.find(&at(3))), (Ok(Some(0)), Ok(None)));
        let version = all.version();
        all.remove(0).unwrap();
        assert_ne!(all.version(), version);
        assert_eq!((all.find(&at(1)), all.get(0), all.get(2)), (Ok(Some(2)), Ok(None), Ok(Some(at(1)))));
        assert_eq!(all.hosts().unwrap().len(), 1);
        assert_eq!((all.remove(0), all.remove(9)), (Err(FiError::INVALID), Err(FiError::INVALID)));
        all.remove(2).unwrap();
        assert_eq!(all.find(&at(1)), Ok(None));
        // The lowest that is free, and then those that follow.
        assert_eq!([1, 4, 5].map(|port| all.insert(at(port))), [0, 2, 3].map(Ok));
        assert_eq!((all.get(0), all.find(&at(1))), (Ok(Some(at(1))), Ok(Some(0))));
        // An address is found by its lowest number, whichever came first.
        assert_eq!((all.insert(at(2)), all.remove(0), all.insert(at(2))), (Ok(4), Ok(()), Ok(0)));
        assert_eq!(all.find(&at(2)), Ok(Some(0)));
    }

    #[test]
    fn insertions_go_on_as_long_as_others_are_removed() {
        let at = SocketAddr::from(([127, 0, 0, 1], 1));
        let (table, map) = (Addresses::new(false), Addresses::new(true));
        for n in 0..MOST + 10 {
            assert_eq!(table.insert(at), Ok(0));
            table.remove(0).unwrap();
            let number = map.insert(at).unwrap();
            assert!(n >= MOST || number == n as fi_addr_t, "a map does not use {number} again yet");
            map.remove(number).unwrap();
        }
    }
}
