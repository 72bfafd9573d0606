//! The switches of a testbed, run in real time.

use super::attach::{AttachedFabric, HostFacts, HostLink};
use crate::backoff::{Backoff, sleep};
use std::collections::BTreeMap;
use std::fmt::Write;
use weft_cc::{Span, Time};
use weft_stack::port::{Port, PortCounters};
use weft_stack::worker::Clock;
use weft_testbed::link_events::{parse_link_change, write_link, write_link_change};
use weft_testbed::sim::{LinkChange, LinkDirections, RunConfig};
use weft_testbed::soft::{SoftCounters, SoftFabric};
use weft_testbed::topology::{HostId, PortId, Topology};

/// The thread polls for events that are due within this time, because the kernel's sleeps are not more exact.
const BUSY_WAIT: Span = Span::from_us(60);
/// The longest sleep while there is traffic. A host that sends does not wake the switches.
const MAX_SLEEP: Span = Span::from_us(50);
/// The longest sleep after [`IDLE_AFTER`] without traffic.
const MAX_IDLE_SLEEP: Span = Span::from_us(250);
/// The time without traffic after which the testbed counts as idle.
const IDLE_AFTER: Span = Span::from_ms(20);

/// The switches, their clock, and the links that have been changed.
pub(crate) struct Switches {
    fabric: SoftFabric<HostLink>,
    topology: Topology,
    pub(super) hosts: Vec<HostFacts>,
    clock: Clock,
    begun: Time,
    last_news: Time,
    backoff: Backoff,
    /// The changes in effect, by the port that sends over the changed direction of a link.
    changed: BTreeMap<PortId, Vec<LinkChange>>,
}

impl Switches {
    /// The switches of the fabric of `config`; their time begins now.
    pub(crate) fn new(attached: AttachedFabric, config: &RunConfig) -> Switches {
        let AttachedFabric { mut fabric, hosts } = attached;
        let clock = Clock::new();
        let now = clock.now();
        fabric.begin(now);
        let topology = config.topology.clone();
        let (changed, backoff) = (BTreeMap::new(), Backoff::default());
        Switches { fabric, topology, hosts, clock, begun: now, last_news: now, backoff, changed }
    }

    /// Executes the events that are due, and sleeps briefly if there were none.
    pub(crate) fn turn(&mut self) {
        let now = self.clock.now();
        if self.fabric.poll(now) {
            self.last_news = now;
            return;
        }
        let due = match self.fabric.poll_timeout() {
            Some(at) if now.is_at_or_after(at) => Span::ZERO,
            Some(at) => at.since(now),
            None => MAX_IDLE_SLEEP,
        };
        if due <= BUSY_WAIT {
            // The hosts may need this core.
            return self.backoff.give_way();
        }
        let longest = if now.since(self.last_news) < IDLE_AFTER { MAX_SLEEP } else { MAX_IDLE_SLEEP };
        sleep(longest.min(Span::from_ps(due.as_ps() - BUSY_WAIT.as_ps())));
    }

    /// Changes a link. `words` are those of [`weft_testbed::link_events`] without a time.
    ///
    /// # Errors
    /// The words are not understood: the error names them and says what was expected.
    pub(super) fn set_link(&mut self, words: &str) -> Result<(), String> {
        let words = words.trim();
        let (link, change) =
            parse_link_change("set link", words, &self.topology).map_err(|error| error.to_string())?;
        self.fabric.change(link, change).map_err(|error| error.to_string())?;
        let kind = std::mem::discriminant(&change);
        for port in link.ports(&self.topology) {
            let changes = self.changed.entry(port).or_default();
            changes.retain(|other| std::mem::discriminant(other) != kind);
            changes.push(change);
            if change == LinkChange::Restore {
                self.changed.remove(&port);
            }
        }
        Ok(())
    }

    /// Links that have been changed, with their changes. A link with the same changes in both directions has one
    /// line.
    pub(super) fn changed_links(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (port, changes) in &self.changed {
            let reverse = self.topology.port(*port).reverse;
            let both = self.changed.get(&reverse) == Some(changes);
            if both && reverse < *port {
                continue;
            }
            let link = if both { LinkDirections::Both(*port) } else { LinkDirections::From(*port) };
            lines.push(describe(link, changes, &self.topology));
        }
        lines
    }

    /// The counters of the switches.
    pub(crate) fn counters(&self) -> SoftCounters {
        self.fabric.counters()
    }

    /// The counters of the fabric's port to `host`.
    pub(super) fn port_counters(&self, host: u32) -> PortCounters {
        self.fabric.port(HostId(host)).map(Port::counters).unwrap_or_default()
    }

    /// The time since the switches started.
    pub(super) fn uptime(&self) -> Span {
        self.clock.now().since(self.begun)
    }
}

/// The words that name `link`, and its changes.
fn describe(link: LinkDirections, changes: &[LinkChange], topology: &Topology) -> String {
    let mut line = String::new();
    // Writing to a string cannot fail.
    let _ = write_link(link, topology, &mut line);
    for (n, change) in changes.iter().enumerate() {
        line.push_str(if n == 0 { ": " } else { ", " });
        let _ = match change {
            LinkChange::Fail => line.write_str("down"),
            change => write_link_change(change, &mut line),
        };
    }
    line
}
