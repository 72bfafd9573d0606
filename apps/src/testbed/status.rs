//! The report of `weft testbed status`.

use super::attach::HostFacts;
use super::switch::Switches;
use crate::choices::HostsBy;
use crate::resolve::Plan;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::PathBuf;
use weft_cc::Span;
use weft_testbed::soft;

/// The state of a running testbed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Status {
    name: String,
    pid: u32,
    fabric: String,
    /// The factor by which the fabric is slower than described.
    slow: u32,
    hosts_by: HostsBy,
    uptime_s: f64,
    frames: Frames,
    late: Late,
    /// Links that have been changed, with their changes.
    links: Vec<String>,
    hosts: Vec<HostStatus>,
    /// Options of `weft perf` and `weft serve` that describe the network to an endpoint.
    end_options: String,
}

/// Counts of frames since the switches started.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Frames {
    sent: u64,
    received: u64,
    trimmed: u64,
    marked: u64,
    dropped: u64,
    lost: u64,
    corrupted: u64,
    refused: u64,
    starved: u64,
}

/// The delay between the due time of an event and its execution.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Late {
    mean_us: f64,
    max_us: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct HostStatus {
    #[serde(flatten)]
    facts: HostFacts,
    /// Frames from the host to the fabric, and from the fabric to the host.
    sent: u64,
    received: u64,
}

impl Status {
    pub(super) fn of(switches: &Switches, plan: &Plan, name: &str, hosts_by: HostsBy) -> Status {
        let counters = switches.counters();
        let host = |facts: &HostFacts| {
            let port = switches.port_counters(facts.host);
            HostStatus { facts: facts.clone(), sent: port.rx_frames, received: port.tx_frames }
        };
        Status {
            name: name.to_owned(),
            pid: std::process::id(),
            fabric: plan.config.topology.name().to_owned(),
            slow: plan.slow,
            hosts_by,
            uptime_s: switches.uptime().as_us_f64() / 1e6,
            frames: Frames {
                sent: counters.entered,
                received: counters.delivered,
                trimmed: counters.trimmed,
                marked: counters.marked,
                dropped: counters.dropped,
                lost: counters.lost,
                corrupted: counters.corrupted,
                refused: counters.refused,
                starved: counters.starved,
            },
            late: Late {
                mean_us: counters.lateness.as_us_f64() / counters.events.max(1) as f64,
                max_us: counters.latest.as_us_f64(),
            },
            links: switches.changed_links(),
            hosts: switches.hosts.iter().map(host).collect(),
            end_options: end_options(plan),
        }
    }

    /// The process number of the switches.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Where the server of each host listens, if it has one.
    pub(super) fn servers(self) -> Vec<Option<PathBuf>> {
        self.hosts.into_iter().map(|host| host.facts.serve).collect()
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "testbed {} (process {}): {}, {} times slower, hosts by {}, up for {:.0} s\n",
            self.name,
            self.pid,
            self.fabric,
            self.slow,
            self.hosts_by.word(),
            self.uptime_s
        );
        let f = &self.frames;
        let _ = writeln!(
            text,
            "  frames    {} sent, {} received; {} trimmed, {} marked, {} dropped, {} lost, {} corrupted, {} refused, {} starved",
            f.sent, f.received, f.trimmed, f.marked, f.dropped, f.lost, f.corrupted, f.refused, f.starved
        );
        let _ = writeln!(
            text,
            "  lateness  {:.0} µs on average, {:.0} µs at most",
            self.late.mean_us, self.late.max_us
        );
        let _ = match self.links.as_slice() {
            [] => writeln!(text, "  links     all as described"),
            links => writeln!(text, "  links     {}", links.join("\n            ")),
        };
        let _ = writeln!(text, "  endpoints {}", self.end_options);
        for host in &self.hosts {
            let facts = &host.facts;
            let _ = writeln!(
                text,
                "  host {:<4} {}\n            {}others call it {}; {} sent, {} received",
                facts.host,
                facts.port_options(),
                facts.namespace.as_ref().map(|name| format!("in namespace {name}; ")).unwrap_or_default(),
                facts.called,
                host.sent,
                host.received
            );
            if let Some(socket) = &facts.serve {
                let _ = writeln!(text, "            programs join at {}", socket.display());
            }
        }
        text + &self.example()
    }

    /// Commands for a server at one host and a client at another.
    fn example(&self) -> String {
        let [server, .., client] = self.hosts.as_slice() else { return String::new() };
        let (server, client) = (&server.facts, &client.facts);
        format!(
            "For example:\n  {}weft perf server {} {}\n  {}weft perf client {} {} {}\n",
            server.prefix(),
            server.port_options(),
            self.end_options,
            client.prefix(),
            server.called,
            client.port_options(),
            self.end_options
        )
    }
}

/// Options that describe the network of `plan` to an endpoint.
pub(super) fn end_options(plan: &Plan) -> String {
    let config = &plan.config;
    let us = |span: Span| span.as_ps().div_ceil(1_000_000);
    format!(
        "--payload {} --trim {} --link {}bps --rtt {}us --rto {}us",
        config.mtu,
        if config.trim { "on" } else { "off" },
        config.topology.host_rate().as_bps(),
        us(config.network_rtt()),
        us(soft::endpoint(config, []).zones.longest_rto())
    )
}
