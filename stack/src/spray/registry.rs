//! Load balancers by name: the table of all that there are, and the choice of one of them.
//!
//! A new balancer needs a file of its own, an arm in [`Selector`], and a row here.

use super::bitmap::BitmapConfig;
use super::ecmp::EcmpConfig;
use super::plb::PlbConfig;
use super::reps::RepsConfig;
use super::{Bitmap, Ecmp, Mixed, Oblivious, PathSelector, Plb, Random, Reps, RoundRobin, Selector};
use crate::rng::Rng;
use core::fmt;
use std::sync::Arc;
use weft_cc::table::{Builder, Part, Row, SetError, UnknownName, configured, find, without_settings};
use weft_cc::{SettingInfo, Span};

/// The input from which a balancer is built.
#[derive(Clone, Debug)]
pub struct SelectorInput {
    /// Number of entropies, at least 1.
    pub paths: u16,
    /// Whether switches trim packets that they have no room for; otherwise they drop them.
    pub trimming: bool,
    /// The base RTT of the congestion context as it begins: that of the idle network.
    pub base_rtt: Span,
    /// A generator for this balancer alone.
    pub rng: Rng,
}

/// Every built-in balancer.
pub static BALANCERS: &[Row<Part<SelectorInput, Selector>>] = &[
    Row {
        name: "ecmp",
        about: "one entropy for the whole connection, at random or given",
        source: "RFC 2992",
        part: || {
            configured(|config: &EcmpConfig, on: SelectorInput| {
                Selector::Ecmp(Ecmp::new(config, on.paths, on.rng))
            })
        },
    },
    Row {
        name: "oblivious",
        about: "every entropy once a round, shuffled anew each round",
        source: "uet-htsim",
        part: || without_settings(|on: SelectorInput| Selector::Oblivious(Oblivious::new(on.paths, on.rng))),
    },
    Row {
        name: "random",
        about: "an entropy for each packet, drawn with replacement",
        source: "RPS, INFOCOM 2013",
        part: || without_settings(|on: SelectorInput| Selector::Random(Random::new(on.paths, on.rng))),
    },
    Row {
        name: "round-robin",
        about: "the entropies in ascending order",
        source: "classic",
        part: || {
            without_settings(|on: SelectorInput| Selector::RoundRobin(RoundRobin::new(on.paths, on.rng)))
        },
    },
    Row {
        name: "plb",
        about: "one entropy, drawn anew when its path stays congested or a timer expires",
        source: "PLB, SIGCOMM 2022; Linux",
        part: || {
            configured(|config: &PlbConfig, on: SelectorInput| {
                Selector::Plb(Box::new(Plb::new(config, on.paths, on.base_rtt, on.rng)))
            })
        },
    },
    Row {
        name: "reps",
        about: "recycles the entropies of unmarked acknowledgements, freezes on timeout",
        source: "arXiv 2407.21625, uet-htsim",
        part: || {
            configured(|config: &RepsConfig, on: SelectorInput| {
                Selector::Reps(Reps::new(config, on.paths, on.trimming, on.rng))
            })
        },
    },
    Row {
        name: "bitmap",
        about: "every entropy once a round, those with a penalty (ECN, NACK, timeout) left out",
        source: "uet-htsim",
        part: || {
            configured(|config: &BitmapConfig, on: SelectorInput| {
                Selector::Bitmap(Bitmap::new(config, on.paths, on.rng))
            })
        },
    },
    Row {
        name: "mixed",
        about: "recycles the entropies of unmarked acknowledgements, else as bitmap",
        source: "uet-htsim",
        part: || {
            configured(|config: &BitmapConfig, on: SelectorInput| {
                Selector::Mixed(Mixed::new(config, on.paths, on.rng))
            })
        },
    },
];

/// The balancer that a connection uses.
#[derive(Clone)]
pub struct LbChoice {
    name: Arc<str>,
    builder: Arc<dyn Builder<SelectorInput, Selector>>,
}

impl LbChoice {
    /// The built-in balancer called `name`.
    ///
    /// # Errors
    /// [`UnknownName`] when there is none; its text lists the names.
    pub fn parse(name: &str) -> Result<LbChoice, UnknownName> {
        let row = find(BALANCERS, "load balancer", name)?;
        Ok(LbChoice { name: row.name.into(), builder: (row.part)() })
    }

    /// `ecmp` with this entropy, or with one that each context draws.
    pub fn one_path(entropy: Option<u16>) -> LbChoice {
        let config = EcmpConfig { entropy: entropy.map(u32::from) };
        let build = move |on: SelectorInput| Selector::Ecmp(Ecmp::new(&config, on.paths, on.rng));
        LbChoice { name: "ecmp".into(), builder: without_settings(build) }
    }

    /// A user's own balancer: `build` makes a selector for each congestion context.
    pub fn custom<F>(name: &str, build: F) -> LbChoice
    where
        F: Fn(SelectorInput) -> Box<dyn PathSelector + Send> + Send + Sync + 'static,
    {
        let build = move |on: SelectorInput| Selector::Custom(build(on));
        LbChoice { name: name.into(), builder: without_settings(build) }
    }

    /// Changes one setting from text.
    ///
    /// # Errors
    /// [`SetError`] when there is no such setting, or when it does not take this value.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), SetError> {
        let changed = self.builder.with(key, value);
        let changed = changed.map_err(|why| SetError::new(why, &self.name, key, value, &self.settings()));
        changed.map(|builder| self.builder = builder)
    }

    /// The settings with their defaults.
    pub fn settings(&self) -> Vec<SettingInfo> {
        self.builder.settings()
    }

    /// The name by which users choose this load balancer.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A selector for one congestion context. No paths count as one.
    pub fn build(&self, input: SelectorInput) -> Selector {
        self.builder.build(SelectorInput { paths: input.paths.max(1), ..input })
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
