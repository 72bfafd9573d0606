//! The figures of a suite.

use super::runs::Finished;
use super::suite::{Draw, Figure};
use crate::chart::{Bar, BarChart, Curve, cumulative};
use crate::plot::{distribution, goodputs};
use crate::{Failure, stats};

/// Draws `figure` from its `runs`: one chart or, of distributions, one for each group.
///
/// # Errors
/// Samples cannot be read.
pub(super) fn draw(figure: &Figure, runs: &[&Finished]) -> Result<Vec<String>, Failure> {
    if figure.draw == Draw::Nothing {
        return Ok(Vec::new());
    }
    let named = |name: &str| figure.names.get(name).map_or(name, String::as_str).to_owned();
    let of = |run: &Finished, option: &str| named(run.point.get(option).map_or("", String::as_str));
    let series = in_order(runs.iter().map(|run| of(run, &figure.series)));
    let group_of = |run: &Finished| figure.group.as_ref().map_or(String::new(), |group| of(run, group));
    let groups = in_order(runs.iter().map(|run| group_of(run)));
    let chosen = |group: &str, name: &str| -> Vec<&Finished> {
        let here = |run: &&&Finished| group_of(run) == group && of(run, &figure.series) == name;
        runs.iter().filter(here).copied().collect()
    };
    if figure.draw == Draw::FctCdf {
        let chart = |group: &String| {
            let title = match &figure.group {
                Some(option) => format!("{}: {} {group}", figure.title, named(option)),
                None => figure.title.clone(),
            };
            let curve = |name: &String| {
                let mut times: Vec<f64> =
                    chosen(group, name).iter().flat_map(|run| run.fct_us.iter().copied()).collect();
                Curve { name: name.clone(), points: cumulative(&mut times) }
            };
            let bounds = runs
                .iter()
                .filter(|run| group_of(run) == *group)
                .filter_map(|run| run.columns.get("bound_us"));
            let marks = bounds.map(|bound| (*bound, "busiest link".to_owned())).take(1).collect();
            distribution(&title, "flow completion time, µs", series.iter().map(curve).collect(), marks)
        };
        return Ok(groups.iter().map(chart).collect());
    }
    if figure.draw == Draw::Goodputs {
        let mut charts = Vec::new();
        for (group, name) in groups.iter().flat_map(|group| series.iter().map(move |name| (group, name))) {
            let first = chosen(group, name).into_iter().next();
            if let Some(samples) = first.and_then(|run| run.samples.as_deref()) {
                let words: Vec<&str> = [&figure.title, group, name]
                    .into_iter()
                    .map(String::as_str)
                    .filter(|w| !w.is_empty())
                    .collect();
                charts.push(goodputs(samples, &words.join(", "))?);
            }
        }
        return Ok(charts);
    }
    let bar = |group: &str, name: &str| {
        let values: Vec<f64> =
            chosen(group, name).iter().filter_map(|run| run.columns.get(&figure.column).copied()).collect();
        stats::confidence(&values).map(|(value, half_interval)| Bar { value, half_interval })
    };
    let mut series: Vec<_> = (series.iter())
        .map(|name| (name.clone(), groups.iter().map(|group| bar(group, name)).collect()))
        .collect();
    if let Some(beside) = &figure.beside {
        let value = |group: &String| {
            let known = beside.values.iter().find(|(value, _)| named(value) == *group);
            known.map(|(_, value)| Bar { value: *value, half_interval: None })
        };
        series.push((beside.name.clone(), groups.iter().map(value).collect()));
    }
    let chart = BarChart {
        title: figure.title.clone(),
        x_label: figure.group.as_deref().map(named).unwrap_or_default(),
        y_label: figure.label.clone(),
        series,
        groups,
        mark: (figure.column == "slowdown_max").then(|| (1.0, "ideal (the busiest link)".to_owned())),
    };
    Ok(vec![chart.svg()])
}

/// Each of `values` once, in the order in which they first occur.
fn in_order(values: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}
