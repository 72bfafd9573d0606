//! Two endpoints, their sessions, and applications that behave or do not.

mod attention;
mod datagrams;
mod explore;
mod fabric;
mod filled;
mod hostile;
mod joint;
mod killed;
mod leaving;
mod listener;
mod peers;
mod places;
mod processes;
mod rations;
mod resolving;
mod serving;
mod siege;
mod sleeping;
mod threads;
mod transfer;
mod unread;
mod waiting;

use std::sync::Arc;

use weft_cc::Span;

use super::link::Link;
use super::world::{SMALL, World, config, content, extent};
use super::*;
use crate::fep::{CallError, ConnectOptions, Fep, ReceiveError, Resource, SendError, Unreachable};
use crate::packet::Addr;
use crate::region::Region;
use crate::rng::Rng;
use crate::ses::{Matching, Source};

impl World {
    fn open(&mut self, side: usize) -> Client {
        self.sessions[side].open(&mut self.feps[side], &SMALL, None).unwrap()
    }

    /// Steps until `client` has an event.
    fn event(&mut self, client: &mut Client) -> Event {
        for _ in 0..100_000 {
            if let Some(event) = client.poll().unwrap() {
                return event;
            }
            self.step(4);
        }
        panic!("no event: {:?}", self.feps.each_ref().map(|fep| fep.explain(self.now)));
    }
}

impl Sessions {
    /// An application of a process joins, which is not the server's own and which the system may not tell.
    fn join_of(
        &mut self,
        fep: &mut Fep,
        tenant: Option<u32>,
        config: &SessionConfig,
    ) -> Result<Client, OpenError> {
        let region = Region::allocate(config.layout()?.total)?;
        let (own, other) = Link::pair()?;
        let id = self.admit(fep, config, None, &region, own, tenant)?;
        let process = self.process(id).expect("it has just joined");
        Client::new(config, &region, other, None, fep.addr(), process)
    }
}

fn to(client: &Client) -> ConnectOptions {
    ConnectOptions { process: client.process(), ..ConnectOptions::default() }
}
