//! Workloads from a short description instead of a file: [`WorkloadSpec`], and [`GENERATORS`], which describes each.

use core::fmt;
use core::str::FromStr;

use thiserror::Error;
use weft_stack::rng::Rng;
use weft_stack::wire::class::Priority;

use super::background::ConstantBitRate;
use super::collective::{Collective, ITERATION_KEYS, Operation};
use super::draft::{Draft, MAX_FLOWS, Setting};
use super::generate::Once;
use super::incast::Incast;
use super::open_loop::{Arrivals, Bursts, OpenLoop, sigma};
use super::pairs::{Pairs, digits};
use super::{MAX_BACKGROUNDS, Workload, WorkloadError};

/// A setting of a generator.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Its name.
    pub key: &'static str,
    /// Its values, with their unit.
    pub values: &'static str,
    /// Its default; empty if it must be given.
    pub default: &'static str,
    /// What it does.
    pub about: &'static str,
}

const fn parameter(
    key: &'static str,
    values: &'static str,
    default: &'static str,
    about: &'static str,
) -> Parameter {
    Parameter { key, values, default, about }
}

/// A generator of workloads.
#[derive(Clone, Copy, Debug)]
pub struct Generator {
    /// Its name.
    pub name: &'static str,
    /// The form of its descriptions.
    pub form: &'static str,
    /// What it generates.
    pub about: &'static str,
    /// Where it comes from.
    pub source: &'static str,
    /// Its settings.
    pub parameters: &'static [Parameter],
    parse: fn(&mut Pairs<'_>) -> Result<Kind, WorkloadSpecError>,
}

const SIZE: Parameter = parameter("size", "bytes", "that of --size", "bytes of each flow");
const START: Parameter = parameter("start", "time", "0", "when it begins");
const JITTER: Parameter =
    parameter("jitter", "time", "0", "each flow starts later by a random time up to this one");
const LOAD: Parameter = parameter(
    "load",
    "share",
    "",
    "payload that is offered, as a share of the capacity of the links that `of` names",
);
const OF: Parameter = parameter(
    "of",
    "host|core",
    "host",
    "host: the links of all hosts; core: the links between switches that this traffic fills first (not in graphs)",
);
const SIZES: Parameter =
    parameter("sizes", "NAME|FILE|bytes", "that of --size", "the distribution of the sizes of flows");
const DURATION: Parameter = parameter("duration", "time", "", "how long there are arrivals");
const DURATION_OF_ONE: Parameter =
    parameter("duration", "time", "", "how long it sends, if nothing holds it up");
const INTRA: Parameter = parameter(
    "intra",
    "share",
    "destinations uniform over all hosts",
    "the share of flows that stay within the pod of their source, in a fabric of two tiers its leaf, in a graph its group",
);
const CONNECTIONS: Parameter = parameter(
    "connections",
    "N",
    "one for each flow",
    "flows of a pair of hosts are messages on so many connections",
);
const PICK: Parameter = parameter(
    "pick",
    "turn|least-loaded",
    "turn",
    "messages take turns on them, or each takes the one with the fewest bytes outstanding",
);
const PRIORITY: Parameter = parameter(
    "priority",
    "0–7",
    "0",
    "priority of the flows in switches, which send those of a higher number first",
);
const SIGMA: Parameter = parameter(
    "sigma",
    "number",
    "2",
    "standard deviation of the logarithm of the times between arrivals; 0: always the same time",
);

const fn flows(meaning: &'static str) -> Parameter {
    parameter("flows", "N", "", meaning)
}

const ITERATIONS: [Parameter; 4] = [
    parameter("iterations", "N", "1", "how often it is done"),
    parameter("compute", "time", "0", "how long a rank computes between two iterations"),
    parameter("ranks", "N|A-B", "all hosts", "the first N hosts, or those from A to B"),
    parameter("order", "hosts|random", "hosts", "whether ranks are in the order of the hosts"),
];

/// The generators, in the order of help texts.
pub const GENERATORS: &[Generator] = &[
    Generator {
        name: "incast",
        form: "incast:N[,key=value…]",
        about: "N hosts, each with a flow, or several, to the same other host",
        source: "SMaRTT §IV",
        parameters: &[
            SIZE,
            START,
            JITTER,
            parameter("flows", "N", "1", "how many flows each sender has"),
            parameter("from", "host|A-B", "all hosts", "the hosts of which the senders are drawn"),
            parameter("to", "host", "drawn", "the number of the receiver"),
            CONNECTIONS,
            PICK,
            PRIORITY,
        ],
        parse: |pairs| {
            let senders = number(pairs, "incast")?;
            Ok(Kind::Incast(Incast::parse(senders, pairs)?))
        },
    },
    Generator {
        name: "permutation",
        form: "permutation[:key=value…]",
        about: "every host sends to one other and receives from one other",
        source: "SMaRTT §IV",
        parameters: &[SIZE, START, JITTER, PRIORITY],
        parse: |pairs| match pairs.first() {
            Some(_) => Err(WorkloadSpecError::NoNumber),
            None => Ok(Kind::Permutation(Once::parse(pairs)?)),
        },
    },
    Generator {
        name: "all-to-all",
        form: "all-to-all:K[,key=value…]",
        about: "every host sends to each other host, at most K flows at a time",
        source: "SMaRTT §IV-C",
        parameters: &[
            SIZE,
            START,
            JITTER,
            ITERATIONS[0],
            ITERATIONS[1],
            ITERATIONS[2],
            ITERATIONS[3],
            PRIORITY,
        ],
        parse: |pairs| {
            let window = number(pairs, "all-to-all")?;
            if ITERATION_KEYS.iter().any(|key| pairs.has(key)) {
                return Ok(Kind::Collective(Collective::parse(Operation::AllToAll { window }, pairs)?));
            }
            Ok(Kind::AllToAll { window, once: Once::parse(pairs)? })
        },
    },
    Generator {
        name: "all-reduce",
        form: "all-reduce:ring|tree|recursive-doubling[,key=value…]",
        about: "ranks reduce a vector of `size` bytes around a ring, over a binomial tree, or by recursive doubling",
        source: "Thakur et al., IJHPCA 2005; Patarasuk and Yuan, JPDC 2009",
        parameters: &[
            SIZE,
            START,
            JITTER,
            ITERATIONS[0],
            ITERATIONS[1],
            ITERATIONS[2],
            ITERATIONS[3],
            PRIORITY,
        ],
        parse: |pairs| Ok(Kind::Collective(Collective::parse_all_reduce(pairs)?)),
    },
    Generator {
        name: "poisson",
        form: "poisson:load=SHARE,duration=TIME|flows=N[,key=value…]",
        about: "flows between random hosts, with exponentially distributed times between those of a host",
        source: "pFabric, SIGCOMM 2013; SIRD §6.2",
        parameters: &[
            LOAD,
            OF,
            SIZES,
            DURATION,
            flows("how many flows arrive, instead of `duration`"),
            START,
            INTRA,
            CONNECTIONS,
            PICK,
            PRIORITY,
        ],
        parse: |pairs| Ok(Kind::OpenLoop(OpenLoop::parse(Arrivals::Poisson, pairs)?)),
    },
    Generator {
        name: "lognormal",
        form: "lognormal:load=SHARE,duration=TIME|flows=N[,key=value…]",
        about: "as poisson, with lognormally distributed times: bursts and pauses",
        source: "Benson et al., IMC 2010",
        parameters: &[
            LOAD,
            OF,
            SIZES,
            SIGMA,
            DURATION,
            flows("how many flows arrive, instead of `duration`"),
            START,
            INTRA,
            CONNECTIONS,
            PICK,
            PRIORITY,
        ],
        parse: |pairs| {
            let sigma = sigma(pairs)?;
            Ok(Kind::OpenLoop(OpenLoop::parse(Arrivals::Lognormal { sigma }, pairs)?))
        },
    },
    Generator {
        name: "rpc",
        form: "rpc:load=SHARE,duration=TIME|flows=N[,key=value…]",
        about: "requests as with poisson; a response starts when its server has the request",
        source: "Homa, SIGCOMM 2018",
        parameters: &[
            LOAD,
            OF,
            parameter(
                "sizes",
                "NAME|FILE|bytes",
                "that of --size",
                "the distribution of the sizes of requests",
            ),
            parameter(
                "response",
                "NAME|FILE|bytes",
                "64 bytes",
                "the distribution of the sizes of responses",
            ),
            parameter("service", "time", "0", "how long a server computes before it sends a response"),
            parameter("arrivals", "poisson|lognormal", "poisson", "how requests arrive"),
            SIGMA,
            DURATION,
            flows("how many requests arrive, instead of `duration`"),
            START,
            INTRA,
            CONNECTIONS,
            PICK,
            PRIORITY,
        ],
        parse: |pairs| Ok(Kind::OpenLoop(OpenLoop::parse_rpc(pairs)?)),
    },
    Generator {
        name: "bursts",
        form: "bursts:senders=N,load=SHARE|every=TIME,duration=TIME|bursts=N[,key=value…]",
        about: "every now and then N random hosts send to one random host at the same time",
        source: "SIRD §6.2",
        parameters: &[
            parameter("senders", "N", "", "hosts that send in a burst"),
            SIZE,
            parameter(
                "load",
                "share",
                "",
                "payload that is offered, as a share of the capacity of all hosts' links",
            ),
            parameter("every", "time", "", "mean time between bursts, instead of `load`"),
            parameter("arrivals", "periodic|poisson", "periodic", "how bursts arrive"),
            DURATION,
            parameter("bursts", "N", "", "how many bursts there are, instead of `duration`"),
            START,
            JITTER,
            CONNECTIONS,
            PICK,
            PRIORITY,
        ],
        parse: |pairs| Ok(Kind::Bursts(Bursts::parse(pairs)?)),
    },
    Generator {
        name: "cbr",
        form: "cbr:from=HOST,to=HOST,rate=RATE,duration=TIME[,key=value…]",
        about: "background: one flow at a constant rate, without congestion control, over one path",
        source: "as in ns-2",
        parameters: &[
            parameter("from", "host", "", "the number of the host that sends"),
            parameter("to", "host", "", "the number of the host that receives"),
            parameter("rate", "bits/s", "", "payload that leaves, with what is sent again"),
            DURATION_OF_ONE,
            START,
            parameter(
                "path",
                "N",
                "drawn at random",
                "entropy of all its packets, below --paths; with --routing exact the number of its path",
            ),
            PRIORITY,
        ],
        parse: |pairs| Ok(Kind::ConstantBitRate(ConstantBitRate::parse(pairs)?)),
    },
];

/// Takes the number that follows the generator's name.
fn number(pairs: &mut Pairs<'_>, name: &'static str) -> Result<u32, WorkloadSpecError> {
    let value = pairs.first().and_then(digits).and_then(|n| n.parse().ok()).filter(|&n| n > 0);
    value.ok_or(WorkloadSpecError::BadNumber(name))
}

/// A description of a workload, as given on a command line: the name of one of the [`GENERATORS`], a colon, and its
/// settings, of which each may be given once, in any order.
///
/// ```text
/// incast:32
/// poisson:load=0.6,sizes=WebSearch,duration=10ms
/// all-reduce:ring,size=100MB,iterations=10,compute=1ms
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadSpec {
    text: String,
    priority: Priority,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Incast(Incast),
    Permutation(Once),
    AllToAll { window: u32, once: Once },
    Collective(Collective),
    OpenLoop(OpenLoop),
    Bursts(Bursts),
    ConstantBitRate(ConstantBitRate),
}

/// Why a description is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WorkloadSpecError {
    /// The text does not name a generator.
    #[error("`{0}` is not a workload: expected {names}", names = names())]
    Unknown(String),
    /// The number after the colon is missing, zero or not a number.
    #[error("`{0}` needs a number above zero, as in {0}:8")]
    BadNumber(&'static str),
    /// `permutation` is followed by a number.
    #[error("permutation takes no number")]
    NoNumber,
    /// A part is not of the form `key=value`.
    #[error("`{0}` is not of the form key=value")]
    NotAPair(String),
    /// The generator has no such key.
    #[error("{generator} has no key `{key}`; expected one of: {keys}")]
    UnknownKey {
        /// The name of the generator.
        generator: &'static str,
        /// The key that it does not have.
        key: String,
        /// The keys that it has.
        keys: String,
    },
    /// A key occurs twice.
    #[error("`{0}` is given twice")]
    Repeated(String),
    /// A value is wrong.
    #[error("{key}: {reason}")]
    Value {
        /// The key of the value.
        key: &'static str,
        /// What is wrong, and what was expected.
        reason: String,
    },
    /// A distribution of sizes cannot be read.
    #[error("{key}: {reason}")]
    Sizes {
        /// The key that names it.
        key: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A setting is missing.
    #[error("expected {0}")]
    Missing(String),
    /// A setting refers to the fabric, but none is given.
    #[error("`{0}` refers to a fabric; expected one")]
    NeedsTopology(&'static str),
    /// The number of hosts is not given, and the workload does not imply it.
    #[error("{0} needs a number of hosts")]
    NeedsHosts(String),
    /// Too few hosts.
    #[error("{spec} needs at least {needed} hosts, there are {hosts}")]
    TooFewHosts {
        /// The description of the workload.
        spec: String,
        /// Number of hosts that it needs.
        needed: u64,
        /// Number of hosts given.
        hosts: u32,
    },
    /// The workload would have too many flows.
    #[error("about {flows} flows are too many; expected at most {MAX_FLOWS}")]
    TooManyFlows {
        /// About how many flows there would be.
        flows: u64,
    },
    /// There is background traffic of too many rates and paths.
    #[error("background traffic of more than {MAX_BACKGROUNDS} different rates and paths")]
    TooManyBackgrounds,
    /// The flows are not valid.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
}

impl WorkloadSpecError {
    pub(super) fn value(key: &'static str, reason: String) -> WorkloadSpecError {
        WorkloadSpecError::Value { key, reason }
    }
}

fn names() -> String {
    let names: Vec<&str> = GENERATORS.iter().map(|generator| generator.name).collect();
    names.join(", ")
}

impl WorkloadSpec {
    /// The number of hosts that the description implies: N + 1 for an incast, `None` for the others.
    pub fn default_hosts(&self) -> Option<u32> {
        match &self.kind {
            Kind::Incast(incast) => incast.default_hosts(),
            _ => None,
        }
    }

    /// Number of hosts that the description needs.
    pub fn hosts_needed(&self) -> u64 {
        match &self.kind {
            Kind::Incast(incast) => incast.hosts_needed(),
            Kind::Permutation(_) | Kind::AllToAll { .. } | Kind::OpenLoop(_) => 2,
            Kind::Collective(collective) => collective.hosts_needed(),
            Kind::Bursts(bursts) => bursts.hosts_needed(),
            Kind::ConstantBitRate(flow) => flow.hosts_needed(),
        }
    }

    /// Whether the description says nothing of the size of its flows, so that [`Setting::bytes`] counts.
    pub fn has_default_size(&self) -> bool {
        let says = self.text.contains("size=") || self.text.contains("sizes=");
        !says && !matches!(self.kind, Kind::ConstantBitRate(_))
    }

    /// Makes the workload over `hosts` hosts (or [`WorkloadSpec::default_hosts`]) with flows of `bytes` bytes each where
    /// the description does not say it, without a fabric or files. The same state of `rng` gives the same workload.
    pub fn build(
        &self,
        hosts: Option<u32>,
        bytes: u64,
        rng: &mut Rng,
    ) -> Result<Workload, WorkloadSpecError> {
        let hosts = hosts.or(self.default_hosts());
        let hosts = hosts.ok_or_else(|| WorkloadSpecError::NeedsHosts(self.text.clone()))?;
        let read = |name: &str| Err(format!("{name}: no files are read here"));
        let setting = Setting { hosts, topology: None, bytes, slow: 1, read: &read };
        let mut draft = Draft::new(hosts);
        self.add_to(0, &setting, &mut draft, rng)?;
        Ok(draft.finish(vec![self.text.clone()])?)
    }

    /// Lays the workloads of `specs` over one another. Each is drawn by its own generator `rng(i)`, so that none changes
    /// the others.
    ///
    /// # Errors
    /// The index of a description, and why it cannot be followed.
    pub fn build_all(
        specs: &[WorkloadSpec],
        setting: &Setting<'_>,
        rng: impl Fn(usize) -> Rng,
    ) -> Result<Workload, (usize, WorkloadSpecError)> {
        let mut draft = Draft::new(setting.hosts);
        for (i, spec) in specs.iter().enumerate() {
            spec.add_to(i as u32, setting, &mut draft, &mut rng(i)).map_err(|error| (i, error))?;
        }
        let sources = specs.iter().map(|spec| spec.text.clone()).collect();
        draft.finish(sources).map_err(|error| (0, error.into()))
    }

    fn add_to(
        &self,
        source: u32,
        setting: &Setting<'_>,
        draft: &mut Draft,
        rng: &mut Rng,
    ) -> Result<(), WorkloadSpecError> {
        let (hosts, needed) = (setting.hosts, self.hosts_needed());
        if u64::from(hosts) < needed {
            return Err(WorkloadSpecError::TooFewHosts { spec: self.text.clone(), needed, hosts });
        }
        draft.priority = self.priority;
        match &self.kind {
            Kind::Incast(incast) => incast.generate(setting, draft, rng),
            Kind::Permutation(once) => once.permutation(setting, draft, rng),
            Kind::AllToAll { window, once } => once.all_to_all(*window, setting, draft, rng),
            Kind::Collective(collective) => collective.generate(source, setting, draft, rng),
            Kind::OpenLoop(arrivals) => arrivals.generate(source, setting, draft, rng),
            Kind::Bursts(bursts) => bursts.generate(source, setting, draft, rng),
            Kind::ConstantBitRate(flow) => flow.generate(setting, draft),
        }
    }
}

impl FromStr for WorkloadSpec {
    type Err = WorkloadSpecError;

    fn from_str(text: &str) -> Result<WorkloadSpec, WorkloadSpecError> {
        let (name, settings) = match text.split_once(':') {
            Some((name, settings)) => (name, Some(settings)),
            None => (text, None),
        };
        let generator = GENERATORS.iter().find(|generator| generator.name == name);
        let generator = generator.ok_or_else(|| WorkloadSpecError::Unknown(text.to_owned()))?;
        let mut pairs = Pairs::split(generator, settings)?;
        let priority = pairs.priority("priority")?.unwrap_or_default();
        let kind = (generator.parse)(&mut pairs)?;
        pairs.finish()?;
        Ok(WorkloadSpec { text: text.to_owned(), priority, kind })
    }
}

impl fmt::Display for WorkloadSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
