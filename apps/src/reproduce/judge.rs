//! What a source says beside what is measured.

use super::runs::Finished;
use super::suite::{Claim, Figure, Measure, Pick, plain};
use crate::stats;
use crate::sweep::mean_text;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Whether a claim holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Holds,
    Fails,
    /// It does not hold, for a reason that is known.
    Deviates,
    /// It is of the whole size, and these runs are quick.
    NotJudged,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::Fails => "FAILS",
            Verdict::Deviates => "deviates",
            Verdict::NotJudged => "not judged",
        }
    }
}

/// A claim with what is measured.
#[derive(Debug)]
pub(super) struct Judgement<'a> {
    pub(super) figure: &'a str,
    claim: &'a Claim,
    /// The mean over the seeds, and half of its 95 % confidence interval, or why there is none.
    measured: Result<Mean, String>,
    /// The reason for which it is known not to hold in runs of this size.
    deviates: Option<&'a str>,
    pub(super) verdict: Verdict,
}

/// The judgements on the claims of `figure`, from its runs among `finished`.
pub(super) fn judge<'a>(figure: &'a Figure, finished: &[Finished], quick: bool) -> Vec<Judgement<'a>> {
    let runs: Vec<&Finished> = finished.iter().filter(|run| run.figure == figure.id).collect();
    let judgement = |claim: &'a Claim| {
        let measured = measure(claim, &runs);
        let holds = measured.as_ref().is_ok_and(|&(value, _)| {
            claim.at_least.is_none_or(|least| value >= least)
                && claim.at_most.is_none_or(|most| value <= most)
        });
        let deviates = claim.deviates.as_deref().filter(|_| claim.deviates_with.includes(quick));
        let verdict = match (holds, quick && claim.slow, deviates) {
            (_, true, _) => Verdict::NotJudged,
            (true, ..) => Verdict::Holds,
            (false, _, Some(_)) => Verdict::Deviates,
            (false, _, None) => Verdict::Fails,
        };
        Judgement { figure: &figure.id, claim, measured, deviates, verdict }
    };
    // Most experiments are left out of the quick form, which does not say so of each.
    let is_left_out = |claim: &&Claim| quick && claim.slow && !figure.experiments.is_empty();
    figure.claim.iter().filter(|claim| !is_left_out(claim)).map(judgement).collect()
}

/// The value of a claim: the mean over the seeds, and half of its confidence interval.
///
/// # Errors
/// Nothing is measured, and why.
fn measure(claim: &Claim, runs: &[&Finished]) -> Result<Mean, String> {
    let mut measured = value(&claim.measure, runs)?;
    if let Some(less) = &claim.less {
        measured = measured.with(&value(less, runs)?, |a, b| Some(a - b))?;
    }
    if let Some(over) = &claim.over {
        measured = measured.with(&value(over, runs)?, |a, b| (b > 0.0).then(|| a / b))?;
    }
    Ok(measured.mean)
}

type Mean = (f64, Option<f64>);

/// The values of one point by their seeds, and their mean with its interval.
struct Values {
    by_seed: BTreeMap<String, f64>,
    mean: Mean,
}

impl Values {
    fn of(by_seed: BTreeMap<String, f64>) -> Option<Values> {
        let values: Vec<f64> = by_seed.values().copied().collect();
        stats::confidence(&values).map(|mean| Values { by_seed, mean })
    }

    /// `join` of these values and `others`, seed by seed, so that the interval knows of the spread of both. If the seeds
    /// are not the same there are no pairs, and the means are joined, without an interval.
    fn with(self, others: &Values, join: impl Fn(f64, f64) -> Option<f64>) -> Result<Values, String> {
        let joined = if self.by_seed.keys().eq(others.by_seed.keys()) {
            let pairs = self.by_seed.into_iter().zip(others.by_seed.values());
            let all: Option<_> = pairs.map(|((seed, a), b)| Some((seed, join(a, *b)?))).collect();
            all.and_then(Values::of)
        } else {
            let mean = join(self.mean.0, others.mean.0);
            mean.map(|mean| Values { by_seed: BTreeMap::new(), mean: (mean, None) })
        };
        joined.ok_or_else(|| "the divisor is zero".to_owned())
    }
}

/// Columns, or the beginnings of their names, that mean the same in a run that ends before its flows do: those that count
/// flows, and those of the time that has passed.
const OF_ANY_RUN: [&str; 8] =
    ["unfinished", "flows_", "packets_", "drop_share", "rtt_us_", "queues_", "utilisation_max", "shares_"];

/// Whether flows that have not finished leave the column as it is.
fn is_of_any_run(column: &str) -> bool {
    OF_ANY_RUN.iter().any(|beginning| column.starts_with(beginning))
}

/// The values of the runs that the measure is of; of those of several points, the one that it picks by its mean.
///
/// # Errors
/// There is no such run or no such column, several points differ and none is picked, or a run did not finish, so that its
/// results are of a part of its flows.
fn value(measure: &Measure, runs: &[&Finished]) -> Result<Values, String> {
    let is_meant = |run: &&&Finished| {
        measure.of.iter().all(|(option, value)| {
            let values =
                value.as_array().map_or_else(|| vec![plain(value)], |list| list.iter().map(plain).collect());
            run.point.get(option).is_some_and(|given| values.contains(given))
        })
    };
    let mut by_point: BTreeMap<BTreeMap<&str, &str>, BTreeMap<String, f64>> = BTreeMap::new();
    for run in runs.iter().filter(is_meant) {
        if !is_of_any_run(&measure.column) {
            run.is_whole()?;
        }
        let value = run.columns.get(&measure.column);
        let value = *value.ok_or_else(|| format!("no column {} with {}", measure.column, run.options()))?;
        let options = run.point.iter().filter(|(option, _)| *option != "seed");
        let point = options.map(|(option, value)| (option.as_str(), value.as_str())).collect();
        let seed = run.point.get("seed").cloned().unwrap_or_default();
        by_point.entry(point).or_default().insert(seed, value);
    }
    let points = by_point.len();
    let values = by_point.into_values().filter_map(Values::of);
    let by_mean = |a: &Values, b: &Values| a.mean.0.total_cmp(&b.mean.0);
    let picked = match (measure.pick, points) {
        (Some(Pick::Greatest), _) => values.max_by(by_mean),
        (Some(Pick::Least), _) | (None, 0..=1) => values.min_by(by_mean),
        (None, _) => {
            return Err(format!("{points} runs differ in more than their seeds, and none is picked"));
        }
    };
    picked.ok_or_else(|| "there is no such run".to_owned())
}

impl Judgement<'_> {
    /// The cells of its row: figure, claim, paper, measured, expected, verdict.
    pub(super) fn cells(&self) -> Vec<String> {
        let paper = self.claim.paper.map_or_else(|| "–".to_owned(), |value| value.to_string());
        vec![
            self.figure.to_owned(),
            self.claim.says.clone(),
            paper,
            mean_text(self.measured.as_ref().ok().copied()),
            self.expected(),
            self.verdict.word().to_owned(),
        ]
    }

    fn expected(&self) -> String {
        match (self.claim.at_least, self.claim.at_most) {
            (Some(least), Some(most)) => format!("{least} to {most}"),
            (Some(least), None) => format!("at least {least}"),
            (None, Some(most)) => format!("at most {most}"),
            (None, None) => String::new(),
        }
    }

    /// The judgement in sentences.
    pub(super) fn text(&self) -> String {
        let Claim { says, because, .. } = self.claim;
        let known = match (self.deviates, self.verdict) {
            (Some(reason), Verdict::Deviates) => format!(" {reason}"),
            (Some(reason), Verdict::Holds) => format!(" It was known not to: {reason}"),
            _ => String::new(),
        };
        let measured = match &self.measured {
            Ok(mean) => format!("Measured {}", mean_text(Some(*mean))),
            Err(why) => format!("Not measured: {why}"),
        };
        let (expected, word) = (self.expected(), self.verdict.word());
        format!("{says} {measured}, expected {expected}: {word}. {because}{known}")
    }

    /// The same for programs.
    pub(super) fn json(&self) -> Value {
        json!({
            "figure": self.figure,
            "claim": self.claim.says,
            "paper": self.claim.paper,
            "measured": self.measured.as_ref().ok().map(|(value, _)| value),
            "half_interval": self.measured.as_ref().ok().and_then(|(_, half)| *half),
            "not_measured": self.measured.as_ref().err(),
            "at_least": self.claim.at_least,
            "at_most": self.claim.at_most,
            "deviates": self.deviates,
            "verdict": self.verdict.word(),
        })
    }
}
