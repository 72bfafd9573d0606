//! Samples: queues, windows and rates over time.

use super::short;
use crate::chart::{Axis, Curve, LineChart, Page};
use crate::{Failure, stats};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

/// The most curves in a chart.
const CURVES: usize = 7;

fn unreadable(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::Run(format!("{}: {error}", path.display()))
}

fn open(path: &Path) -> Result<SerializedFileReader<File>, Failure> {
    let file = File::open(path).map_err(|e| Failure::at(path, &e))?;
    SerializedFileReader::new(file).map_err(|e| unreadable(path, e))
}

/// Whether `path` has samples of ports; otherwise it has samples of flows.
pub(super) fn has_ports(path: &Path) -> Result<bool, Failure> {
    let reader = open(path)?;
    let columns = reader.metadata().file_metadata().schema_descr().columns().to_vec();
    let has = |name: &str| columns.iter().any(|column| column.name() == name);
    match (has("queue_bytes"), has("goodput_gbps")) {
        (true, _) => Ok(true),
        (_, true) => Ok(false),
        _ => Err(unreadable(path, "no column queue_bytes or goodput_gbps; expected samples of weft run")),
    }
}

/// Values of several columns over time, for each port or flow.
type Series = BTreeMap<u64, (String, Vec<(f64, Vec<f64>)>)>;

/// Reads `path`: rows are told apart by the column `id`, named by `name`, and have the values of `columns`.
fn read(path: &Path, id: &str, name: &[&str], columns: &[&str]) -> Result<Series, Failure> {
    let mut series = Series::new();
    for row in open(path)?.get_row_iter(None).map_err(|e| unreadable(path, e))? {
        let row = row.map_err(|e| unreadable(path, e))?;
        let fields: BTreeMap<&String, &Field> = row.get_column_iter().collect();
        let field = |column: &str| fields.get(&column.to_owned()).copied();
        let number = |column: &str| match field(column) {
            Some(Field::Double(value)) => *value,
            Some(Field::UInt(value)) => f64::from(*value),
            Some(Field::Long(value)) => *value as f64,
            // A file of an earlier version has no such column.
            _ => f64::NAN,
        };
        let word = |column: &&str| match field(column) {
            Some(Field::Str(text)) => text.clone(),
            Some(Field::UInt(value)) => value.to_string(),
            _ => String::new(),
        };
        let words: Vec<String> = name.iter().map(word).collect();
        let entry = series.entry(number(id) as u64).or_insert_with(|| (words.join(">"), Vec::new()));
        entry.1.push((number("time_us"), columns.iter().map(|column| number(column)).collect()));
    }
    Ok(series)
}

/// Draws the samples of ports in `path`: the longest queues and the busiest links.
pub(super) fn draw_ports(path: &Path, page: &mut Page) -> Result<(), Failure> {
    let series = read(path, "port", &["owner", "peer"], &["queue_bytes", "utilisation"])?;
    page.heading(&format!("Ports in {}", short(path)));
    for (column, title, label, scale) in [
        (0, "Data queues that were longest on average", "data queue, kB", 1e-3),
        (1, "Links that were busiest", "utilisation, %", 100.0),
    ] {
        let sum = |points: &[(f64, Vec<f64>)]| points.iter().map(|(_, values)| values[column]).sum::<f64>();
        let mut all: Vec<_> = series.values().map(|(name, points)| (sum(points), name, points)).collect();
        all.sort_by(|(a, ..), (b, ..)| b.total_cmp(a));
        let times = times(&series);
        let curve = |(_, name, points): &(f64, &String, &Vec<(f64, Vec<f64>)>)| Curve {
            name: (*name).clone(),
            // A port without a row did nothing in that interval.
            points: filled(points, column, &times, 0.0).map(|(at, value)| (at, value * scale)).collect(),
        };
        page.figure(&over_time(title, label, all.iter().take(CURVES).map(curve).collect()));
    }
    Ok(())
}

/// Draws the samples of flows in `path`: rates, windows, RTTs, and how even the rates are.
pub(super) fn draw_flows(path: &Path, page: &mut Page) -> Result<(), Failure> {
    let columns = ["goodput_gbps", "cwnd_bytes", "rtt_us", "base_rtt_us"];
    let series = read(path, "index", &["flow"], &columns)?;
    page.heading(&format!("Flows in {}", short(path)));
    if series.len() > CURVES {
        let text = format!("The first {CURVES} of {} flows have curves; fairness is of all.", series.len());
        page.paragraph(&text);
    }
    let times = times(&series);
    for (column, title, label, scale) in [
        (0, "Goodput", "goodput, Gbit/s", 1.0),
        (1, "Congestion window", "window, kB", 1e-3),
        (2, "Smoothed RTT", "RTT, µs", 1.0),
    ] {
        let curve = |(name, points): &(String, Vec<(f64, Vec<f64>)>)| {
            let gap = if column == 0 { 0.0 } else { f64::NAN };
            let value = |value: f64| if column > 0 && value <= 0.0 { f64::NAN } else { value * scale };
            let points = filled(points, column, &times, gap).map(|(at, v)| (at, value(v))).collect();
            Curve { name: format!("flow {name}"), points }
        };
        let curves: Vec<Curve> = series.values().take(CURVES).map(curve).collect();
        if curves.iter().any(|curve| curve.points.iter().any(|(_, value)| value.is_finite())) {
            page.figure(&over_time(title, label, curves));
        }
    }
    let fairness = fairness(&series);
    if fairness.len() > 1 {
        let curve = Curve { name: "all flows that are open".to_owned(), points: fairness };
        page.figure(&over_time("Fairness of the goodputs", "Jain's index", vec![curve]));
    }
    Ok(())
}

/// Jain's index over the flows that are open at their senders, at each time at which two are.
fn fairness(series: &Series) -> Vec<(f64, f64)> {
    let mut rates: BTreeMap<u64, (f64, Vec<f64>)> = BTreeMap::new();
    for (at, values) in series.values().flat_map(|(_, points)| points).filter(|(_, values)| values[1] > 0.0) {
        rates.entry(at.to_bits()).or_insert_with(|| (*at, Vec::new())).1.push(values[0]);
    }
    // The bits of positive numbers are in the order of the numbers.
    let several = rates.into_values().filter(|(_, rates)| rates.len() > 1);
    several.filter_map(|(at, rates)| Some((at, stats::jain(&rates)?))).collect()
}

/// All times at which there is a row, in order.
fn times(series: &Series) -> Vec<f64> {
    let mut times: Vec<f64> = series.values().flat_map(|(_, points)| points).map(|(at, _)| *at).collect();
    times.sort_by(f64::total_cmp);
    times.dedup();
    times
}

/// A value for each of `times`: `gap` where there is no row.
fn filled(
    points: &[(f64, Vec<f64>)],
    column: usize,
    times: &[f64],
    gap: f64,
) -> impl Iterator<Item = (f64, f64)> {
    let mut points = points.iter().peekable();
    times.iter().map(move |at| {
        let here = points.next_if(|(time, _)| time == at);
        (*at, here.map_or(gap, |(_, values)| values[column]))
    })
}

fn over_time(title: &str, label: &str, curves: Vec<Curve>) -> String {
    let all = || curves.iter().flat_map(|curve| &curve.points);
    let chart = LineChart {
        title: title.to_owned(),
        x: Axis::from_zero("time, µs", all().map(|(at, _)| *at)),
        y: Axis::from_zero(label, all().map(|(_, value)| *value)),
        curves,
        steps: false,
        marks: Vec::new(),
    };
    chart.svg()
}
