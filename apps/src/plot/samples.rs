//! Samples: queues, windows and rates over time.

use super::runs::{COMBINATIONS, Means, OverTime, Rows as RowsOfRun, RunsTable};
use super::short;
use crate::chart::{Axis, Curve, LineChart, Page};
use crate::columnar::{Column, Reader};
use crate::sample::SameFlows;
use crate::{Failure, stats};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The most curves in a chart.
const CURVES: usize = 7;
/// The most points of a curve of rates. A rate within a short interval is one packet or none, and several such curves hide
/// each other.
const RATES: usize = 60;

fn unreadable(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::Run(format!("{}: {error}", path.display()))
}

/// The values of some columns in some successive rows.
struct Rows {
    /// The columns with numbers, in the order in which they were asked for.
    numbers: Vec<Vec<f64>>,
    /// The columns with words.
    words: Vec<Vec<String>>,
}

/// Reads the columns `numbers` and `words` of `path`, and passes them on some rows at a time. A column that is not there,
/// as in a file of an earlier version, has no values that are numbers.
fn read(
    path: &Path,
    numbers: &[&str],
    words: &[&str],
    mut each: impl FnMut(&Rows) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let reader = Reader::open(path)?;
    let asked: Vec<Option<usize>> = [numbers, words].concat().iter().map(|name| reader.place(name)).collect();
    let there: Vec<usize> = asked.iter().flatten().copied().collect();
    reader.read(&there, |batch| {
        let rows = batch.first().map_or(0, Column::len);
        let mut columns = batch.iter();
        let mut values = asked.iter().map(|place| place.and_then(|_| columns.next()));
        let number = |column: Option<&Column>| column.map_or_else(|| vec![f64::NAN; rows], Column::numbers);
        let word = |column: Option<&Column>| column.map_or_else(|| vec![String::new(); rows], Column::words);
        let numbers = values.by_ref().take(numbers.len()).map(number).collect();
        each(&Rows { numbers, words: values.map(word).collect() })
    })
}

/// The times of the samples, in order. They rise from row to row.
#[derive(Default)]
struct Times(Vec<f64>);

impl Times {
    fn add(&mut self, path: &Path, at: f64) -> Result<(), Failure> {
        match self.0.last() {
            Some(last) if *last == at => {}
            Some(last) if at > *last => self.0.push(at),
            Some(last) => {
                let what = format!("time_us goes from {last} to {at}; expected the samples of one run");
                return Err(unreadable(path, what));
            }
            None => self.0.push(at),
        }
        Ok(())
    }

    /// These times, and of each time in which samples were skipped, as nothing happened, the ends of its first and last
    /// interval: there the values are zero.
    fn with_idle(&self) -> Vec<f64> {
        let gaps = || self.0.windows(2).map(|pair| (pair[0], pair[1]));
        // The last interval may be shorter.
        let regular = gaps().map(|(a, b)| b - a).take(self.0.len().saturating_sub(2));
        let every = regular.fold(f64::INFINITY, f64::min);
        let mut all: Vec<f64> = self.0.first().copied().into_iter().collect();
        for (a, b) in gaps() {
            if b - a > 1.5 * every {
                all.extend([a + every, b - every].into_iter().filter(|at| *at > a && *at < b));
            }
            all.push(b);
        }
        all.dedup();
        all
    }
}

/// The values of several columns over time, for the ports or flows that are drawn.
type Series = BTreeMap<u32, (String, Vec<(f64, Vec<f64>)>)>;

/// The rows of `ids`: named by the columns `names`, with the values of `columns`. `id` is the column that tells them apart.
fn rows_of(
    path: &Path,
    id: &str,
    ids: &BTreeSet<u32>,
    names: &[&str],
    columns: &[&str],
) -> Result<Series, Failure> {
    let mut series = Series::new();
    read(path, &[&[id, "time_us"], columns].concat(), names, |rows| {
        for (row, id) in rows.numbers[0].iter().enumerate() {
            if !ids.contains(&(*id as u32)) {
                continue;
            }
            let name = || rows.words.iter().map(|column| &*column[row]).collect::<Vec<_>>().join(">");
            let entry = series.entry(*id as u32).or_insert_with(|| (name(), Vec::new()));
            let values = rows.numbers[2..].iter().map(|column| column[row]).collect();
            entry.1.push((rows.numbers[1][row], values));
        }
        Ok(())
    })?;
    Ok(series)
}

/// Draws the samples of ports in `path`: the longest queues and the busiest links.
pub(super) fn draw_ports(path: &Path, page: &mut Page) -> Result<(), Failure> {
    if let Some(table) = RunsTable::open(path)? {
        page.heading(&format!("Ports in {}", short(path)));
        let figures = [
            Figure { title: "Longest data queue", label: "data queue, kB", scale: 1e-3, gap: None },
            Figure {
                title: "Utilisation of the busiest link",
                label: "utilisation, %",
                scale: 100.0,
                gap: IDLE,
            },
        ];
        let columns = ["time_us", "queue_bytes", "utilisation"];
        return draw_runs(&table, &columns, &figures, page, |values, row| {
            values.iter_mut().zip(row).for_each(|(most, value)| *most = f64::max(*most, *value));
        });
    }
    const COLUMNS: [&str; 2] = ["queue_bytes", "utilisation"];
    let (mut times, mut sums) = (Times::default(), BTreeMap::<u32, [f64; 2]>::new());
    read(path, &["port", "time_us", COLUMNS[0], COLUMNS[1]], &[], |rows| {
        for (row, port) in rows.numbers[0].iter().enumerate() {
            times.add(path, rows.numbers[1][row])?;
            let sums = sums.entry(*port as u32).or_default();
            (0..2).for_each(|column| sums[column] += rows.numbers[2 + column][row]);
        }
        Ok(())
    })?;
    page.heading(&format!("Ports in {}", short(path)));
    let most = |column: usize| {
        let mut ports: Vec<(&u32, f64)> = sums.iter().map(|(port, sums)| (port, sums[column])).collect();
        ports.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        ports.into_iter().take(CURVES).map(|(port, _)| *port).collect::<Vec<u32>>()
    };
    let chosen = [most(0), most(1)];
    let ids = chosen.iter().flatten().copied().collect();
    let series = rows_of(path, "port", &ids, &["owner", "peer"], &COLUMNS)?;
    let with_idle = times.with_idle();
    for (column, title, label, scale) in [
        (0, "Data queues that were longest on average", "data queue, kB", 1e-3),
        (1, "Links that were busiest", "utilisation, %", 100.0),
    ] {
        // While nothing happens links are idle, and queues (of links that are down) stay what they are.
        let times = if column == 0 { &times.0 } else { &with_idle };
        let curve = |(name, points): &(String, Vec<(f64, Vec<f64>)>)| Curve {
            name: name.clone(),
            // A port without a row did nothing in that interval.
            points: filled(points, column, times, 0.0).map(|(at, value)| (at, value * scale)).collect(),
        };
        let curves = chosen[column].iter().filter_map(|port| series.get(port)).map(curve).collect();
        page.figure(&over_time(title, label, curves));
    }
    Ok(())
}

/// What all flows of a file have in common.
#[derive(Default)]
struct AllFlows {
    times: Times,
    flows: BTreeSet<u32>,
    /// Jain's index over the rates within an interval, where it is defined as in the report.
    fairness: Vec<(f64, f64)>,
    /// The flows that are open at the last time, with their rates.
    open: BTreeMap<u32, f64>,
    same: SameFlows,
}

impl AllFlows {
    fn read(path: &Path) -> Result<AllFlows, Failure> {
        let mut all = AllFlows::default();
        read(path, &["index", "time_us", "goodput_gbps", "cwnd_bytes"], &[], |rows| {
            let [index, at, rate, window] = &rows.numbers[..] else { return Ok(()) };
            for (row, index) in index.iter().enumerate() {
                if all.times.0.last().is_some_and(|last| *last != at[row]) {
                    all.end_interval();
                }
                all.times.add(path, at[row])?;
                all.flows.insert(*index as u32);
                // Without a window at its sender a flow has not begun, or has ended.
                if window[row] > 0.0 {
                    all.open.insert(*index as u32, rate[row]);
                }
            }
            Ok(())
        })?;
        all.end_interval();
        Ok(all)
    }

    fn end_interval(&mut self) {
        let shares = self.same.shares(std::mem::take(&mut self.open));
        let jain = shares.and_then(|shares| stats::jain(&shares));
        self.fairness.extend(self.times.0.last().copied().zip(jain));
    }
}

/// Draws the samples of flows in `path`: rates, windows, RTTs, and how even the rates are.
pub(super) fn draw_flows(path: &Path, page: &mut Page) -> Result<(), Failure> {
    if let Some(table) = RunsTable::open(path)? {
        page.heading(&format!("Flows in {}", short(path)));
        let figures = [
            Figure { title: "Goodput of all flows", label: "goodput, Gbit/s", scale: 1.0, gap: IDLE },
            Figure { title: "Bytes in flight of all flows", label: "in flight, kB", scale: 1e-3, gap: None },
        ];
        let columns = ["time_us", "goodput_gbps", "in_flight_bytes"];
        return draw_runs(&table, &columns, &figures, page, |values, row| {
            values.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        });
    }
    let all = AllFlows::read(path)?;
    page.heading(&format!("Flows in {}", short(path)));
    if all.flows.len() > CURVES {
        let text =
            format!("The first {CURVES} of {} flows have curves; fairness is of all.", all.flows.len());
        page.paragraph(&text);
    }
    let drawn = [
        (0, "Goodput", "goodput, Gbit/s", 1.0),
        (1, "Congestion window", "window, kB", 1e-3),
        (2, "Smoothed RTT", "RTT, µs", 1.0),
    ];
    for chart in charts(path, &all, &drawn)?.into_iter().flatten() {
        page.figure(&chart);
    }
    if all.fairness.len() > 1 {
        let curve = Curve { name: "all flows that are open".to_owned(), points: all.fairness };
        page.figure(&over_time("Fairness of the goodputs", "Jain's index", vec![curve]));
    }
    Ok(())
}

/// The columns of a flow that are drawn.
const OF_FLOWS: [&str; 4] = ["goodput_gbps", "cwnd_bytes", "rtt_us", "flow"];

/// Draws `columns` of the first flows in `path`: the place in [`OF_FLOWS`], the title, the label and the scale of each. None
/// for a column without values.
fn charts(
    path: &Path,
    all: &AllFlows,
    columns: &[(usize, &str, &str, f64)],
) -> Result<Vec<Option<String>>, Failure> {
    let first = all.flows.iter().copied().take(CURVES).collect();
    let series = rows_of(path, "index", &first, &[], &OF_FLOWS)?;
    let with_idle = all.times.with_idle();
    let chart = |&(column, title, label, scale): &(usize, &str, &str, f64)| {
        let curve = |(_, points): &(String, Vec<(f64, Vec<f64>)>)| {
            // While nothing happens rates are zero, and windows stay what they are.
            let (gap, times) = if column == 0 { (0.0, &with_idle) } else { (f64::NAN, &all.times.0) };
            let value = |value: f64| if column > 0 && value <= 0.0 { f64::NAN } else { value * scale };
            let id = points.first().map_or(f64::NAN, |(_, values)| values[3]);
            let points = filled(points, column, times, gap).map(|(at, v)| (at, value(v))).collect();
            let points = if column == 0 { means(points) } else { points };
            Curve { name: format!("flow {id}"), points }
        };
        let curves: Vec<Curve> = series.values().map(curve).collect();
        let has_values = curves.iter().any(|curve| curve.points.iter().any(|(_, value)| value.is_finite()));
        has_values.then(|| over_time(title, label, curves))
    };
    Ok(columns.iter().map(chart).collect())
}

/// Draws the goodputs of the first flows in `path` over time.
///
/// # Errors
/// The file cannot be read, or is no table of samples of flows.
pub(crate) fn goodputs(path: &Path, title: &str) -> Result<String, Failure> {
    let chart = charts(path, &AllFlows::read(path)?, &[(0, title, "goodput, Gbit/s", 1.0)])?;
    let no_values = || unreadable(path, "there are no values of goodput_gbps; expected samples of flows");
    chart.into_iter().flatten().next().ok_or_else(no_values)
}

/// A figure of a table of all runs.
struct Figure {
    title: &'static str,
    label: &'static str,
    scale: f64,
    /// The value while nothing happens; `None` if it stays what it is.
    gap: Option<f64>,
}

/// Rates are zero while nothing happens.
const IDLE: Option<f64> = Some(0.0);

/// Draws `figures`, with a curve for each combination of the varied options: the mean over its runs. `columns` are the
/// time, and a column for each figure. `add` joins a row to the values of its run at its time, which begin with 0.
fn draw_runs(
    table: &RunsTable,
    columns: &[&str],
    figures: &[Figure],
    page: &mut Page,
    add: impl Fn(&mut [f64], &[f64]),
) -> Result<(), Failure> {
    let (mut over_times, empty) = (OverTime::default(), vec![0.0; figures.len()]);
    let mut row = empty.clone();
    table.read(columns, |rows: &RowsOfRun<'_>| {
        for (index, at) in rows.columns[0].iter().enumerate() {
            row.iter_mut().zip(&rows.columns[1..]).for_each(|(value, column)| *value = column[index]);
            add(over_times.at(rows, *at, &empty), &row);
        }
        Ok(())
    })?;
    over_times.end_run();
    let combinations = &over_times.combinations;
    page.paragraph(&match combinations.len() {
        count if count > COMBINATIONS => {
            format!("Means over the runs. The first {COMBINATIONS} of {count} combinations have curves.")
        }
        _ => "Means over the runs of each combination.".to_owned(),
    });
    for (index, figure) in figures.iter().enumerate() {
        let curve = |(name, means): &(String, Means)| {
            let times = Times(means.times());
            let points = means.mean(index);
            let times = if figure.gap.is_some() { times.with_idle() } else { times.0 };
            let points = filled(&points, 0, &times, figure.gap.unwrap_or(f64::NAN));
            Curve {
                name: name.clone(),
                points: points.map(|(at, value)| (at, value * figure.scale)).collect(),
            }
        };
        let curves = combinations.iter().take(COMBINATIONS).map(curve).collect();
        let title = format!("{} by {}", figure.title, table.varied());
        page.figure(&over_time(title.trim_end_matches(" by "), figure.label, curves));
    }
    Ok(())
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

/// Means over so many successive intervals that [`RATES`] points are left. Each value is that of the time since the one
/// before it.
fn means(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let together = points.len().div_ceil(RATES);
    if together < 2 {
        return points;
    }
    let mut begin = 0.0;
    let mean = |group: &[(f64, f64)]| {
        let (mut sum, mut last, from) = (0.0, begin, begin);
        for (at, value) in group {
            sum += value * (at - last);
            last = *at;
        }
        begin = last;
        (last, sum / (last - from))
    };
    points.chunks(together).map(mean).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_intervals_begin_and_end_at_zero() {
        let times = Times(vec![10.0, 20.0, 30.0, 80.0, 90.0, 93.0]);
        assert_eq!(times.with_idle(), [10.0, 20.0, 30.0, 40.0, 70.0, 80.0, 90.0, 93.0]);
        assert_eq!(Times(vec![10.0, 20.0, 40.0, 50.0]).with_idle(), [10.0, 20.0, 30.0, 40.0, 50.0]);
        assert_eq!(Times(vec![10.0, 13.0]).with_idle(), [10.0, 13.0]);
        assert!(Times::default().with_idle().is_empty());
    }

    #[test]
    fn many_rates_are_drawn_as_means_that_keep_the_sum_over_time() {
        let few = vec![(10.0, 1.0), (20.0, 3.0)];
        assert_eq!(means(few.clone()), few);
        let many: Vec<(f64, f64)> = (1..=150).map(|n| (f64::from(n), f64::from(n % 3))).collect();
        let drawn = means(many);
        assert_eq!(drawn.len(), 50);
        assert!(drawn.iter().all(|(_, mean)| *mean == 1.0), "{drawn:?}");
        // The last interval is shorter.
        let unequal: Vec<(f64, f64)> = (1..=120).map(|n| (f64::from(n), 4.0)).chain([(120.5, 0.0)]).collect();
        assert_eq!(means(unequal).last(), Some(&(120.5, 0.0)));
    }

    #[test]
    fn times_that_fall_are_refused() {
        let mut times = Times::default();
        let path = Path::new("s.parquet");
        [1.0, 1.0, 2.0].into_iter().for_each(|at| times.add(path, at).unwrap());
        let said = times.add(path, 1.5).unwrap_err().to_string();
        assert!(
            said.starts_with("s.parquet: time_us goes from 2 to 1.5; expected the samples of one run"),
            "{said}"
        );
    }
}
