//! Tables of flows: distributions of completion times and slowdowns.

use super::names;
use super::runs::{COMBINATIONS, RunsTable};
use crate::Failure;
use crate::chart::{Axis, Curve, LineChart, Page, cumulative};
use crate::columnar::{Reader, is_parquet};
use std::fs;
use std::path::Path;

/// A table of flows, with the columns by name.
pub(crate) struct Flows<'a> {
    head: Vec<&'a str>,
    rows: Vec<Vec<&'a str>>,
}

impl<'a> Flows<'a> {
    /// Reads `text`, the contents of the file `name`.
    pub(crate) fn parse(name: &Path, text: &'a str) -> Result<Flows<'a>, Failure> {
        let mut lines = text.lines();
        let head: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
        let mut rows = Vec::new();
        for (line, number) in lines.zip(2..) {
            let row: Vec<&str> = line.split(',').collect();
            if row.len() != head.len() {
                return Err(Failure::Run(format!(
                    "{}:{number}: {} values; expected {}, as many as the first line has names",
                    name.display(),
                    row.len(),
                    head.len()
                )));
            }
            rows.push(row);
        }
        Ok(Flows { head, rows })
    }

    /// The ends in µs of the finished flows with the name `Uec_SRC_DST`.
    pub(crate) fn ends(&self, name: &Path, flow: &str) -> Result<Vec<f64>, Failure> {
        let place = |column: &str| self.head.iter().position(|head| *head == column);
        let (Some(src), Some(dst)) = (place("src"), place("dst")) else { return Ok(Vec::new()) };
        let of_flow = |row: &&Vec<&str>| format!("Uec_{}_{}", row[src], row[dst]) == flow;
        let rows = self.rows.iter().filter(of_flow).cloned().collect();
        let table = Flows { head: self.head.clone(), rows };
        table.numbers(name, "end_us").map(Option::unwrap_or_default)
    }

    /// The numbers of a column; cells that are empty are left out. `None` if there is no such column.
    pub(crate) fn numbers(&self, name: &Path, column: &str) -> Result<Option<Vec<f64>>, Failure> {
        let Some(index) = self.head.iter().position(|head| *head == column) else { return Ok(None) };
        let cells = self.rows.iter().zip(2..).filter(|(row, _)| !row[index].is_empty());
        let number = |(row, line): (&Vec<&str>, usize)| {
            row[index].parse::<f64>().map_err(|_| {
                let (name, word) = (name.display(), row[index]);
                Failure::Run(format!("{name}:{line}: {column} is '{word}'; expected a number"))
            })
        };
        cells.map(number).collect::<Result<_, _>>().map(Some)
    }
}

/// The quantities that are drawn: column, axis.
const COLUMNS: [(&str, &str, &str); 2] = [
    ("fct_us", "flow completion time, µs", "Flow completion times"),
    ("slowdown", "slowdown: completion time over that in an idle fabric", "Slowdown"),
];

/// Draws the tables `paths`, one curve each; of a table of all runs of a sweep, one for each combination of the varied
/// options, with the flows of all its runs.
pub(super) fn draw(paths: &[&Path], page: &mut Page) -> Result<(), Failure> {
    if paths.is_empty() {
        return Ok(());
    }
    page.heading("Flows");
    for (column, label, title) in COLUMNS {
        let mut curves = Vec::new();
        for (path, name) in paths.iter().zip(names(paths)) {
            let own_name = if paths.len() > 1 { format!("{name}: ") } else { String::new() };
            for (combination, mut values) in values(path, column)? {
                let name =
                    if combination.is_empty() { name.clone() } else { own_name.clone() + &combination };
                curves.push(Curve { name, points: cumulative(&mut values) });
            }
        }
        if curves.len() > COMBINATIONS {
            page.paragraph(&format!(
                "The first {COMBINATIONS} of {} tables or combinations have curves.",
                curves.len()
            ));
            curves.truncate(COMBINATIONS);
        }
        if curves.iter().any(|curve| !curve.points.is_empty()) {
            page.figure(&distribution(title, label, curves, Vec::new()));
        }
    }
    Ok(())
}

/// The numbers of a column in the table `path`, by combination of the varied options; in the table of a single run there
/// is one combination, without a name. Nothing if there is no such column.
fn values(path: &Path, column: &str) -> Result<Vec<(String, Vec<f64>)>, Failure> {
    if !is_parquet(path)? {
        let text = fs::read_to_string(path).map_err(|e| Failure::at(path, &e))?;
        let values = Flows::parse(path, &text)?.numbers(path, column)?;
        return Ok(values.map(|values| (String::new(), values)).into_iter().collect());
    }
    let mut combinations: Vec<(String, Vec<f64>)> = Vec::new();
    let mut add = |combination: &str, values: &[f64]| {
        let known = combinations.iter().position(|(name, _)| name == combination);
        let place = known.unwrap_or_else(|| {
            combinations.push((combination.to_owned(), Vec::new()));
            combinations.len() - 1
        });
        // Of flows that have not completed there is no number.
        combinations[place].1.extend(values.iter().filter(|value| value.is_finite()));
    };
    match RunsTable::open(path)? {
        Some(table) => table.read(&[column], |rows| {
            add(rows.combination, rows.columns[0]);
            Ok(())
        })?,
        None => {
            let reader = Reader::open(path)?;
            let Some(place) = reader.place(column) else { return Ok(Vec::new()) };
            reader.read(&[place], |batch| {
                add("", &batch[0].numbers());
                Ok(())
            })?;
        }
    }
    Ok(combinations)
}

/// A chart of cumulative distributions.
pub(crate) fn distribution(
    title: &str,
    label: &str,
    curves: Vec<Curve>,
    marks: Vec<(f64, String)>,
) -> String {
    let values = curves.iter().flat_map(|curve| curve.points.iter().map(|(x, _)| *x));
    let values: Vec<f64> = values.chain(marks.iter().map(|(x, _)| *x)).collect();
    let chart = LineChart {
        title: title.to_owned(),
        x: Axis::around(label, values.iter().copied()),
        y: Axis::share("share of the flows"),
        curves,
        steps: true,
        marks,
    };
    chart.svg()
}
