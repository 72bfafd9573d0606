//! Generators of graphs: two data centres, a dumbbell, a parking lot.

use core::fmt;

use weft_cc::{Rate, Span};

use super::{DEFAULT_LINK, FatTreeSpec, LeafSpineSpec, Pairs, SpecError, TopologySpec, write_common};
use crate::topology::{CableSpec, GraphSpec, HostId, Node, SwitchId, SwitchSpec, Topology};

/// Propagation time of the links between data centres, if nothing is said.
const DEFAULT_BORDER_LATENCY: Span = Span::from_ms(1);
const DEFAULT_BORDER_LINKS: u32 = 8;

/// The keys of two data centres of two tiers.
const LEAF_SPINE_KEYS: &str = "hosts, leaves, spines, oversub, bundle, uplink, border-links, border-switches, \
                               core-links, border-link, border-latency, rtt-ratio, link, latency, switch-latency";
/// The keys of two data centres that are fat trees.
const FAT_TREE_KEYS: &str = "k, hosts, oversub, agg-oversub (or with leaves, the keys of leaf-spine), border-links, \
                             border-switches, core-links, border-link, border-latency, rtt-ratio, link, latency, \
                             switch-latency";

/// The fabric inside a data centre.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InnerSpec {
    /// Two tiers.
    LeafSpine(LeafSpineSpec),
    /// Three tiers.
    FatTree(FatTreeSpec),
}

/// Two data centres, joined by border switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TwoDcSpec {
    /// The fabric of each data centre.
    pub inner: InnerSpec,
    /// Number of border switches of each data centre. Number n of the one is joined to number n of the other.
    pub border_switches: u32,
    /// Links between two opposite border switches.
    pub border_links: u32,
    /// Links from each core (or spine) to each border switch of its data centre.
    pub core_links: u32,
    /// Rate of the links between the data centres.
    pub border_link: Rate,
    /// Propagation time of the links between the data centres.
    pub border_latency: Span,
}

/// Hosts on two sides of one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumbbellSpec {
    /// Number of hosts on each side.
    pub hosts: u32,
    /// Rate of the link in the middle.
    pub bottleneck: Rate,
    /// Propagation time of the link in the middle.
    pub delay: Span,
    /// Rate of the hosts' links.
    pub link: Rate,
    /// Propagation time of the hosts' links.
    pub latency: Span,
    /// Latency of each switch.
    pub switch_latency: Span,
}

/// A chain of links; one flow may cross all of them, and others one each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParkingLotSpec {
    /// Number of links in the chain.
    pub hops: u32,
    /// Pairs of hosts for cross traffic over each link of the chain.
    pub cross: u32,
    /// Rate of the links of the chain.
    pub bottleneck: Rate,
    /// Propagation time of the links of the chain.
    pub delay: Span,
    /// Rate of the hosts' links.
    pub link: Rate,
    /// Propagation time of the hosts' links.
    pub latency: Span,
    /// Latency of each switch.
    pub switch_latency: Span,
}

fn switch(index: usize) -> Node {
    Node::Switch(SwitchId(index as u32))
}

fn host(index: usize) -> Node {
    Node::Host(HostId(index as u32))
}

impl InnerSpec {
    fn spec(self) -> TopologySpec {
        match self {
            InnerSpec::LeafSpine(spec) => TopologySpec::LeafSpine(spec),
            InnerSpec::FatTree(spec) => TopologySpec::FatTree(spec),
        }
    }

    /// Rate and propagation time of its links, and latency of its switches.
    fn common(self) -> (Rate, Span, Span) {
        match self {
            InnerSpec::LeafSpine(s) => (s.link, s.latency, s.switch_latency),
            InnerSpec::FatTree(s) => (s.link, s.latency, s.switch_latency),
        }
    }

    fn tiers(self) -> u64 {
        match self {
            InnerSpec::LeafSpine(_) => 2,
            InnerSpec::FatTree(_) => 3,
        }
    }

    /// The propagation time of a border link with which a path between data centres takes `ratio` times as long as
    /// the longest within one.
    fn border_latency(self, ratio: u32) -> Result<Span, SpecError> {
        let (_, latency, switching) = self.common();
        let path = |links: u64, switches: u64| latency.times(links) + switching.times(switches);
        let inner = path(2 * self.tiers(), 2 * self.tiers() - 1);
        // Up to the border switch and down from the other.
        let rest = path(2 * (self.tiers() + 1), 2 * (self.tiers() + 1));
        let whole = inner.times(u64::from(ratio)).as_ps();
        whole.checked_sub(rest.as_ps()).map(Span::from_ps).ok_or_else(|| SpecError::Value {
            key: "rtt-ratio".to_owned(),
            reason: format!("{ratio} is too low: the links besides the border links take longer already"),
        })
    }
}

impl TwoDcSpec {
    pub(super) fn parse(mut pairs: Pairs<'_>) -> Result<TwoDcSpec, SpecError> {
        let border_switches = pairs.count("border-switches")?.unwrap_or(1);
        let border_links = pairs.count("border-links")?.unwrap_or(DEFAULT_BORDER_LINKS);
        let core_links = pairs.count("core-links")?.unwrap_or(1);
        let border_link = pairs.rate("border-link")?;
        let (latency, ratio) = (pairs.span("border-latency")?, pairs.count("rtt-ratio")?);
        pairs.keys = if pairs.has("leaves") { LEAF_SPINE_KEYS } else { FAT_TREE_KEYS };
        let inner = match pairs.has("leaves") {
            true => InnerSpec::LeafSpine(LeafSpineSpec::parse(pairs)?),
            false => InnerSpec::FatTree(FatTreeSpec::parse(pairs)?),
        };
        let border_latency = match (latency, ratio) {
            (Some(_), Some(_)) => {
                let text = "border-latency and rtt-ratio say the same thing: expected one of them";
                return Err(SpecError::Mismatch(text.to_owned()));
            }
            (Some(latency), None) => latency,
            (None, Some(ratio)) => inner.border_latency(ratio)?,
            (None, None) => DEFAULT_BORDER_LATENCY,
        };
        let border_link = border_link.unwrap_or(inner.common().0);
        Ok(TwoDcSpec { inner, border_switches, border_links, core_links, border_link, border_latency })
    }

    pub(super) fn build(&self, name: String) -> Result<Topology, SpecError> {
        let one = self.inner.spec().build()?;
        let top = one.tiers().len() as u8 - 1;
        let (borders, cores) = (u64::from(self.border_switches), u64::from(one.switches_in(top)));
        let more = borders.saturating_mul(
            u64::from(self.border_links) + 2 * cores.saturating_mul(u64::from(self.core_links)),
        );
        if more > 1 << 20 {
            return Err(SpecError::Mismatch("too many links of border switches".to_owned()));
        }
        let mut graph = GraphSpec::default();
        let mut border: Vec<Vec<Node>> = Vec::new();
        for dc in 0..2 {
            let first = graph.switches.len();
            self.add_inner(&one, dc, &mut graph);
            let tops: Vec<Node> = (0..one.switches_in(top))
                .filter_map(|index| one.switch_at(top, index))
                .map(|s| switch(first + s.0 as usize))
                .collect();
            border.push(self.add_borders(dc, &tops, &mut graph));
        }
        for (a, b) in border[0].iter().zip(&border[1]) {
            for _ in 0..self.border_links {
                let cable = CableSpec::new(*a, *b, self.border_link, self.border_latency);
                graph.cables.push(cable.with_classes("border", "border"));
            }
        }
        Ok(Topology::from_graph(name, graph)?)
    }

    /// Adds a data centre to `graph`, as its group number `dc`.
    fn add_inner(&self, one: &Topology, dc: u32, graph: &mut GraphSpec) {
        let inner = one.to_graph();
        let (hosts, switches) = (graph.hosts.len() as u32, graph.switches.len() as u32);
        let moved = |node: Node| match node {
            Node::Host(host) => Node::Host(HostId(hosts + host.0)),
            Node::Switch(switch) => Node::Switch(SwitchId(switches + switch.0)),
        };
        graph.groups.push(format!("dc{dc}"));
        graph.hosts.extend((0..one.hosts()).map(|host| format!("host{}", hosts + host)));
        graph.switches.extend(inner.switches.into_iter().map(|switch| SwitchSpec {
            name: format!("dc{dc}.{}", switch.name),
            group: Some(dc),
            ..switch
        }));
        let cables = inner.cables.into_iter();
        graph.cables.extend(cables.map(|cable| CableSpec { ends: cable.ends.map(moved), ..cable }));
    }

    /// Adds the border switches of a data centre, whose top tier is `tops`, and their links to it.
    fn add_borders(&self, dc: u32, tops: &[Node], graph: &mut GraphSpec) -> Vec<Node> {
        let (rate, latency, switch_latency) = self.inner.common();
        let mut all = Vec::new();
        for index in 0..self.border_switches {
            let border = switch(graph.switches.len());
            let name = format!("dc{dc}.border{index}");
            graph.switches.push(SwitchSpec { name, latency: switch_latency, group: Some(dc) });
            for top in tops {
                for _ in 0..self.core_links {
                    let cable = CableSpec::new(*top, border, rate, latency);
                    graph.cables.push(cable.with_classes("to-border", "from-border"));
                }
            }
            all.push(border);
        }
        all
    }
}

impl fmt::Display for TwoDcSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.inner.spec().to_string();
        let (_, keys) = inner.split_once(':').unwrap_or_default();
        write!(f, "two-dc:{keys}")?;
        for (key, value, default) in [
            ("border-switches", self.border_switches, 1),
            ("border-links", self.border_links, DEFAULT_BORDER_LINKS),
            ("core-links", self.core_links, 1),
        ] {
            if value != default {
                write!(f, ",{key}={value}")?;
            }
        }
        if self.border_link != self.inner.common().0 {
            write!(f, ",border-link={}bps", self.border_link.as_bps())?;
        }
        if self.border_latency != DEFAULT_BORDER_LATENCY {
            write!(f, ",border-latency={}ps", self.border_latency.as_ps())?;
        }
        Ok(())
    }
}

impl DumbbellSpec {
    pub(super) fn parse(mut pairs: Pairs<'_>) -> Result<DumbbellSpec, SpecError> {
        let hosts =
            pairs.count("hosts")?.ok_or(SpecError::Missing("dumbbell needs hosts=N, for each side"))?;
        let link = pairs.rate("link")?.unwrap_or(DEFAULT_LINK);
        let bottleneck = pairs.rate("bottleneck")?.unwrap_or(link);
        let delay = pairs.span("delay")?;
        let (latency, switch_latency) = pairs.times()?;
        pairs.finish()?;
        let delay = delay.unwrap_or(latency);
        Ok(DumbbellSpec { hosts, bottleneck, delay, link, latency, switch_latency })
    }

    pub(super) fn build(&self, name: String) -> Result<Topology, SpecError> {
        let hosts = checked_hosts(u64::from(self.hosts) * 2)?;
        let side =
            |name: &str, group| SwitchSpec { name: name.to_owned(), latency: self.switch_latency, group };
        let mut graph = GraphSpec {
            hosts: names(hosts),
            switches: vec![side("left", Some(0)), side("right", Some(1))],
            groups: vec!["left".to_owned(), "right".to_owned()],
            cables: Vec::new(),
        };
        for index in 0..hosts {
            let end = usize::from(index >= self.hosts as usize);
            graph.cables.push(CableSpec::new(host(index), switch(end), self.link, self.latency));
        }
        let middle = CableSpec::new(switch(0), switch(1), self.bottleneck, self.delay);
        graph.cables.push(middle.with_classes("bottleneck", "bottleneck"));
        Ok(Topology::from_graph(name, graph)?)
    }
}

impl fmt::Display for DumbbellSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dumbbell:hosts={}", self.hosts)?;
        write_middle(f, self.bottleneck, self.link, self.delay, self.latency)?;
        write_common(f, self.link, self.latency, self.switch_latency)
    }
}

impl ParkingLotSpec {
    pub(super) fn parse(mut pairs: Pairs<'_>) -> Result<ParkingLotSpec, SpecError> {
        let hops = pairs.count("hops")?.ok_or(SpecError::Missing("parking-lot needs hops=N"))?;
        let cross = pairs.count("cross")?.unwrap_or(1);
        let link = pairs.rate("link")?.unwrap_or(DEFAULT_LINK);
        let bottleneck = pairs.rate("bottleneck")?.unwrap_or(link);
        let delay = pairs.span("delay")?;
        let (latency, switch_latency) = pairs.times()?;
        pairs.finish()?;
        let delay = delay.unwrap_or(latency);
        Ok(ParkingLotSpec { hops, cross, bottleneck, delay, link, latency, switch_latency })
    }

    pub(super) fn build(&self, name: String) -> Result<Topology, SpecError> {
        let (hops, cross) = (self.hops as usize, self.cross as usize);
        let hosts = checked_hosts(
            (u64::from(self.hops) * u64::from(self.cross)).saturating_mul(2).saturating_add(2),
        )?;
        let chain = (0..=hops).map(|index| SwitchSpec {
            name: format!("s{index}"),
            latency: self.switch_latency,
            group: None,
        });
        let mut graph = GraphSpec { hosts: names(hosts), switches: chain.collect(), ..GraphSpec::default() };
        let mut attach = |index, to| {
            graph.cables.push(CableSpec::new(host(index), switch(to), self.link, self.latency));
        };
        attach(0, 0);
        attach(1, hops);
        for hop in 0..hops {
            for pair in 0..cross {
                let source = 2 + 2 * (hop * cross + pair);
                attach(source, hop);
                attach(source + 1, hop + 1);
            }
        }
        for hop in 0..hops {
            let link = CableSpec::new(switch(hop), switch(hop + 1), self.bottleneck, self.delay);
            graph.cables.push(link.with_classes("bottleneck", "bottleneck"));
        }
        Ok(Topology::from_graph(name, graph)?)
    }
}

impl fmt::Display for ParkingLotSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "parking-lot:hops={}", self.hops)?;
        if self.cross != 1 {
            write!(f, ",cross={}", self.cross)?;
        }
        write_middle(f, self.bottleneck, self.link, self.delay, self.latency)?;
        write_common(f, self.link, self.latency, self.switch_latency)
    }
}

fn names(hosts: usize) -> Vec<String> {
    (0..hosts).map(|host| format!("host{host}")).collect()
}

/// Refuses a number of hosts before anything is allocated for them.
fn checked_hosts(hosts: u64) -> Result<usize, SpecError> {
    match hosts <= crate::topology::MAX_HOSTS {
        true => Ok(hosts as usize),
        false => {
            let most = crate::topology::MAX_HOSTS;
            Err(SpecError::Mismatch(format!("{hosts} hosts; expected at most {most}")))
        }
    }
}

/// Writes the keys of the links between switches, if they differ from those of the hosts' links.
fn write_middle(
    f: &mut fmt::Formatter<'_>,
    bottleneck: Rate,
    link: Rate,
    delay: Span,
    latency: Span,
) -> fmt::Result {
    if bottleneck != link {
        write!(f, ",bottleneck={}bps", bottleneck.as_bps())?;
    }
    if delay != latency {
        write!(f, ",delay={}ps", delay.as_ps())?;
    }
    Ok(())
}
