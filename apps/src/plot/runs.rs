//! Tables of all runs of a sweep: their rows by combination of the varied options.

use crate::Failure;
use crate::columnar::Reader;
use std::collections::BTreeMap;
use std::path::Path;

/// The column with the identity of a row's run. The columns before it are the varied options and the seed.
const RUN: &str = "run";
/// The option over which runs are put together.
const SEED: &str = "seed";
/// The most combinations that have curves: more cannot be told apart.
pub(super) const COMBINATIONS: usize = 21;

/// A table of all runs of a sweep.
pub(super) struct RunsTable {
    reader: Reader,
    /// The places of the columns of the varied options.
    varied: Vec<usize>,
    run: usize,
}

/// Successive rows of one run.
pub(super) struct Rows<'a> {
    /// The values of the varied options; without any, an empty text.
    pub(super) combination: &'a str,
    pub(super) run: &'a str,
    /// The columns that were asked for.
    pub(super) columns: Vec<&'a [f64]>,
}

impl RunsTable {
    /// The table `path`; `None` if it is that of a single run.
    pub(super) fn open(path: &Path) -> Result<Option<RunsTable>, Failure> {
        let reader = Reader::open(path)?;
        let Some(run) = reader.place(RUN) else { return Ok(None) };
        let varied = (0..run).filter(|place| reader.columns()[*place].0 != SEED).collect();
        Ok(Some(RunsTable { reader, varied, run }))
    }

    /// The names of the varied options, as titles have them.
    pub(super) fn varied(&self) -> String {
        let names: Vec<&str> =
            self.varied.iter().map(|place| self.reader.columns()[*place].0.as_str()).collect();
        names.join(", ")
    }

    /// Passes on the numbers in `columns`, some rows of one run at a time.
    pub(super) fn read(
        &self,
        columns: &[&str],
        mut each: impl FnMut(&Rows<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let place = |name: &&str| {
            self.reader.place(name).ok_or_else(|| self.reader.refuse(format!("no column '{name}'")))
        };
        let columns = columns.iter().map(place).collect::<Result<Vec<_>, _>>()?;
        let places = [&[self.run], &self.varied[..], &columns].concat();
        self.reader.read(&places, |batch| {
            let runs = batch[0].words();
            let (keys, columns) = batch[1..].split_at(self.varied.len());
            let numbers: Vec<Vec<f64>> = columns.iter().map(|column| column.numbers()).collect();
            let mut from = 0;
            for run in runs.chunk_by(|a, b| a == b) {
                let rows = from..from + run.len();
                let words: Vec<String> =
                    keys.iter().flat_map(|key| key.slice(from..from + 1).words()).collect();
                each(&Rows {
                    combination: &words.join(", "),
                    run: &run[0],
                    columns: numbers.iter().map(|column| &column[rows.clone()]).collect(),
                })?;
                from = rows.end;
            }
            Ok(())
        })
    }
}

/// The mean over the runs of each combination of what happens at each time.
#[derive(Default)]
pub(super) struct OverTime {
    /// In the order of the table.
    pub(super) combinations: Vec<(String, Means)>,
    /// The run that is being read, the place of its combination, and its values at each time in picoseconds.
    current: Option<(String, usize, BTreeMap<u64, Vec<f64>>)>,
}

/// Sums over the runs of a combination.
#[derive(Default)]
pub(super) struct Means {
    runs: usize,
    /// By time in picoseconds.
    at: BTreeMap<u64, Vec<f64>>,
}

impl OverTime {
    /// The values at the time `at_us` of the run to which `rows` belong. They begin as `empty`.
    pub(super) fn at(&mut self, rows: &Rows<'_>, at_us: f64, empty: &[f64]) -> &mut Vec<f64> {
        if self.current.as_ref().is_none_or(|(run, ..)| run != rows.run) {
            self.end_run();
            let known = self.combinations.iter().position(|(name, _)| name == rows.combination);
            let place = known.unwrap_or_else(|| {
                self.combinations.push((rows.combination.to_owned(), Means::default()));
                self.combinations.len() - 1
            });
            self.current = Some((rows.run.to_owned(), place, BTreeMap::new()));
        }
        let times = &mut self.current.get_or_insert_with(Default::default).2;
        times.entry((at_us * 1e6).round() as u64).or_insert_with(|| empty.to_vec())
    }

    /// Adds the values of the run that has been read to those of its combination.
    pub(super) fn end_run(&mut self) {
        let Some((_, place, mut times)) = self.current.take() else { return };
        let means = &mut self.combinations[place].1;
        means.runs += 1;
        let before = times.keys().scan(0, |before, at| Some(at - std::mem::replace(before, *at)));
        let mut intervals: Vec<u64> = before.collect();
        // The last interval of a run may be shorter, and other runs have none that ends with it.
        let last = intervals.pop();
        if last < intervals.into_iter().min() {
            times.pop_last();
        }
        for (time, values) in times {
            let sums = means.at.entry(time).or_insert_with(|| vec![0.0; values.len()]);
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
    }
}

impl Means {
    /// The times in microseconds.
    pub(super) fn times(&self) -> Vec<f64> {
        self.at.keys().map(|time| *time as f64 / 1e6).collect()
    }

    /// The mean of value `column` at each time. A run without a row then has the value 0.
    pub(super) fn mean(&self, column: usize) -> Vec<(f64, Vec<f64>)> {
        let mean =
            |(time, sums): (&u64, &Vec<f64>)| (*time as f64 / 1e6, vec![sums[column] / self.runs as f64]);
        self.at.iter().map(mean).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_means_over_the_runs_without_their_last_short_interval() {
        let mut over_time = OverTime::default();
        let mut add = |combination, run, at: &[(f64, f64)]| {
            for (at, value) in at {
                let rows = Rows { combination, run, columns: Vec::new() };
                over_time.at(&rows, *at, &[0.0])[0] += value;
            }
        };
        add("nscc", "1", &[(5.0, 1.0), (5.0, 1.0), (10.0, 4.0), (12.0, 9.0)]);
        add("nscc", "2", &[(5.0, 4.0)]);
        add("smartt", "3", &[(5.0, 7.0), (10.0, 7.0)]);
        over_time.end_run();
        let names: Vec<&str> = over_time.combinations.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["nscc", "smartt"]);
        assert_eq!(over_time.combinations[0].1.mean(0), [(5.0, vec![3.0]), (10.0, vec![2.0])]);
        assert_eq!(over_time.combinations[1].1.times(), [5.0, 10.0]);
    }
}
