//! Tables of sweeps read back: means and confidence intervals over the seeds.

use super::table::Object;
use crate::chart::Table;
use crate::{Failure, stats, text};
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

/// The first column of the results; the columns before it are options.
const FIRST_RESULT: &str = "flows_total";
/// The option over which means are taken.
pub(crate) const SEED: &str = "seed";

/// A mean, and half of its confidence interval; `None` if no run has the value.
type Mean = Option<(f64, Option<f64>)>;

/// Names and values, in order.
type Columns = Vec<(String, Json)>;

/// The rows of a sweep whose runs have not failed.
#[derive(Debug, Default)]
pub(crate) struct SweepTable {
    /// The columns of each row, in order: options, then results.
    rows: Vec<(Columns, Columns)>,
}

impl SweepTable {
    /// Reads the table `path`.
    ///
    /// # Errors
    /// A line is not a row of a sweep.
    pub(crate) fn read(path: &Path) -> Result<SweepTable, Failure> {
        let mut file = BufReader::new(File::open(path).map_err(|e| Failure::at(path, &e))?);
        let (mut table, mut line, mut number) = (SweepTable::default(), Vec::new(), 0);
        while text::next_line(&mut file, &mut line).map_err(|e| Failure::at(path, &e))? {
            number += 1;
            let refused = |what: &str| Failure::Run(format!("{}:{number}: {what}", path.display()));
            let row: Object =
                serde_json::from_slice(&line).map_err(|e| refused(&format!("no row of a sweep: {e}")))?;
            let mut columns = Vec::new();
            for (name, value) in row.0 {
                columns.push((name, serde_json::from_str(value.get()).map_err(|e| refused(&e.to_string()))?));
            }
            match columns.iter().position(|(name, _)| name == FIRST_RESULT) {
                Some(at) => {
                    let results = columns.split_off(at);
                    table.rows.push((columns, results));
                }
                None if columns.iter().any(|(name, _)| name == "error") => {}
                None => return Err(refused("no column flows_total; expected a row of a sweep")),
            }
        }
        Ok(table)
    }

    /// The options that differ between rows, without the seed.
    pub(crate) fn varied(&self) -> Vec<String> {
        let names = self.rows.first().map_or(&[][..], |(options, _)| options);
        let value = |row: &(Vec<(String, Json)>, _), name: &str| {
            row.0.iter().find(|(other, _)| other == name).map(|(_, value)| value.to_string())
        };
        let differs = |name: &&String| {
            let values: BTreeSet<_> = self.rows.iter().map(|row| value(row, name)).collect();
            **name != SEED && values.len() > 1
        };
        names.iter().map(|(name, _)| name).filter(differs).cloned().collect()
    }

    /// The columns with numbers.
    pub(crate) fn metrics(&self) -> Vec<String> {
        let results = self.rows.first().map_or(&[][..], |(_, results)| results);
        let numbers = results.iter().filter(|(_, value)| value.is_number() || value.is_null());
        numbers.map(|(name, _)| name.clone()).collect()
    }

    /// For each combination of the varied options, in the order of the rows: their values, and the mean of `metric` over
    /// the seeds.
    pub(crate) fn summary(&self, metric: &str) -> Vec<(Vec<String>, Mean)> {
        let varied = self.varied();
        let mut points: Vec<(Vec<String>, Vec<f64>)> = Vec::new();
        let mut places: BTreeMap<Vec<String>, usize> = BTreeMap::new();
        for (options, results) in &self.rows {
            let find = |columns: &[(String, Json)], name: &str| {
                columns.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone())
            };
            let point: Vec<String> =
                varied.iter().map(|name| find(options, name).map_or(String::new(), |v| plain(&v))).collect();
            let at = *places.entry(point).or_insert_with_key(|point| {
                points.push((point.clone(), Vec::new()));
                points.len() - 1
            });
            points[at].1.extend(find(results, metric).and_then(|value| value.as_f64()));
        }
        points.into_iter().map(|(point, values)| (point, stats::confidence(&values))).collect()
    }

    /// The means of `metrics` with their intervals, a row for each combination of the varied options.
    pub(crate) fn text_table(&self, metrics: &[String]) -> Table {
        let known = self.metrics();
        let metrics: Vec<&String> = metrics.iter().filter(|metric| known.contains(metric)).collect();
        let summaries: Vec<_> = metrics.iter().map(|metric| self.summary(metric)).collect();
        let points = summaries.first().map_or(0, Vec::len);
        let rows = (0..points).map(|row| {
            let cells = summaries.iter().map(|summary| mean_text(summary[row].1));
            summaries[0][row].0.iter().cloned().chain(cells).collect()
        });
        let head = self.varied().into_iter().chain(metrics.iter().map(|metric| (*metric).clone())).collect();
        Table { head, rows: rows.collect() }
    }
}

/// A value as people write it.
fn plain(value: &Json) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// `mean ± half of the interval`.
pub(crate) fn mean_text(mean: Mean) -> String {
    let number = |value: f64| match value.abs() {
        n if n >= 100.0 || n == 0.0 => format!("{value:.1}"),
        n if n >= 1.0 => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    };
    match mean {
        None => "–".to_owned(),
        Some((mean, None)) => number(mean),
        Some((mean, Some(half))) => format!("{} ± {}", number(mean), number(half)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_taken_over_the_seeds_of_each_combination() {
        let path = std::env::temp_dir().join(format!("weft-summary-{}.jsonl", std::process::id()));
        let row = |cc: &str, seed: u32, p99: &str| {
            format!(
                "{{\"hosts\":8,\"cc\":\"{cc}\",\"seed\":{seed},\"flows_total\":4,\"fct_us_p99\":{p99},\"sweep\":\"a\"}}\n"
            )
        };
        let failed = "{\"hosts\":8,\"cc\":\"smartt\",\"seed\":9,\"sweep\":\"a\",\"error\":\"killed\"}\n";
        let text =
            [row("nscc", 1, "10.0"), row("nscc", 2, "12.0"), row("smartt", 1, "null"), failed.to_owned()]
                .concat();
        std::fs::write(&path, text).unwrap();
        let table = SweepTable::read(&path).unwrap();
        assert_eq!(table.varied(), ["cc"]);
        assert_eq!(table.metrics(), ["flows_total", "fct_us_p99"]);
        let summary = table.summary("fct_us_p99");
        assert_eq!(summary[1], (vec!["smartt".to_owned()], None));
        let (mean, half) = summary[0].1.unwrap();
        assert!(mean == 11.0 && (half.unwrap() - 12.706).abs() < 1e-9);
        let shown = table.text_table(&["fct_us_p99".to_owned(), "no_such".to_owned()]);
        assert_eq!(shown.head, ["cc", "fct_us_p99"]);
        assert_eq!(shown.rows, [["nscc", "11.000 ± 12.706"], ["smartt", "–"]]);

        std::fs::write(&path, "{\"a\":1}\n").unwrap();
        let error = SweepTable::read(&path).unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(error.ends_with(":1: no column flows_total; expected a row of a sweep"), "{error}");
    }
}
