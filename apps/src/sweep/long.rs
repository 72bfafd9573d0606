//! Long tables: the flows or the samples of all runs in one Parquet file, in the order of the grid. In front of the
//! columns of a single run, each row has the varied options, the seed, and the identity of its run.
//!
//! Each run writes its rows to a file of its own beside its result ([`Places`]); a long table is made from these when the
//! runs are done. Like the table of results, it has the same bytes however the runs were made.

use super::grid::Grid;
use super::results::{Places, Results};
use super::table::{Identities, RUN};
use crate::Failure;
use crate::columnar::{Column, Columns, ROWS_PER_GROUP, Reader, Table, is_parquet};
use crate::output::OutputFile;
use crate::sample;
use parquet::data_type::ByteArray;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf, absolute};

/// The keys of what a long table says about itself: the identity of its sweep, and how many runs it has rows of.
const SWEEP: &str = "weft.sweep";
const RUNS: &str = "weft.runs";

/// The endings of the names of the files of single runs.
const FLOWS: &str = "flows.parquet";
const SAMPLES: &str = "samples";
const PORT_SAMPLES: &str = "samples.ports.parquet";
const FLOW_SAMPLES: &str = "samples.flows.parquet";

/// A long table of a sweep.
#[derive(Debug)]
pub(crate) struct LongTable {
    path: PathBuf,
    /// With what the names of the files of single runs end.
    pub(crate) part: &'static str,
}

/// What is at the place of a long table.
pub(crate) enum Earlier {
    Nothing,
    /// All rows of this sweep.
    Complete,
    /// Rows of these runs, which are runs of this sweep.
    Runs(BTreeSet<String>),
    /// Something else.
    Foreign,
}

/// The long tables that the sweep file of `grid` asks for. The current directory is that of the sweep file, and `out` the
/// table of results.
pub(crate) fn asked_for(grid: &Grid, out: &Path) -> Result<Vec<LongTable>, Failure> {
    let mut tables = Vec::new();
    let mut add = |path: &Path, part| {
        let path = absolute(path).map_err(|e| Failure::at(path, &e))?;
        tables.push(LongTable { path, part });
        Ok::<(), Failure>(())
    };
    if let Some(path) = grid.file().flows()? {
        add(path, FLOWS)?;
    }
    if let Some(prefix) = grid.file().samples(&out.with_extension(""))? {
        let [ports, flows] = sample::paths(prefix);
        add(&ports, PORT_SAMPLES)?;
        add(&flows, FLOW_SAMPLES)?;
    }
    let all: BTreeSet<&Path> = tables.iter().map(|table| table.path.as_path()).chain([out]).collect();
    if all.len() <= tables.len() {
        let what = "the tables of results, of flows and of samples: expected different names";
        return Err(Failure::Usage(format!("{}: {what}", grid.file().name)));
    }
    Ok(tables)
}

/// The options with which run `run` writes the files named by `parts` to `places`.
pub(crate) fn options(parts: &[&str], places: &Places, run: usize) -> Vec<String> {
    let option = |part: &&str| match *part {
        FLOWS => Some(format!("--flows={}", places.part(run, FLOWS).display())),
        PORT_SAMPLES => Some(format!("--sample-file={}", places.part(run, SAMPLES).display())),
        // The same option names both files of samples.
        _ => None,
    };
    parts.iter().filter_map(option).collect()
}

impl LongTable {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Looks at the file at its place, for the sweep of `ids`.
    pub(crate) fn earlier(&self, ids: &Identities) -> Result<Earlier, Failure> {
        if !self.path.exists() {
            return Ok(Earlier::Nothing);
        }
        if !is_parquet(&self.path)? {
            return Ok(Earlier::Foreign);
        }
        let reader = Reader::open(&self.path)?;
        let (Some(sweep), Some(run)) = (reader.metadata(SWEEP), reader.place(RUN)) else {
            return Ok(Earlier::Foreign);
        };
        if sweep == ids.sweep && reader.metadata(RUNS) == Some(&ids.runs.len().to_string()) {
            return Ok(Earlier::Complete);
        }
        let mut runs = BTreeSet::new();
        reader.read(&[run], |batch| {
            for_each_run(&batch[0], |id, _| {
                if !runs.contains(id) {
                    runs.insert(id.to_owned());
                }
                Ok(())
            })
        })?;
        let known: BTreeSet<&str> = ids.runs.iter().map(String::as_str).collect();
        Ok(if runs.iter().all(|id| known.contains(&**id)) { Earlier::Runs(runs) } else { Earlier::Foreign })
    }

    /// Writes the rows of the runs `wanted`, by their identities, to the files of single runs in `places`.
    ///
    /// # Errors
    /// The rows of a run do not follow one another, or a file cannot be read or written.
    pub(crate) fn split(&self, wanted: &BTreeMap<&str, usize>, places: &Places) -> Result<(), Failure> {
        if wanted.is_empty() {
            return Ok(());
        }
        let reader = Reader::open(&self.path)?;
        let Some(first) = reader.place(RUN) else { return Err(reader.refuse("no column 'run'")) };
        let places_of_columns: Vec<usize> = (first..reader.columns().len()).collect();
        let columns = reader.columns()[first + 1..].to_vec();
        let (mut current, mut done) = (None::<(usize, RowsFile)>, BTreeSet::new());
        reader.read(&places_of_columns, |batch| {
            for_each_run(&batch[0], |id, rows| {
                let Some(&run) = wanted.get(id) else { return Ok(()) };
                if current.as_ref().is_none_or(|(at, _)| *at != run) {
                    if !done.insert(run) {
                        return Err(reader.refuse(
                            "rows of one run stand apart; expected a table that a sweep has written",
                        ));
                    }
                    let next = RowsFile::create(places.part(run, self.part), columns.clone())?;
                    if let Some((_, writer)) = current.replace((run, next)) {
                        writer.finish()?;
                    }
                }
                let Some((_, writer)) = &mut current else { return Ok(()) };
                let values: Vec<Column> =
                    batch[1..].iter().map(|column| column.slice(rows.clone())).collect();
                writer.append(&[], &values)
            })
        })?;
        current.map_or(Ok(()), |(_, writer)| writer.finish())
    }

    /// Writes the rows of all runs that are done, some thousand at a time, beside its place, and then renames the file.
    /// Does nothing if no run is done.
    pub(crate) fn write(&self, grid: &Grid, ids: &Identities, results: &Results) -> Result<(), Failure> {
        let done: Vec<usize> = (0..grid.runs()).filter(|run| results.is_done(*run)).collect();
        let metadata = [(SWEEP, ids.sweep.clone()), (RUNS, done.len().to_string())];
        let mut table = None;
        for run in done {
            let part = Reader::open(&results.places().part(run, self.part))?;
            let mut keys = grid.keys(run)?;
            keys.push((RUN.to_owned(), Column::Text(vec![ByteArray::from(&*ids.runs[run])])));
            let table = match &mut table {
                Some(table) => table,
                none => {
                    let columns = [&keys[..], &part.columns()[..]].concat();
                    none.insert(RowsFile::with_metadata(self.path.clone(), columns, &metadata)?)
                }
            };
            let keys: Vec<Column> = keys.into_iter().map(|(_, value)| value).collect();
            let places: Vec<usize> = (0..part.columns().len()).collect();
            part.read(&places, |batch| table.append(&keys, batch))?;
        }
        table.map_or(Ok(()), RowsFile::finish)
    }
}

/// Calls `each` with every identity in `column`, and the rows in which it stands one after the other.
fn for_each_run(
    column: &Column,
    mut each: impl FnMut(&str, Range<usize>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let Column::Text(ids) = column else {
        return Err(Failure::Run("the column 'run' of a table is not text".to_owned()));
    };
    let mut from = 0;
    for rows in ids.chunk_by(|a, b| a == b) {
        each(&String::from_utf8_lossy(rows[0].data()), from..from + rows.len())?;
        from += rows.len();
    }
    Ok(())
}

/// A table that is being written to a file, which appears when it is complete and on the disk.
struct RowsFile {
    path: PathBuf,
    file: OutputFile,
    table: Table<File>,
}

impl RowsFile {
    fn create(path: PathBuf, columns: Columns) -> Result<RowsFile, Failure> {
        RowsFile::with_metadata(path, columns, &[])
    }

    fn with_metadata(
        path: PathBuf,
        columns: Columns,
        metadata: &[(&str, String)],
    ) -> Result<RowsFile, Failure> {
        let file = OutputFile::create(&path).map_err(|e| Failure::at(&path, &e))?;
        let writer = file.writer().map_err(|e| Failure::at(&path, &e))?;
        let table = Table::with_metadata(writer, columns, metadata, ROWS_PER_GROUP);
        let table = table.map_err(|e| Failure::Run(format!("{}: {e}", path.display())))?;
        Ok(RowsFile { path, file, table })
    }

    fn append(&mut self, constants: &[Column], rows: &[Column]) -> Result<(), Failure> {
        let appended = self.table.append(constants, rows);
        appended.map_err(|e| Failure::Run(format!("{}: {e}", self.path.display())))
    }

    fn finish(self) -> Result<(), Failure> {
        let RowsFile { path, file, table } = self;
        table.finish().map_err(|e| Failure::Run(format!("{}: {e}", path.display())))?;
        let synced = file.writer().and_then(|file| file.sync_all());
        synced.and_then(|()| file.commit()).map_err(|e| Failure::at(&path, &e))
    }
}
