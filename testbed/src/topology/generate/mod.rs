//! Fabrics from a short description instead of a file. [`TopologySpec`] documents the grammar.

mod graphs;

pub use graphs::{DumbbellSpec, InnerSpec, ParkingLotSpec, TwoDcSpec};

use core::fmt;
use core::str::FromStr;

use thiserror::Error;
use weft_cc::{Rate, Span};

use super::{GraphError, ShapeError, Tier, Topology};
use weft_cc::units::{parse_rate, parse_span};

const DEFAULT_LINK: Rate = Rate::from_gbps(100);
const DEFAULT_LATENCY: Span = Span::from_us(1);

/// Why a description is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpecError {
    /// The text does not start with the name of a generator.
    #[error(
        "`{0}` is not a topology generator: expected leaf-spine, fat-tree, two-dc, dumbbell or parking-lot"
    )]
    UnknownGenerator(String),
    /// A part is not of the form `key=value`.
    #[error("`{0}` is not of the form key=value")]
    NotAPair(String),
    /// The generator has no such key.
    #[error("{generator} has no key `{key}`: it has {keys}")]
    UnknownKey {
        /// The name of the generator.
        generator: &'static str,
        /// The key that it does not have.
        key: String,
        /// The keys that it has.
        keys: &'static str,
    },
    /// A key occurs twice.
    #[error("`{0}` is given twice")]
    Repeated(String),
    /// A value cannot be read.
    #[error("{key}: {reason}")]
    Value {
        /// The key of the value.
        key: String,
        /// Why it cannot be read.
        reason: String,
    },
    /// A key is missing.
    #[error("{0}")]
    Missing(&'static str),
    /// The numbers contradict each other.
    #[error("{0}")]
    Mismatch(String),
    /// The numbers do not make a fabric.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The hosts, switches and links do not make a graph.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// A two-tier fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafSpineSpec {
    /// Number of hosts, a multiple of the number of leaves.
    pub hosts: u32,
    /// Number of leaves.
    pub leaves: u32,
    /// Number of spines.
    pub spines: u32,
    /// Links from each leaf to each spine.
    pub bundle: u32,
    /// Rate of the hosts' links.
    pub link: Rate,
    /// Rate of the links between leaves and spines.
    pub uplink: Rate,
    /// Propagation time of each link.
    pub latency: Span,
    /// Latency of each switch.
    pub switch_latency: Span,
}

/// A three-tier fat tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatTreeSpec {
    /// Ports of a switch (before oversubscription), an even number.
    pub k: u32,
    /// Number of hosts, at most k³/4.
    pub hosts: u32,
    /// Oversubscription of the ToRs.
    pub oversub: u32,
    /// Oversubscription of the aggregation switches.
    pub agg_oversub: u32,
    /// Rate of every link.
    pub link: Rate,
    /// Propagation time of each link.
    pub latency: Span,
    /// Latency of each switch.
    pub switch_latency: Span,
}

/// A description of a fabric, as given on a command line.
///
/// ```text
/// leaf-spine:hosts=H,leaves=L[,spines=S][,oversub=R][,bundle=B][,uplink=RATE][common]
/// fat-tree:k=K | hosts=H[,oversub=R][,agg-oversub=R][common]
/// two-dc:<leaf-spine's or fat-tree's keys>[,border-links=N][,border-switches=B][,core-links=N][,border-link=RATE]
///        [,border-latency=TIME | ,rtt-ratio=R]
/// dumbbell:hosts=N[,bottleneck=RATE][,delay=TIME][common]
/// parking-lot:hops=N[,cross=C][,bottleneck=RATE][,delay=TIME][common]
/// common: ,link=RATE  ,latency=TIME  ,switch-latency=TIME
/// ```
///
/// Each key may be given once, in any order.
///
/// - A leaf-spine fabric has H / L hosts on each of L leaves and joins each leaf to each spine by B links
///   (default 1). S and R determine each other; without both, R is 1.
/// - A fat tree is the three-tier tree of switches with K ports: K pods of K/2 ToRs with K/2 hosts each. With
///   `hosts` instead of `k`, K is the smallest even number whose tree holds H hosts; with both, only H hosts
///   of that tree exist. `oversub` divides the number of each ToR's uplinks (K/2) by R, and `agg-oversub`
///   does so for the aggregation switches; both must divide K/2.
/// - `link` (default 100G) is the rate of all links, or of the hosts' links only if `uplink` is given.
///   `latency` (default 1us) is the propagation time of each link, and `switch-latency` (default 0) the
///   latency of each switch.
/// - Two data centres are two equal fabrics, leaf-spine if `leaves` is given and else fat trees, whose hosts, `hosts` in
///   each, are numbered one after the other. Each has B border switches (default 1), joined to each of its cores (or
///   spines) by `core-links` links (default 1) like all others of the fabric, and to its counterpart in the other data
///   centre by `border-links` links (default 8) of the rate `border-link` (default `link`) and the propagation time
///   `border-latency` (default 1ms). With `rtt-ratio=R` that time is such that propagation and switching between
///   hosts of different data centres take R times as long as on the longest path within one. Each data centre is a
///   group. Switches are called `dc0.tor0`, `dc1.core3`, `dc0.border0` and so on.
/// - A dumbbell has N hosts at the switch `left`, hosts 0 to N − 1, and N at the switch `right`, each side a group. One
///   link of the rate `bottleneck` (default `link`) and the propagation time `delay` (default `latency`) joins them.
/// - A parking lot is a chain of N + 1 switches, `s0` to `sN`, joined by links like a dumbbell's. Host 0 is at one end
///   and host 1 at the other. For each link of the chain, in order, there are C pairs of hosts (default 1) for cross
///   traffic: the first of a pair before the link, the second behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologySpec {
    /// `leaf-spine:…`
    LeafSpine(LeafSpineSpec),
    /// `fat-tree:…`
    FatTree(FatTreeSpec),
    /// `two-dc:…`
    TwoDc(TwoDcSpec),
    /// `dumbbell:…`
    Dumbbell(DumbbellSpec),
    /// `parking-lot:…`
    ParkingLot(ParkingLotSpec),
}

impl TopologySpec {
    /// Name and grammar of each generator, for help texts.
    pub const GRAMMAR: &'static [(&'static str, &'static str)] = &[
        (
            "leaf-spine",
            "leaf-spine:hosts=H,leaves=L[,spines=S][,oversub=R][,bundle=B][,uplink=RATE]\
             [,link=RATE][,latency=TIME][,switch-latency=TIME]",
        ),
        (
            "fat-tree",
            "fat-tree:k=K|hosts=H[,oversub=R][,agg-oversub=R][,link=RATE][,latency=TIME][,switch-latency=TIME]",
        ),
        (
            "two-dc",
            "two-dc:k=K|hosts=H[,oversub=R][,agg-oversub=R] or hosts=H,leaves=L[,spines=S][,oversub=R][,bundle=B]\
             [,uplink=RATE], then [,border-links=N][,border-switches=B][,core-links=N][,border-link=RATE]\
             [,border-latency=TIME|rtt-ratio=R][,link=RATE][,latency=TIME][,switch-latency=TIME]",
        ),
        (
            "dumbbell",
            "dumbbell:hosts=N[,bottleneck=RATE][,delay=TIME][,link=RATE][,latency=TIME][,switch-latency=TIME]",
        ),
        (
            "parking-lot",
            "parking-lot:hops=N[,cross=C][,bottleneck=RATE][,delay=TIME][,link=RATE][,latency=TIME]\
             [,switch-latency=TIME]",
        ),
    ];

    /// Whether `text` starts like a description, as opposed to a file name.
    pub fn looks_like_one(text: &str) -> bool {
        TopologySpec::GRAMMAR
            .iter()
            .any(|(name, _)| text.strip_prefix(name).is_some_and(|r| r.starts_with(':')))
    }

    /// Builds the fabric and names it by the description in full.
    pub fn build(&self) -> Result<Topology, SpecError> {
        match self {
            TopologySpec::LeafSpine(spec) => spec.build(self.to_string()),
            TopologySpec::FatTree(spec) => spec.build(self.to_string()),
            TopologySpec::TwoDc(spec) => spec.build(self.to_string()),
            TopologySpec::Dumbbell(spec) => spec.build(self.to_string()),
            TopologySpec::ParkingLot(spec) => spec.build(self.to_string()),
        }
    }
}

impl LeafSpineSpec {
    fn build(&self, name: String) -> Result<Topology, SpecError> {
        if self.leaves == 0 || !self.hosts.is_multiple_of(self.leaves) {
            return Err(SpecError::Mismatch(format!(
                "{} hosts cannot be spread evenly over {} leaves",
                self.hosts, self.leaves
            )));
        }
        let too_many = || SpecError::Mismatch("too many links".to_owned());
        let leaf = Tier {
            down_rate: self.link,
            radix_down: self.hosts / self.leaves,
            radix_up: self.spines.checked_mul(self.bundle).ok_or_else(too_many)?,
            ..plain_tier(self.latency, self.switch_latency)
        };
        let spine = Tier {
            down_rate: self.uplink,
            radix_down: self.leaves.checked_mul(self.bundle).ok_or_else(too_many)?,
            bundle: self.bundle,
            ..plain_tier(self.latency, self.switch_latency)
        };
        Ok(Topology::from_tiers(name, self.hosts, self.hosts, 1, vec![leaf, spine])?)
    }

    fn parse(mut pairs: Pairs) -> Result<LeafSpineSpec, SpecError> {
        let hosts = pairs.count("hosts")?.ok_or(SpecError::Missing("leaf-spine needs hosts=H"))?;
        let leaves = pairs.count("leaves")?.ok_or(SpecError::Missing("leaf-spine needs leaves=L"))?;
        let bundle = pairs.count("bundle")?.unwrap_or(1);
        let link = pairs.rate("link")?.unwrap_or(DEFAULT_LINK);
        let uplink = pairs.rate("uplink")?.unwrap_or(link);
        let (spines, oversub) = (pairs.count("spines")?, pairs.count("oversub")?);
        let (latency, switch_latency) = pairs.times()?;
        pairs.finish()?;
        if hosts % leaves != 0 {
            return Err(SpecError::Mismatch(format!(
                "{hosts} hosts cannot be spread evenly over {leaves} leaves"
            )));
        }
        let down = u128::from(hosts / leaves) * u128::from(link.as_bps());
        let per_spine = u128::from(bundle) * u128::from(uplink.as_bps());
        let spines = match (spines, oversub) {
            (Some(spines), None) => spines,
            (spines, oversub) => {
                let ratio = oversub.unwrap_or(1);
                let up = per_spine * u128::from(ratio);
                let fit = u32::try_from(down / up).ok().filter(|_| down % up == 0);
                match (fit, spines) {
                    (Some(n), None) => n,
                    (Some(n), Some(given)) if n == given => n,
                    (_, Some(given)) => {
                        return Err(SpecError::Mismatch(format!(
                            "{given} spines do not make an oversubscription of {ratio}:1"
                        )));
                    }
                    (None, None) => {
                        return Err(SpecError::Mismatch(format!(
                            "no number of spines makes an oversubscription of {ratio}:1 with {} hosts a leaf",
                            hosts / leaves
                        )));
                    }
                }
            }
        };
        Ok(LeafSpineSpec { hosts, leaves, spines, bundle, link, uplink, latency, switch_latency })
    }
}

impl FatTreeSpec {
    /// The smallest non-blocking tree for `hosts` hosts.
    fn smallest(hosts: u32, link: Rate) -> FatTreeSpec {
        // k³/4 ≥ 2³² from k = 2582 on; the shape's own limit refuses such a tree.
        let fits = |k: &u32| u64::from(*k).pow(3) / 4 >= u64::from(hosts);
        let k = (2..=2582).step_by(2).find(fits).unwrap_or(2582);
        FatTreeSpec {
            k,
            hosts,
            oversub: 1,
            agg_oversub: 1,
            link,
            latency: DEFAULT_LATENCY,
            switch_latency: Span::ZERO,
        }
    }

    /// Checks that the numbers do not contradict each other.
    fn check(&self) -> Result<(), SpecError> {
        let half = self.k / 2;
        if !self.k.is_multiple_of(2) || half == 0 {
            return Err(SpecError::Mismatch(format!(
                "k={}: a fat tree needs an even k of at least 2",
                self.k
            )));
        }
        for (key, ratio) in [("oversub", self.oversub), ("agg-oversub", self.agg_oversub)] {
            if ratio == 0 || !half.is_multiple_of(ratio) {
                return Err(SpecError::Mismatch(format!(
                    "{key}={ratio} does not divide the {half} uplinks of k={}",
                    self.k
                )));
            }
        }
        Ok(())
    }

    fn build(&self, name: String) -> Result<Topology, SpecError> {
        self.check()?;
        let half = self.k / 2;
        let Some(hosts_per_pod) = half.checked_mul(half) else {
            return Err(SpecError::Mismatch(format!("k={} is too large", self.k)));
        };
        let tier = |radix_down, radix_up| Tier {
            down_rate: self.link,
            radix_down,
            radix_up,
            ..plain_tier(self.latency, self.switch_latency)
        };
        let tiers =
            vec![tier(half, half / self.oversub), tier(half, half / self.agg_oversub), tier(self.k, 0)];
        Ok(Topology::from_tiers(name, self.hosts, hosts_per_pod, self.k, tiers)?)
    }

    fn parse(mut pairs: Pairs) -> Result<FatTreeSpec, SpecError> {
        let (k, hosts) = (pairs.count("k")?, pairs.count("hosts")?);
        let smallest = |hosts| FatTreeSpec::smallest(hosts, DEFAULT_LINK);
        let (k, hosts) = match (k, hosts) {
            (None, None) => return Err(SpecError::Missing("fat-tree needs k=K or hosts=H")),
            (None, Some(hosts)) => (smallest(hosts).k, hosts),
            (Some(k), hosts) => {
                let room = u64::from(k).saturating_pow(3) / 4;
                (k, hosts.unwrap_or(u32::try_from(room).unwrap_or(u32::MAX)))
            }
        };
        let oversub = pairs.count("oversub")?.unwrap_or(1);
        let agg_oversub = pairs.count("agg-oversub")?.unwrap_or(1);
        let link = pairs.rate("link")?.unwrap_or(DEFAULT_LINK);
        let (latency, switch_latency) = pairs.times()?;
        pairs.finish()?;
        let spec = FatTreeSpec { k, hosts, oversub, agg_oversub, link, latency, switch_latency };
        spec.check().map(|()| spec)
    }
}

impl Topology {
    /// The default fabric of a run: the smallest non-blocking three-tier fat tree that holds `hosts` hosts,
    /// with link latency 1 µs and switch latency 0.
    pub fn default_for(hosts: u32, link: Rate) -> Result<Topology, SpecError> {
        TopologySpec::FatTree(FatTreeSpec::smallest(hosts, link)).build()
    }
}

fn plain_tier(down_latency: Span, switch_latency: Span) -> Tier {
    Tier {
        down_rate: DEFAULT_LINK,
        down_latency,
        switch_latency,
        radix_down: 0,
        radix_up: 0,
        bundle: 1,
        queue_down: None,
        queue_up: None,
    }
}

impl FromStr for TopologySpec {
    type Err = SpecError;

    /// Parses a description. The result can be built unless it exceeds the size limits.
    fn from_str(text: &str) -> Result<TopologySpec, SpecError> {
        let (generator, rest) = text.split_once(':').unwrap_or((text, ""));
        let spec = match generator {
            "leaf-spine" => {
                let keys = "hosts, leaves, spines, oversub, bundle, link, uplink, latency, switch-latency";
                TopologySpec::LeafSpine(LeafSpineSpec::parse(Pairs::split("leaf-spine", keys, rest)?)?)
            }
            "fat-tree" => {
                let keys = "k, hosts, oversub, agg-oversub, link, latency, switch-latency";
                TopologySpec::FatTree(FatTreeSpec::parse(Pairs::split("fat-tree", keys, rest)?)?)
            }
            "two-dc" => TopologySpec::TwoDc(TwoDcSpec::parse(Pairs::split("two-dc", "", rest)?)?),
            "dumbbell" => {
                let keys = "hosts, bottleneck, delay, link, latency, switch-latency";
                TopologySpec::Dumbbell(DumbbellSpec::parse(Pairs::split("dumbbell", keys, rest)?)?)
            }
            "parking-lot" => {
                let keys = "hops, cross, bottleneck, delay, link, latency, switch-latency";
                TopologySpec::ParkingLot(ParkingLotSpec::parse(Pairs::split("parking-lot", keys, rest)?)?)
            }
            other => return Err(SpecError::UnknownGenerator(other.to_owned())),
        };
        Ok(spec)
    }
}

impl fmt::Display for TopologySpec {
    /// Writes the description; keys at their defaults are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (link, latency, switch_latency) = match self {
            TopologySpec::LeafSpine(s) => {
                write!(f, "leaf-spine:hosts={},leaves={},spines={}", s.hosts, s.leaves, s.spines)?;
                if s.bundle != 1 {
                    write!(f, ",bundle={}", s.bundle)?;
                }
                if s.uplink != s.link {
                    write!(f, ",uplink={}bps", s.uplink.as_bps())?;
                }
                (s.link, s.latency, s.switch_latency)
            }
            TopologySpec::FatTree(s) => {
                write!(f, "fat-tree:k={},hosts={}", s.k, s.hosts)?;
                for (key, ratio) in [("oversub", s.oversub), ("agg-oversub", s.agg_oversub)] {
                    if ratio != 1 {
                        write!(f, ",{key}={ratio}")?;
                    }
                }
                (s.link, s.latency, s.switch_latency)
            }
            TopologySpec::TwoDc(spec) => return spec.fmt(f),
            TopologySpec::Dumbbell(spec) => return spec.fmt(f),
            TopologySpec::ParkingLot(spec) => return spec.fmt(f),
        };
        write_common(f, link, latency, switch_latency)
    }
}

/// Writes the keys that all generators have.
fn write_common(f: &mut fmt::Formatter<'_>, link: Rate, latency: Span, switch_latency: Span) -> fmt::Result {
    if link != DEFAULT_LINK {
        write!(f, ",link={}bps", link.as_bps())?;
    }
    if latency != DEFAULT_LATENCY {
        write!(f, ",latency={}ps", latency.as_ps())?;
    }
    if switch_latency != Span::ZERO {
        write!(f, ",switch-latency={}ps", switch_latency.as_ps())?;
    }
    Ok(())
}

/// The `key=value` parts of a description that have not been taken yet.
struct Pairs<'a> {
    generator: &'static str,
    keys: &'static str,
    left: Vec<(&'a str, &'a str)>,
}

impl<'a> Pairs<'a> {
    fn split(generator: &'static str, keys: &'static str, text: &'a str) -> Result<Pairs<'a>, SpecError> {
        let mut left: Vec<(&str, &str)> = Vec::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (key, value) = part.split_once('=').ok_or_else(|| SpecError::NotAPair(part.to_owned()))?;
            if left.iter().any(|(k, _)| *k == key) {
                return Err(SpecError::Repeated(key.to_owned()));
            }
            left.push((key, value));
        }
        Ok(Pairs { generator, keys, left })
    }

    /// Whether `key` is given and has not been taken.
    fn has(&self, key: &str) -> bool {
        self.left.iter().any(|(k, _)| *k == key)
    }

    fn take(&mut self, key: &str) -> Option<&'a str> {
        let at = self.left.iter().position(|(k, _)| *k == key)?;
        Some(self.left.remove(at).1)
    }

    /// Takes a number above zero.
    fn count(&mut self, key: &str) -> Result<Option<u32>, SpecError> {
        self.take(key)
            .map(|text| {
                text.parse().ok().filter(|&n| n > 0).ok_or_else(|| SpecError::Value {
                    key: key.to_owned(),
                    reason: format!("`{text}` is not a number above zero"),
                })
            })
            .transpose()
    }

    fn rate(&mut self, key: &str) -> Result<Option<Rate>, SpecError> {
        let bad =
            |e: weft_cc::units::UnitError| SpecError::Value { key: key.to_owned(), reason: e.to_string() };
        self.take(key).map(|text| parse_rate(text).map_err(bad)).transpose()
    }

    fn span(&mut self, key: &str) -> Result<Option<Span>, SpecError> {
        let bad =
            |e: weft_cc::units::UnitError| SpecError::Value { key: key.to_owned(), reason: e.to_string() };
        self.take(key).map(|text| parse_span(text).map_err(bad)).transpose()
    }

    /// Takes the latencies of links and switches.
    fn times(&mut self) -> Result<(Span, Span), SpecError> {
        let latency = self.span("latency")?.unwrap_or(DEFAULT_LATENCY);
        Ok((latency, self.span("switch-latency")?.unwrap_or(Span::ZERO)))
    }

    fn finish(self) -> Result<(), SpecError> {
        match self.left.first() {
            None => Ok(()),
            Some((key, _)) => Err(SpecError::UnknownKey {
                generator: self.generator,
                key: (*key).to_owned(),
                keys: self.keys,
            }),
        }
    }
}
