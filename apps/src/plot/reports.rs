//! JSON reports of runs: completion times and queues side by side.

use super::names;
use crate::Failure;
use crate::chart::{Bar, BarChart, Page, Table};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Draws the reports `paths`, one series each.
pub(super) fn draw(paths: &[&Path], page: &mut Page) -> Result<(), Failure> {
    if paths.is_empty() {
        return Ok(());
    }
    let mut reports = Vec::new();
    for (path, name) in paths.iter().zip(names(paths)) {
        let text = fs::read_to_string(path).map_err(|e| Failure::at(path, &e))?;
        let report: Value = serde_json::from_str(&text)
            .map_err(|e| Failure::Run(format!("{}:{}: not a JSON report: {e}", path.display(), e.line())))?;
        if report.pointer("/fct_us/max").is_none() {
            let what = "no fct_us.max; expected the JSON report of weft run";
            return Err(Failure::Run(format!("{}: {what}", path.display())));
        }
        reports.push((name, report));
    }
    page.heading("Runs");
    let times = [
        ("min", "/fct_us/min"),
        ("mean", "/fct_us/mean"),
        ("median", "/fct_us/p50"),
        ("p99", "/fct_us/p99"),
        ("max", "/fct_us/max"),
    ];
    page.figure(&bars("Flow completion times", "completion time, µs", &times, &reports, 1.0));
    let queues = [
        ("port, max", "/queues/port_max_bytes"),
        ("port, mean", "/queues/port_mean_bytes"),
        ("ToR, max", "/queues/tor_max_bytes"),
        ("ToR, mean", "/queues/tor_mean_bytes"),
        ("agg, max", "/queues/agg_max_bytes"),
        ("agg, mean", "/queues/agg_mean_bytes"),
    ];
    if reports.iter().any(|(_, report)| report.get("queues").is_some()) {
        page.figure(&bars("Data queues", "bytes in data queues, kB", &queues, &reports, 1e-3));
    }
    page.table(&summary(&reports));
    Ok(())
}

fn bars(title: &str, label: &str, keys: &[(&str, &str)], reports: &[(String, Value)], scale: f64) -> String {
    let bar = |report: &Value, key: &str| {
        let value = report.pointer(key)?.as_f64()? * scale;
        Some(Bar { value, half_interval: None })
    };
    let chart = BarChart {
        title: title.to_owned(),
        x_label: String::new(),
        y_label: label.to_owned(),
        groups: keys.iter().map(|(name, _)| (*name).to_owned()).collect(),
        series: (reports.iter())
            .map(|(name, report)| (name.clone(), keys.iter().map(|(_, key)| bar(report, key)).collect()))
            .collect(),
        mark: None,
    };
    chart.svg()
}

fn summary(reports: &[(String, Value)]) -> Table {
    let columns = [
        ("run", ""),
        ("completed", "/flows/completed"),
        ("of", "/flows/total"),
        ("bound, µs", "/bound_us"),
        ("goodput, Gbit/s", "/goodput_gbps"),
        ("Jain", "/jain"),
        ("sent again", "/packets/retransmitted"),
        ("trimmed", "/packets/trimmed"),
        ("dropped", "/packets/dropped"),
        ("marked", "/packets/ecn_marked"),
        ("most queued link", "/hot_spots/most_queued/0/link"),
    ];
    let cell = |report: &Value, key: &str| match report.pointer(key) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number
            .as_u64()
            .map_or_else(|| format!("{:.4}", number.as_f64().unwrap_or(0.0)), |n| n.to_string()),
        _ => "–".to_owned(),
    };
    Table {
        head: columns.iter().map(|(head, _)| (*head).to_owned()).collect(),
        rows: (reports.iter())
            .map(|(name, report)| {
                let cells = columns[1..].iter().map(|(_, key)| cell(report, key));
                std::iter::once(name.clone()).chain(cells).collect()
            })
            .collect(),
    }
}
