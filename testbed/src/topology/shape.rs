//! Checks that numbers make a folded Clos, and derives its counts.

use core::fmt;

use thiserror::Error;
use weft_cc::{Rate, Span};

use super::Tier;

/// Maximum number of hosts of a topology.
pub const MAX_HOSTS: u64 = 1 << 20;
/// Maximum number of ports. It bounds the memory that a file can request.
pub(super) const MAX_PORTS: u64 = 1 << 23;

/// Maximum latency of a link or a switch. With it, round trips, timeouts that double a few times, and the
/// times at which they end fit in 64 bits of picoseconds.
pub(super) const MAX_LATENCY: Span = Span::from_ms(1_000_000);

/// The counts that numbering and routing use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) tiers: u8,
    pub(super) pods: u32,
    pub(super) hosts_per_tor: u32,
    pub(super) tors_per_pod: u32,
    pub(super) aggs_per_pod: u32,
    pub(super) tors: u32,
    pub(super) aggs: u32,
    pub(super) cores: u32,
}

/// A keyword of a `.topo` file. Errors use it to name a number of a topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Keyword {
    /// Number of hosts.
    Nodes,
    /// Number of tiers.
    Tiers,
    /// Hosts in a pod.
    Podsize,
    /// Start of a tier's section.
    Tier,
    /// Bandwidth down over bandwidth up.
    Oversubscribed,
    /// Links in parallel to each neighbour below.
    Bundle,
    /// Ports that lead down.
    RadixDown,
    /// Ports that lead up.
    RadixUp,
    /// Queue of a port that leads down, bytes.
    QueueDown,
    /// Queue of a port that leads up, bytes.
    QueueUp,
    /// Rate of the links below.
    DownlinkSpeed,
    /// Propagation time of the links below.
    DownlinkLatency,
    /// Latency of a switch.
    SwitchLatency,
}

impl Keyword {
    /// Every keyword with its spelling. Case is ignored.
    pub(super) const ALL: [(Keyword, &'static str); 13] = [
        (Keyword::Nodes, "Nodes"),
        (Keyword::Tiers, "Tiers"),
        (Keyword::Podsize, "Podsize"),
        (Keyword::Tier, "Tier"),
        (Keyword::Oversubscribed, "Oversubscribed"),
        (Keyword::Bundle, "Bundle"),
        (Keyword::RadixDown, "Radix_Down"),
        (Keyword::RadixUp, "Radix_Up"),
        (Keyword::QueueDown, "Queue_Down"),
        (Keyword::QueueUp, "Queue_Up"),
        (Keyword::DownlinkSpeed, "Downlink_speed_Gbps"),
        (Keyword::DownlinkLatency, "Downlink_Latency_ns"),
        (Keyword::SwitchLatency, "Switch_Latency_ns"),
    ];
}

impl fmt::Display for Keyword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Keyword::ALL.iter().find(|(k, _)| k == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

/// The number that a [`ShapeError`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShapeField {
    /// The tier; `None` for the header.
    pub tier: Option<u8>,
    /// The keyword whose number is wrong.
    pub keyword: Keyword,
}

/// Why numbers do not make a fabric.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{reason}")]
pub struct ShapeError {
    /// The number that is most likely wrong.
    pub field: ShapeField,
    /// Why it is wrong.
    pub reason: String,
}

pub(super) fn wrong<T>(
    tier: impl Into<Option<u8>>,
    keyword: Keyword,
    reason: impl Into<String>,
) -> Result<T, ShapeError> {
    Err(ShapeError { field: ShapeField { tier: tier.into(), keyword }, reason: reason.into() })
}

impl Shape {
    pub(super) fn new(hosts_per_pod: u32, pods: u32, tiers: &[Tier]) -> Result<Shape, ShapeError> {
        if !(2..=3).contains(&tiers.len()) {
            return wrong(None, Keyword::Tiers, format!("{} tiers: there must be 2 or 3", tiers.len()));
        }
        if pods == 0 || (tiers.len() == 2 && pods != 1) {
            let reason = format!("{pods} pods: a fabric of two tiers is one pod");
            return wrong(None, Keyword::Podsize, reason);
        }
        let hosts_per_tor = tiers[0].radix_down;
        if hosts_per_pod == 0 || !hosts_per_pod.is_multiple_of(hosts_per_tor) {
            let reason = format!("{hosts_per_pod} hosts per pod do not fill ToRs of {hosts_per_tor} hosts");
            return wrong(None, Keyword::Podsize, reason);
        }
        let tors_per_pod = hosts_per_pod / hosts_per_tor;
        check_reach(1, tiers, tors_per_pod, "ToRs of its pod")?;
        let aggs_per_pod = tiers[0].radix_up / tiers[1].bundle;
        let mut cores = 0;
        if let Some(core) = tiers.get(2) {
            check_reach(2, tiers, pods, "pods")?;
            cores = u64::from(aggs_per_pod) * u64::from(tiers[1].radix_up / core.bundle);
        }
        let tors = u64::from(tors_per_pod) * u64::from(pods);
        let aggs = u64::from(aggs_per_pod) * u64::from(pods);
        if tors.saturating_add(aggs).saturating_add(cores) > MAX_PORTS {
            return wrong(None, Keyword::Nodes, format!("more than {MAX_PORTS} switches"));
        }
        let (tors, aggs, cores) = (tors as u32, aggs as u32, cores as u32);
        Ok(Shape {
            tiers: tiers.len() as u8,
            pods,
            hosts_per_tor,
            tors_per_pod,
            aggs_per_pod,
            tors,
            aggs,
            cores,
        })
    }

    /// Number of ports of the fabric if all hosts exist.
    pub(super) fn ports(&self, tiers: &[Tier]) -> u64 {
        let radix = |t: usize| tiers.get(t).map_or(0, |x| u64::from(x.radix_down) + u64::from(x.radix_up));
        let hosts = u64::from(self.hosts_per_tor) * u64::from(self.tors);
        hosts
            + [self.tors, self.aggs, self.cores]
                .iter()
                .enumerate()
                .map(|(t, &switches)| u64::from(switches).saturating_mul(radix(t)))
                .fold(0, u64::saturating_add)
    }
}

/// Checks the numbers of one tier against each other and against the tier `above`.
pub(super) fn check_tier(t: u8, tier: &Tier, above: Option<&Tier>) -> Result<(), ShapeError> {
    let Tier { radix_down, radix_up, bundle, .. } = *tier;
    if tier.down_rate == Rate::from_bps(0) {
        return wrong(t, Keyword::DownlinkSpeed, "the link speed must be above zero");
    }
    for (latency, keyword, what) in [
        (tier.down_latency, Keyword::DownlinkLatency, "link"),
        (tier.switch_latency, Keyword::SwitchLatency, "switch"),
    ] {
        if latency > MAX_LATENCY {
            let most = MAX_LATENCY.as_secs_f64();
            return wrong(t, keyword, format!("the latency of a {what} must be at most {most} s"));
        }
    }
    if radix_down == 0 {
        return wrong(t, Keyword::RadixDown, "a switch needs ports that lead down");
    }
    if bundle == 0 || (t == 0 && bundle != 1) {
        let reason =
            format!("a bundle of {bundle} links: hosts have one link, switches one or more to each other");
        return wrong(t, Keyword::Bundle, reason);
    }
    if radix_down % bundle != 0 {
        let reason = format!("{radix_down} ports down do not divide into bundles of {bundle}");
        return wrong(t, Keyword::RadixDown, reason);
    }
    match above {
        None if radix_up != 0 => wrong(t, Keyword::RadixUp, "nothing is above the top tier"),
        Some(_) if radix_up == 0 => {
            wrong(t, Keyword::RadixUp, "a switch below the top tier needs ports that lead up")
        }
        Some(above) if above.bundle != 0 && radix_up % above.bundle != 0 => {
            let reason = format!(
                "{radix_up} ports up do not divide into tier {}'s bundles of {}",
                t + 1,
                above.bundle
            );
            wrong(t, Keyword::RadixUp, reason)
        }
        _ => Ok(()),
    }
}

/// Checks that a switch of tier `t` has exactly the ports to reach its `neighbours` below.
fn check_reach(t: u8, tiers: &[Tier], neighbours: u32, what: &str) -> Result<(), ShapeError> {
    let Tier { radix_down, bundle, .. } = tiers[usize::from(t)];
    if u64::from(radix_down) != u64::from(neighbours) * u64::from(bundle) {
        let reason = format!(
            "{radix_down} ports down, but {neighbours} {what} times a bundle of {bundle} make {}",
            u64::from(neighbours) * u64::from(bundle)
        );
        return wrong(t, Keyword::RadixDown, reason);
    }
    Ok(())
}
