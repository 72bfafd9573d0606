//! Tables of sweeps: bars with confidence intervals over the seeds.

use super::short;
use crate::Failure;
use crate::chart::{Bar, BarChart, Page};
use crate::sweep::SweepTable;
use std::path::Path;

/// The columns that are drawn where nothing is said.
const METRICS: [&str; 2] = ["fct_us_p99", "fct_us_max"];

/// Draws the table `path`: a chart for each of `metrics`.
pub(super) fn draw(path: &Path, metrics: &[String], page: &mut Page) -> Result<(), Failure> {
    let table = SweepTable::read(path)?;
    page.heading(&format!("Sweep {}", short(path)));
    let defaults = METRICS.map(str::to_owned);
    for metric in if metrics.is_empty() { &defaults[..] } else { metrics } {
        let known = table.metrics();
        if !known.contains(metric) {
            let text = format!(
                "--metric: {} has no column '{metric}'; expected one of: {}",
                path.display(),
                known.join(", ")
            );
            return Err(Failure::Usage(text));
        }
        let points = table.summary(metric);
        let varied = table.varied();
        // The last option is told by colour, the others by place.
        let series_of = |point: &[String]| point.last().cloned().unwrap_or_default();
        let group_of = |point: &[String]| point[..point.len().saturating_sub(1)].join(", ");
        let (mut groups, mut series) = (Vec::new(), Vec::<String>::new());
        for (point, _) in &points {
            if !groups.contains(&group_of(point)) {
                groups.push(group_of(point));
            }
            if !series.contains(&series_of(point)) {
                series.push(series_of(point));
            }
        }
        let bar = |group: &String, name: &String| {
            let found =
                points.iter().find(|(point, _)| group_of(point) == *group && series_of(point) == *name);
            found.and_then(|(_, summary)| summary.map(|(value, half_interval)| Bar { value, half_interval }))
        };
        let chart = BarChart {
            title: format!("{metric} by {}", varied.join(", ")),
            x_label: varied[..varied.len().saturating_sub(1)].join(", "),
            y_label: format!("{metric}: mean over seeds, 95 % interval"),
            series: (series.iter())
                .map(|name| (name.clone(), groups.iter().map(|group| bar(group, name)).collect()))
                .collect(),
            groups,
            mark: None,
        };
        page.figure(&chart.svg());
    }
    page.table(&table.text_table(if metrics.is_empty() { &defaults } else { metrics }));
    Ok(())
}
