//! The balancers by name, and the choice of one of them.

use super::{Bitmap, Ecmp, Mixed, Oblivious, PathSelector, Reps, RoundRobin, Selector};
use crate::rng::Rng;
use core::fmt;
use std::sync::Arc;

/// One balancer that can be chosen by name.
#[derive(Clone, Copy, Debug)]
pub struct LbInfo {
    /// What it is chosen by.
    pub name: &'static str,
    /// What it does, in one line.
    pub about: &'static str,
    /// Where it comes from.
    pub source: &'static str,
    build: fn(u16, bool, Rng) -> Selector,
}

/// Every built-in balancer.
pub const BALANCERS: &[LbInfo] = &[
    LbInfo {
        name: "ecmp",
        about: "one random entropy for the whole connection",
        source: "RFC 2992",
        build: |paths, _, rng| Selector::Ecmp(Ecmp::new(paths, rng)),
    },
    LbInfo {
        name: "oblivious",
        about: "every entropy once a round, shuffled anew each round",
        source: "uet-htsim",
        build: |paths, _, rng| Selector::Oblivious(Oblivious::new(paths, rng)),
    },
    LbInfo {
        name: "round-robin",
        about: "the entropies in ascending order",
        source: "classic",
        build: |paths, _, rng| Selector::RoundRobin(RoundRobin::new(paths, rng)),
    },
    LbInfo {
        name: "reps",
        about: "recycles the entropies of unmarked acknowledgements, ring of 8, freezes on timeout",
        source: "arXiv 2407.21625, uet-htsim",
        build: |paths, trimming, rng| Selector::Reps(Reps::new(paths, trimming, rng)),
    },
    LbInfo {
        name: "bitmap",
        about: "every entropy once a round, those with a penalty (ECN, NACK, timeout) left out",
        source: "uet-htsim",
        build: |paths, _, rng| Selector::Bitmap(Bitmap::new(paths, rng)),
    },
    LbInfo {
        name: "mixed",
        about: "recycles the entropies of unmarked acknowledgements, else as bitmap",
        source: "uet-htsim",
        build: |paths, _, rng| Selector::Mixed(Mixed::new(paths, rng)),
    },
];

/// Makes a user's own selector from the number of paths, whether switches trim, and a generator.
type CustomBuild = dyn Fn(u16, bool, Rng) -> Box<dyn PathSelector + Send> + Send + Sync;

/// Which balancer a connection uses.
#[derive(Clone)]
pub struct LbChoice(Kind);

#[derive(Clone)]
enum Kind {
    BuiltIn(&'static LbInfo),
    Custom { name: Arc<str>, build: Arc<CustomBuild> },
}

/// There is no balancer of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no load balancer is called '{name}'; there are {}", known_names())]
pub struct UnknownLb {
    /// The name asked for.
    pub name: String,
}

impl LbChoice {
    /// The built-in balancer called `name`.
    ///
    /// # Errors
    /// [`UnknownLb`] when there is none; its text lists the names.
    pub fn parse(name: &str) -> Result<LbChoice, UnknownLb> {
        let found = BALANCERS.iter().find(|info| info.name == name);
        found.map(|info| LbChoice(Kind::BuiltIn(info))).ok_or_else(|| UnknownLb { name: name.to_owned() })
    }

    /// A user's own balancer: `build` makes a selector for each congestion context from the number
    /// of paths, whether switches trim, and a generator of its own.
    pub fn custom<F>(name: &str, build: F) -> LbChoice
    where
        F: Fn(u16, bool, Rng) -> Box<dyn PathSelector + Send> + Send + Sync + 'static,
    {
        LbChoice(Kind::Custom { name: name.into(), build: Arc::new(build) })
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        match &self.0 {
            Kind::BuiltIn(info) => info.name,
            Kind::Custom { name, .. } => name,
        }
    }

    /// A selector for one congestion context, over `paths` entropies (0 counts as 1).
    /// `trimming`: whether switches trim packets rather than drop them.
    pub fn build(&self, paths: u16, trimming: bool, rng: Rng) -> Selector {
        let paths = paths.max(1);
        match &self.0 {
            Kind::BuiltIn(info) => (info.build)(paths, trimming, rng),
            Kind::Custom { build, .. } => Selector::Custom(build(paths, trimming, rng)),
        }
    }
}

impl Default for LbChoice {
    /// `mixed`.
    fn default() -> LbChoice {
        LbChoice::parse("mixed").expect("mixed is in the table")
    }
}

impl fmt::Debug for LbChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LbChoice({})", self.name())
    }
}

fn known_names() -> String {
    BALANCERS.iter().map(|info| info.name).collect::<Vec<_>>().join(", ")
}
