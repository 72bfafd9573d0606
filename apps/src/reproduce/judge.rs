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
    /// The mean over the seeds, and half of its 95 % confidence interval.
    measured: Option<(f64, Option<f64>)>,
    pub(super) verdict: Verdict,
}

/// The judgements on the claims of `figure`, from its runs among `finished`.
pub(super) fn judge<'a>(figure: &'a Figure, finished: &[Finished], quick: bool) -> Vec<Judgement<'a>> {
    let runs: Vec<&Finished> = finished.iter().filter(|run| run.figure == figure.id).collect();
    let judgement = |claim: &'a Claim| {
        let measured = measure(claim, &runs);
        let holds = measured.is_some_and(|(value, _)| {
            claim.at_least.is_none_or(|least| value >= least)
                && claim.at_most.is_none_or(|most| value <= most)
        });
        let verdict = match (holds, quick && claim.slow, &claim.deviates) {
            (_, true, _) => Verdict::NotJudged,
            (true, ..) => Verdict::Holds,
            (false, _, Some(_)) => Verdict::Deviates,
            (false, _, None) => Verdict::Fails,
        };
        Judgement { figure: &figure.id, claim, measured, verdict }
    };
    // Most experiments are left out of the quick form, which does not say so of each.
    let is_left_out = |claim: &&Claim| quick && claim.slow && !figure.experiments.is_empty();
    figure.claim.iter().filter(|claim| !is_left_out(claim)).map(judgement).collect()
}

fn measure(claim: &Claim, runs: &[&Finished]) -> Option<(f64, Option<f64>)> {
    let mut measured = value(&claim.measure, runs)?;
    if let Some(less) = &claim.less {
        measured.0 -= value(less, runs)?.0;
    }
    let Some(over) = &claim.over else { return Some(measured) };
    let (divisor, _) = value(over, runs)?;
    let (mean, half) = measured;
    (divisor > 0.0).then(|| (mean / divisor, half.map(|half| half / divisor)))
}

/// The mean over the seeds of the runs that the measure is of; of several such means the one that it picks. `None` if
/// there is no such run, or if several differ and none is picked.
fn value(measure: &Measure, runs: &[&Finished]) -> Option<(f64, Option<f64>)> {
    let is_meant = |run: &&&Finished| {
        measure.of.iter().all(|(option, value)| {
            let values =
                value.as_array().map_or_else(|| vec![plain(value)], |list| list.iter().map(plain).collect());
            run.point.get(option).is_some_and(|given| values.contains(given))
        })
    };
    let mut by_point: BTreeMap<BTreeMap<&str, &str>, Vec<f64>> = BTreeMap::new();
    for run in runs.iter().filter(is_meant) {
        let options = run.point.iter().filter(|(option, _)| *option != "seed");
        let point = options.map(|(option, value)| (option.as_str(), value.as_str())).collect();
        by_point.entry(point).or_default().push(*run.columns.get(&measure.column)?);
    }
    let mut means: Vec<(f64, Option<f64>)> =
        by_point.values().map(|values| stats::confidence(values)).collect::<Option<_>>()?;
    means.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    match (measure.pick, means.len()) {
        (_, 1) | (Some(Pick::Least), _) => means.first().copied(),
        (Some(Pick::Greatest), _) => means.last().copied(),
        (None, _) => None,
    }
}

impl Judgement<'_> {
    /// The cells of its row: figure, claim, paper, measured, expected, verdict.
    pub(super) fn cells(&self) -> Vec<String> {
        let paper = self.claim.paper.map_or_else(|| "–".to_owned(), |value| value.to_string());
        vec![
            self.figure.to_owned(),
            self.claim.says.clone(),
            paper,
            mean_text(self.measured),
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
        let Claim { says, because, deviates, .. } = self.claim;
        let known = match (&deviates, self.verdict) {
            (Some(reason), Verdict::Deviates) => format!(" {reason}"),
            _ => String::new(),
        };
        let (measured, expected, word) = (mean_text(self.measured), self.expected(), self.verdict.word());
        format!("{says} Measured {measured}, expected {expected}: {word}. {because}{known}")
    }

    /// The same for programs.
    pub(super) fn json(&self) -> Value {
        json!({
            "figure": self.figure,
            "claim": self.claim.says,
            "paper": self.claim.paper,
            "measured": self.measured.map(|(value, _)| value),
            "half_interval": self.measured.and_then(|(_, half)| half),
            "at_least": self.claim.at_least,
            "at_most": self.claim.at_most,
            "verdict": self.verdict.word(),
        })
    }
}
