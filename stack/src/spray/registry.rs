//! Load balancers by name: the table of all that there are, and the choice of one of them.
//!
//! A new balancer needs a file of its own, an arm in [`Selector`], and a row here.

use super::{Bitmap, Ecmp, Mixed, Oblivious, PathSelector, Reps, RoundRobin, Selector};
use crate::rng::Rng;
use core::fmt;
use std::sync::Arc;
use weft_cc::table::{Builder, Part, Row, UnknownName, find, without_settings};

/// The input from which a balancer is built.
#[derive(Clone, Debug)]
pub struct SelectorInput {
    /// Number of entropies, at least 1.
    pub paths: u16,
    /// Whether switches trim packets that they have no room for; otherwise they drop them.
    pub trimming: bool,
    /// A generator for this balancer alone.
    pub rng: Rng,
}

/// Every built-in balancer.
pub static BALANCERS: &[Row<Part<SelectorInput, Selector>>] = &[
    Row {
        name: "ecmp",
        about: "one random entropy for the whole connection",
        source: "RFC 2992",
        part: || without_settings(|on: SelectorInput| Selector::Ecmp(Ecmp::new(on.paths, on.rng))),
    },
    Row {
        name: "oblivious",
        about: "every entropy once a round, shuffled anew each round",
        source: "uet-htsim",
        part: || without_settings(|on: SelectorInput| Selector::Oblivious(Oblivious::new(on.paths, on.rng))),
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
        name: "reps",
        about: "recycles the entropies of unmarked acknowledgements, ring of 8, freezes on timeout",
        source: "arXiv 2407.21625, uet-htsim",
        part: || {
            without_settings(|on: SelectorInput| Selector::Reps(Reps::new(on.paths, on.trimming, on.rng)))
        },
    },
    Row {
        name: "bitmap",
        about: "every entropy once a round, those with a penalty (ECN, NACK, timeout) left out",
        source: "uet-htsim",
        part: || without_settings(|on: SelectorInput| Selector::Bitmap(Bitmap::new(on.paths, on.rng))),
    },
    Row {
        name: "mixed",
        about: "recycles the entropies of unmarked acknowledgements, else as bitmap",
        source: "uet-htsim",
        part: || without_settings(|on: SelectorInput| Selector::Mixed(Mixed::new(on.paths, on.rng))),
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

    /// A user's own balancer: `build` makes a selector for each congestion context from the number
    /// of paths, whether switches trim, and a generator of its own.
    pub fn custom<F>(name: &str, build: F) -> LbChoice
    where
        F: Fn(u16, bool, Rng) -> Box<dyn PathSelector + Send> + Send + Sync + 'static,
    {
        let build = move |on: SelectorInput| Selector::Custom(build(on.paths, on.trimming, on.rng));
        LbChoice { name: name.into(), builder: without_settings(build) }
    }

    /// The name by which users choose this load balancer.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A selector for one congestion context, over `paths` entropies (0 counts as 1).
    /// `trimming`: whether switches trim packets rather than drop them.
    pub fn build(&self, paths: u16, trimming: bool, rng: Rng) -> Selector {
        self.builder.build(SelectorInput { paths: paths.max(1), trimming, rng })
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
