//! The table: a line of JSON for each run, in the order of the grid. It contains nothing that differs between two
//! executions of the same run, so a sweep gives the same bytes on any machine, in any number of shards, and after any
//! number of interruptions.

use super::grid::Grid;
use super::results::{Cost, Results};
use super::suffixed;
use crate::{Failure, text};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value as Json;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;

/// The part of a report that differs at each execution: CPU time and memory.
const COSTS: &str = "engine";
/// The first column of the results.
const FIRST_RESULT: &str = "flows_total";
/// The parts of a report that repeat the run's options.
const OPTIONS: &[&str] = &["config", "seed"];
/// The parts of a report that are lists of links and flows.
const LISTS: &[&str] = &["hot_spots", "unfinished"];
/// The column with the identity of the sweep.
const SWEEP: &str = "sweep";
/// The column with the identity of the run.
pub(super) const RUN: &str = "run";

/// The row and the cost of run `index`, from its JSON report.
pub(crate) fn row(
    grid: &Grid,
    index: usize,
    ids: &Identities,
    report: &[u8],
) -> Result<(String, Cost), String> {
    let unreadable = |e: serde_json::Error| format!("its report is unreadable: {e}");
    let report: Object = serde_json::from_slice(report).map_err(unreadable)?;
    let mut row = Row::new(grid, index);
    let mut cost = Cost::default();
    for (key, value) in report.0 {
        match key.as_str() {
            COSTS => cost = serde_json::from_str(value.get()).map_err(unreadable)?,
            key if OPTIONS.contains(&key) || LISTS.contains(&key) => {}
            key => row.flatten(key, value).map_err(unreadable)?,
        }
    }
    row.add_identities(index, ids);
    Ok((row.end(), cost))
}

/// The identities of a sweep and of its runs.
#[derive(Clone, Debug)]
pub(crate) struct Identities {
    pub(crate) sweep: String,
    pub(crate) runs: Arc<[String]>,
}

/// The rows of the table `out` of an earlier sweep, if each of them is that of a run of `grid` too, as rows of this
/// sweep. `None` if there is any other line.
pub(crate) fn reusable(
    out: &Path,
    grid: &Grid,
    ids: &Identities,
) -> Result<Option<Vec<(usize, String)>>, Failure> {
    let mut file = BufReader::new(File::open(out).map_err(|e| Failure::at(out, &e))?);
    let numbers: BTreeMap<&str, usize> =
        ids.runs.iter().zip(0..).map(|(id, run)| (id.as_str(), run)).collect();
    let (mut rows, mut line) = (Vec::new(), Vec::new());
    loop {
        match text::next_line(&mut file, &mut line) {
            Ok(true) => {}
            Ok(false) => return Ok(Some(rows)),
            Err(e) if e.kind() == io::ErrorKind::InvalidData => return Ok(None),
            Err(e) => return Err(Failure::at(out, &e)),
        }
        let Ok(Object(columns)) = serde_json::from_slice(&line) else { return Ok(None) };
        let id = columns.iter().find(|(name, _)| name == RUN);
        let id = id.and_then(|(_, value)| serde_json::from_str::<String>(value.get()).ok());
        let Some(&run) = id.and_then(|id| numbers.get(id.as_str())) else { return Ok(None) };
        let first = columns.iter().position(|(name, _)| name == FIRST_RESULT);
        // A run that has failed is made again.
        let Some(first) = first else { continue };
        let mut row = Row::new(grid, run);
        for (name, value) in columns[first..].iter().take_while(|(name, _)| name != RUN) {
            let Ok(value) = serde_json::from_str(value.get()) else { return Ok(None) };
            row.add(name, &value);
        }
        row.add_identities(run, ids);
        rows.push((run, row.end()));
    }
}

/// The row of run `index`, which has failed.
fn failure(grid: &Grid, index: usize, ids: &Identities, error: &str) -> String {
    let mut row = Row::new(grid, index);
    row.add_identities(index, ids);
    row.add("error", &error.into());
    row.end()
}

/// A line of JSON that is being built. Columns keep the order in which they are added.
struct Row(String);

impl Row {
    /// A row that begins with the columns of the options.
    fn new(grid: &Grid, index: usize) -> Row {
        let mut row = Row("{".to_owned());
        grid.columns(index).for_each(|(name, value)| row.add(&name, value));
        row
    }

    fn add(&mut self, name: &str, value: &Json) {
        let comma = if self.0.len() > 1 { "," } else { "" };
        self.0 += &format!("{comma}{}:{value}", Json::from(name));
    }

    /// A column for each leaf: `fct_us: { max: 3 }` becomes `fct_us_max: 3`.
    fn flatten(&mut self, name: &str, value: &RawValue) -> serde_json::Result<()> {
        if !value.get().starts_with('{') {
            self.add(name, &serde_json::from_str(value.get())?);
            return Ok(());
        }
        let parts: Object = serde_json::from_str(value.get())?;
        parts.0.into_iter().try_for_each(|(part, value)| self.flatten(&format!("{name}_{part}"), value))
    }

    fn add_identities(&mut self, index: usize, ids: &Identities) {
        self.add(RUN, &ids.runs[index].as_str().into());
        self.add(SWEEP, &ids.sweep.as_str().into());
    }

    fn end(self) -> String {
        self.0 + "}"
    }
}

/// A JSON object whose members keep their order.
pub(super) struct Object<'a>(pub(super) Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members<'a>(PhantomData<&'a ()>);

        impl<'de: 'a, 'a> Visitor<'de> for Members<'a> {
            type Value = Object<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<'a>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Object(members))
            }
        }

        deserializer.deserialize_map(Members(PhantomData))
    }
}

/// The file at the path of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    Nothing,
    /// Another file, or the table of another sweep.
    Foreign,
    /// A table of this sweep in which runs have failed.
    Partial,
    /// The table of this sweep, all runs done.
    Complete,
}

/// Refuses a path that a table cannot be renamed to: a device, a pipe, a directory. `instead` says how to choose another.
pub(crate) fn check_place(out: &Path, instead: &str) -> Result<(), Failure> {
    match fs::metadata(out) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(Failure::at(out, &e)),
        Ok(there) if there.is_file() => Ok(()),
        Ok(_) => {
            Err(Failure::Run(format!("{} is not a regular file; choose another {instead}", out.display())))
        }
    }
}

/// Looks at the file `out` for the table of the sweep `sweep` of `runs` runs.
pub(crate) fn existing(out: &Path, sweep: &str, runs: usize) -> Result<Existing, Failure> {
    let file = match File::open(out) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Existing::Nothing),
        opened => opened.map_err(|e| Failure::at(out, &e))?,
    };
    let last_column = format!("{:?}:{sweep:?}", SWEEP);
    let (mut rows, mut done) = (0, 0);
    let (mut file, mut line) = (BufReader::new(file), Vec::new());
    loop {
        match text::next_line(&mut file, &mut line) {
            Ok(true) => {}
            Ok(false) => break,
            Err(e) if e.kind() == io::ErrorKind::InvalidData => return Ok(Existing::Foreign),
            Err(e) => return Err(Failure::at(out, &e)),
        }
        let Some(line) = str::from_utf8(&line).ok().filter(|line| line.contains(&last_column)) else {
            return Ok(Existing::Foreign);
        };
        rows += 1;
        done += usize::from(line.trim_end_matches('\n').ends_with(&format!("{last_column}}}")));
    }
    Ok(match (rows, done) {
        (0, _) => Existing::Foreign,
        _ if done == runs && rows == runs => Existing::Complete,
        _ => Existing::Partial,
    })
}

/// Totals of a table.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Runs that have a row.
    pub(crate) rows: usize,
    /// Runs in which not all flows have completed.
    pub(crate) unfinished: usize,
    /// Runs that have failed.
    pub(crate) failed: usize,
}

/// The two columns that show whether a run is unfinished.
#[derive(Deserialize)]
struct Flows {
    flows_total: u64,
    flows_completed: u64,
}

/// Writes the table from `results` beside its place, and then renames it: it is never seen half written.
pub(crate) fn write(out: &Path, grid: &Grid, ids: &Identities, results: &Results) -> Result<Tally, Failure> {
    write_rows(out, &suffixed(out, ".new"), grid, ids, results, 0..grid.runs())
}

/// Writes the rows of the runs that have ended to `out`, as [`write`] does. Writes nothing if there are none.
pub(crate) fn write_partial(
    out: &Path,
    grid: &Grid,
    ids: &Identities,
    results: &Results,
) -> Result<Tally, Failure> {
    let ended: Vec<usize> = (0..grid.runs()).filter(|run| results.has_ended(*run)).collect();
    if ended.is_empty() {
        return Ok(Tally::default());
    }
    write_rows(out, &results.partial_draft(), grid, ids, results, ended)
}

/// Writes the rows of `runs` to `draft`, and renames it to `out`.
fn write_rows(
    out: &Path,
    draft: &Path,
    grid: &Grid,
    ids: &Identities,
    results: &Results,
    runs: impl IntoIterator<Item = usize>,
) -> Result<Tally, Failure> {
    let unwritable = |e: io::Error| Failure::at(draft, &e);
    let mut file = BufWriter::new(File::create(draft).map_err(unwritable)?);
    let mut tally = Tally::default();
    for index in runs {
        tally.rows += 1;
        let row = match results.row(index)? {
            Some(row) => {
                let flows = serde_json::from_str::<Flows>(&row).ok();
                tally.unfinished += usize::from(flows.is_some_and(|f| f.flows_completed < f.flows_total));
                row
            }
            None => {
                tally.failed += 1;
                let error = results.errors().get(&index).map_or("not run", String::as_str);
                failure(grid, index, ids, error)
            }
        };
        writeln!(file, "{row}").map_err(unwritable)?;
    }
    let file = file.into_inner().map_err(|e| unwritable(e.into_error()))?;
    file.sync_all().map_err(unwritable)?;
    fs::rename(draft, out).map_err(|e| Failure::at(out, &e))?;
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::super::file::SweepFile;
    use super::*;

    fn grid() -> Grid {
        let text = "[run]\nworkload = 'permutation'\n[vary]\ncc-set = [['a=1', 'b=2']]\nseed = [7, 8]\n";
        Grid::new(SweepFile::parse("s.toml", text).unwrap()).unwrap()
    }

    fn ids() -> Identities {
        Identities { sweep: "abc".to_owned(), runs: ["16".to_owned(), "17".to_owned()].into() }
    }

    #[test]
    fn rows_of_an_earlier_sweep_serve_if_all_of_its_runs_are_runs_of_this_one() {
        let out = std::env::temp_dir().join(format!("weft-reuse-{}.jsonl", std::process::id()));
        let found = |text: &str| {
            fs::write(&out, text).unwrap();
            let found = reusable(&out, &grid(), &ids()).unwrap();
            fs::remove_file(&out).unwrap();
            found
        };
        let row = |run: &str| {
            format!(
                "{{\"seed\":8,\"flows_total\":4,\"jain\":0.10000000000000002,\"run\":\"{run}\",\"sweep\":\"old\"}}\n"
            )
        };
        let expected = "{\"workload\":\"permutation\",\"cc_set\":\"a=1 b=2\",\"seed\":8,\"flows_total\":4,\
                        \"jain\":0.10000000000000002,\"run\":\"17\",\"sweep\":\"abc\"}";
        assert_eq!(found(&row("17")), Some(vec![(1, expected.to_owned())]));
        assert_eq!(found(&(row("17") + &row("18"))), None);
        assert_eq!(
            found("{\"seed\":8,\"run\":\"17\",\"sweep\":\"old\",\"error\":\"killed\"}\n"),
            Some(vec![])
        );
        assert_eq!(found("my notes\n"), None);
    }

    #[test]
    fn a_row_has_parameters_and_results_but_no_costs() {
        let report = br#"{ "flows": { "total": 4, "completed": 3 }, "fct_us": { "p99": 1.4812800000000002 },
            "jain": null, "shares": [ 1,
            0.5 ], "engine": { "events": 9, "cpu_s": 0.5, "max_rss_mb": 7.25 },
            "config": { "cc": "nscc" }, "seed": 8 }"#;
        let (row, cost) = row(&grid(), 1, &ids(), report).unwrap();
        assert_eq!(
            row,
            "{\"workload\":\"permutation\",\"cc_set\":\"a=1 b=2\",\"seed\":8,\"flows_total\":4,\"flows_completed\":3,\
             \"fct_us_p99\":1.4812800000000002,\"jain\":null,\"shares\":[1,0.5],\"run\":\"17\",\"sweep\":\"abc\"}"
        );
        assert_eq!((cost.cpu_s, cost.max_rss_mb), (0.5, 7.25));
        assert!(super::row(&grid(), 1, &ids(), b"{ \"flows\": 1").unwrap_err().contains("unreadable"));
    }

    #[test]
    fn a_table_is_complete_partial_or_of_another_sweep() {
        let out = std::env::temp_dir().join(format!("weft-table-{}.jsonl", std::process::id()));
        let good = "{\"seed\":1,\"sweep\":\"abc\"}\n";
        let bad = format!("{}\n", failure(&grid(), 1, &ids(), "panicked"));
        assert_eq!(
            bad,
            "{\"workload\":\"permutation\",\"cc_set\":\"a=1 b=2\",\"seed\":8,\"run\":\"17\",\"sweep\":\"abc\",\"error\":\"panicked\"}\n"
        );
        let cases = [
            (String::new(), Existing::Foreign),
            ("{\"seed\":1,\"sweep\":\"abd\"}\n".to_owned(), Existing::Foreign),
            (format!("{good}# mine\n"), Existing::Foreign),
            (good.to_owned(), Existing::Partial),
            (format!("{good}{bad}"), Existing::Partial),
            (format!("{good}{good}"), Existing::Complete),
            (format!("{good}{good}{good}"), Existing::Partial),
            (format!("{good}{}{good}", " ".repeat(2 << 20)), Existing::Foreign),
        ];
        for (text, expected) in cases {
            fs::write(&out, &text).unwrap();
            assert_eq!(existing(&out, "abc", 2).unwrap(), expected, "{text:?}");
        }
        fs::remove_file(&out).unwrap();
        assert_eq!(existing(&out, "abc", 2).unwrap(), Existing::Nothing);
    }
}
