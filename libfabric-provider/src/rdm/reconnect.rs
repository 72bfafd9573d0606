//! Room for connections that the server refuses ([`super::refusals`]). Messages to such a peer wait in its line of the backlog:
//! the first of them tries, and the rest follow when there is a connection.

use std::collections::HashSet;
use std::time::Instant;

use weft::Source;

use super::State;
use super::backlog::Way;
use super::peers::Peers;
use crate::error::FiError;

impl State {
    /// Makes room for connections that were refused, and ends what has waited for too long.
    pub(super) fn reconnect(&mut self) -> Result<(), FiError> {
        let peers = &mut self.peers;
        let (given_up, beside) = (peers.connections.take_given_up(), peers.beside.take_given_up());
        for (peer, why) in given_up {
            self.warn_of(peer, &why);
            for unsent in self.backlog.take_line(peer) {
                let number = self.drop_unsent(unsent);
                self.fail(number, Way::Out, FiError::from(&why))?;
            }
        }
        for (peer, why) in beside {
            self.warn_of(peer, &why);
            self.drop_question(peer);
            self.give_up_requests(peer, FiError::from(&why))?;
            self.give_up_life(peer, FiError::from(&why))?;
        }
        self.forget_unwanted();
        self.make_room();
        Ok(())
    }

    /// Forgets the refusals of peers that nothing is to be sent to any more.
    fn forget_unwanted(&mut self) {
        // Questions are asked again, and need room as well.
        let to_ask = if self.peers.beside.has_refused() { self.peers_to_ask() } else { HashSet::new() };
        let State { peers: Peers { connections, beside, .. }, backlog, carrier, stand_ins, .. } = self;
        connections.keep_refusals(|peer| backlog.has_sends_to(peer));
        beside.keep_refusals(|peer| {
            let carries = carrier.as_ref().is_some_and(|carrier| carrier.waits_for(peer));
            carries || to_ask.contains(&peer) || stand_ins.owes_answer_to(peer) || stand_ins.awaits(peer)
        });
    }

    /// Whether connections were refused.
    pub(super) fn is_refused_some(&self) -> bool {
        let Peers { connections, beside, .. } = &self.peers;
        connections.has_refused() || beside.has_refused()
    }

    /// Whether something that waits for a connection is to fail.
    pub(super) fn has_given_up(&self) -> bool {
        self.peers.connections.has_given_up() || self.peers.beside.has_given_up()
    }

    /// Closes connections on which nothing is under way, one for each that was refused.
    fn make_room(&mut self) {
        let Some(endpoint) = &mut self.endpoint else { return };
        let now = Instant::now();
        let [mut main, mut beside] = [&mut self.peers.connections, &mut self.peers.beside];
        for _ in 0..2 {
            for _ in 0..main.wants_room(now) {
                let spares = [main.spare(main), beside.spare(main)];
                let age = |spare: Option<(Source, u64)>| spare.map(|(_, age)| age);
                let closed = match spares {
                    [Some((peer, _)), other] if age(other) <= age(spares[0]) => {
                        main.give_away(endpoint, peer)
                    }
                    [_, Some((peer, _))] => beside.give_away(endpoint, peer),
                    _ => None,
                };
                let Some(id) = closed else { break };
                main.await_room(id);
            }
            std::mem::swap(&mut main, &mut beside);
        }
    }

    fn warn_of(&self, peer: Source, why: &weft::Error) {
        let name = match (&self.endpoint, &self.peers.names) {
            (Some(endpoint), Some(names)) => names.of(endpoint, peer),
            _ => None,
        };
        let name = name.map_or_else(|| format!("process {}", peer.process), |name| name.to_string());
        crate::log::warn(&format!(
            "{name}: no connection after {} s: {why}; all that there may be are in use",
            super::refusals::PATIENCE.as_secs()
        ));
    }
}
