//! The peers of an endpoint: their numbers in its address vector, and the connections to them.

use std::collections::HashMap;

use weft::Source;

use super::State;
use super::connections::Connections;
use crate::addresses::Addresses;
use crate::error::FiError;
use crate::place::Names;
use crate::sys::{FI_ADDR_NOTAVAIL, fi_addr_t};

/// What is known of the peers.
#[derive(Debug, Default)]
pub(super) struct Peers {
    /// The endpoint's own name, and what is known of others; none after the endpoint was closed.
    pub(super) names: Option<Names>,
    /// The version of the address vector that the following is about.
    version: u64,
    by_number: HashMap<fi_addr_t, Source>,
    /// The numbers of peers. Those that have none are looked up each time: strangers are as many as they like.
    numbers: HashMap<Source, fi_addr_t>,
    pub(super) connections: Connections,
    /// Those of requests, answers, questions and other notes, which are none of the application's messages and do not wait behind them.
    pub(super) beside: Connections,
    /// Those of accesses, where workers do them. These do not wait behind messages, and notes not behind long accesses.
    pub(super) accesses: Connections,
}

impl Peers {
    /// Forgets what the address vector says otherwise now.
    fn refresh(&mut self, addresses: &Addresses) {
        let version = addresses.version();
        if self.version != version {
            self.version = version;
            self.by_number.clear();
            self.numbers.clear();
        }
    }
}

impl State {
    /// The peer with this number.
    pub(super) fn peer(&mut self, number: fi_addr_t) -> Result<Source, FiError> {
        let addresses = self.bindings.addresses.as_ref().ok_or(FiError::NO_AV)?;
        let endpoint = self.endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        self.peers.refresh(addresses);
        if let Some(peer) = self.peers.by_number.get(&number) {
            return Ok(*peer);
        }
        let name = addresses.get(number)?.ok_or(FiError::INVALID)?;
        let names = self.peers.names.as_mut().ok_or(FiError::BAD_STATE)?;
        let peer = names.peer(endpoint, name)?;
        self.peers.by_number.insert(number, peer);
        Ok(peer)
    }

    /// Lets packets of the peers in the address vector in, if there are new ones, and forgets what was sent to those that have left it,
    /// unless they may keep much of it.
    pub(super) fn meet(&mut self) -> Result<(), FiError> {
        let State { endpoint: Some(endpoint), bindings, peers, eager, .. } = self else { return Ok(()) };
        let (Some(names), Some(addresses)) = (&mut peers.names, &bindings.addresses) else { return Ok(()) };
        if names.meet(endpoint, addresses)? {
            let number = |peer| names.of(endpoint, peer).and_then(|name| addresses.find(&name).ok()?);
            let awaited = eager.keep(|peer| number(peer).is_some());
            awaited.into_iter().for_each(|peer| self.wake_caller(peer));
        }
        Ok(())
    }

    /// The number of a sender.
    pub(super) fn number_of(&mut self, source: Source) -> Result<fi_addr_t, FiError> {
        let addresses = self.bindings.addresses.as_ref().ok_or(FiError::NO_AV)?;
        self.peers.refresh(addresses);
        if let Some(number) = self.peers.numbers.get(&source) {
            return Ok(*number);
        }
        // Its host may be one that was inserted just now.
        self.meet()?;
        let State { endpoint: Some(endpoint), bindings, peers, .. } = self else {
            return Err(FiError::BAD_STATE);
        };
        let (Some(names), Some(addresses)) = (&peers.names, &bindings.addresses) else {
            return Err(FiError::BAD_STATE);
        };
        let name = names.of(endpoint, source);
        let number = name.map_or(Ok(None), |name| addresses.find(&name))?;
        if let Some(number) = number {
            self.peers.numbers.insert(source, number);
        }
        Ok(number.unwrap_or(FI_ADDR_NOTAVAIL))
    }
}
