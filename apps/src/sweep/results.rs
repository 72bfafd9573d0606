//! The results of a sweep on disk: one file per finished run, in the directory `OUT.runs` beside the table `OUT`; and,
//! for each of the long tables that the sweep is to write, a file with the run's rows.
//!
//! A result file is written beside its place and renamed, so it is either whole or absent. A sweep resumes with the
//! runs that have no whole result file, or lack the rows of a long table; it can therefore be killed at any moment. Every
//! result file names its sweep and the long tables that its run wrote rows of, so the results of two sweeps cannot be
//! mixed.
//!
//! A POSIX lock on `OUT.runs/lock` keeps a second sweep away. Shards share that lock, and each holds its own besides.

use super::grid::{Grid, Shard};
use super::suffixed;
use crate::Failure;
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How often to try to lock a file that other processes keep removing.
const MAX_TRIES: u32 = 100;
/// The end of the name of every draft of a partial table.
const PARTIAL_DRAFT: &str = "partial.new";

/// The sweep that results belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// [`Grid::identity`].
    pub(crate) sweep: String,
    /// Version and revision of the weft that made the results.
    pub(crate) weft: String,
}

impl Header {
    /// The header for `grid`, run by this program.
    pub(crate) fn new(grid: &Grid) -> Result<Header, Failure> {
        let weft = version();
        let sweep = grid.identity(&weft).map_err(|e| Failure::Run(format!("hashing the sweep: {e}")))?;
        Ok(Header { sweep, weft })
    }

    /// Why `result` does not belong to this sweep; `None` if it does.
    fn difference(&self, result: &RunResult) -> Option<String> {
        if self.weft != result.weft {
            return Some(format!("it was written by weft {}, and this is weft {}", result.weft, self.weft));
        }
        (self.sweep != result.sweep)
            .then(|| "it is of a sweep with other options, or of files that have changed since".to_owned())
    }
}

/// Version and revision of this program.
pub(crate) fn version() -> String {
    format!("{} ({})", env!("CARGO_PKG_VERSION"), env!("WEFT_GIT_REVISION")).replace(" ()", "")
}

/// The resources that runs took.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Cost {
    /// CPU time, seconds.
    pub(crate) cpu_s: f64,
    /// The most memory that one process held, 10⁶ bytes.
    pub(crate) max_rss_mb: f64,
}

impl Cost {
    fn add(&mut self, other: Cost) {
        self.cpu_s += other.cpu_s;
        self.max_rss_mb = self.max_rss_mb.max(other.max_rss_mb);
    }
}

/// The outcome of a run: its row of the table and its cost, or the reason why it failed.
pub(crate) type Outcome = Result<(String, Cost), String>;

/// The contents of a result file.
#[derive(Debug, Serialize, Deserialize)]
struct RunResult {
    /// The two fields of [`Header`].
    sweep: String,
    weft: String,
    /// The run's row of the table; `None` if the run has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    row: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(default)]
    cost: Cost,
    /// The endings of the names of the files with rows that this run wrote. A file with another ending is that of an earlier
    /// run, which may be of another sweep.
    #[serde(default)]
    parts: Vec<Cow<'static, str>>,
}

/// The results of a sweep, and the right to add to them.
#[derive(Debug)]
pub(crate) struct Results {
    directory: PathBuf,
    header: Header,
    /// The endings of the names of the files with rows that each run has.
    parts: Vec<&'static str>,
    /// The part of the runs that this process makes; `None` for all runs.
    shard: Option<Shard>,
    /// Shared for a shard, else exclusive.
    lock: File,
    /// A shard's own lock, which keeps the same shard from being made twice at a time.
    _shard_lock: Option<File>,
    /// For each run, whether it has a row.
    done: Vec<bool>,
    /// Runs that have failed, with the reasons.
    errors: BTreeMap<usize, String>,
    /// Of all runs that have a row.
    pub(crate) cost: Cost,
}

impl Results {
    /// Locks the results of the table `out` for the sweep `header` of `runs` runs, and creates their directory if there
    /// is none.
    ///
    /// # Errors
    /// Another process works on them, or an earlier version of weft has left a journal.
    pub(crate) fn open(
        out: &Path,
        header: Header,
        runs: usize,
        parts: Vec<&'static str>,
        shard: Option<Shard>,
    ) -> Result<Results, Failure> {
        refuse_journal(out)?;
        let directory = suffixed(out, ".runs");
        let lock_with = |name: &str, how| locked(out, &directory, name, how);
        let (lock, shard_lock) = match shard {
            None => (lock_with("lock", FlockOperation::NonBlockingLockExclusive)?, None),
            Some(Shard { index, of }) => (
                lock_with("lock", FlockOperation::NonBlockingLockShared)?,
                Some(lock_with(&format!("{index}-of-{of}.lock"), FlockOperation::NonBlockingLockExclusive)?),
            ),
        };
        let (done, errors) = (vec![false; runs], BTreeMap::new());
        Ok(Results {
            directory,
            header,
            parts,
            shard,
            lock,
            _shard_lock: shard_lock,
            done,
            errors,
            cost: Cost::default(),
        })
    }

    /// Reads which runs have a result. A damaged file counts as a run without one. May be called again, to find the
    /// results of other shards.
    ///
    /// # Errors
    /// The results are those of another sweep.
    pub(crate) fn load(&mut self) -> Result<(), Failure> {
        for name in self.names()? {
            let Some(run) = name.strip_suffix(".json").and_then(|run| run.parse::<usize>().ok()) else {
                continue;
            };
            let path = self.directory.join(&name);
            let bytes = fs::read(&path).map_err(|e| Failure::at(&path, &e))?;
            let Ok(result) = serde_json::from_slice::<RunResult>(&bytes) else { continue };
            if let Some(why) = self.header.difference(&result) {
                return Err(Failure::Run(format!(
                    "{}: {why}; remove it (or give --force) to begin anew, or choose another table with --out",
                    self.directory.display()
                )));
            }
            let is_there = |part: &&str| {
                result.parts.iter().any(|written| written == part) && self.places().part(run, part).is_file()
            };
            let is_whole = || self.parts.iter().all(is_there);
            if run < self.done.len() && (result.row.is_none() || is_whole()) {
                self.note(run, result);
            }
        }
        Ok(())
    }

    fn note(&mut self, run: usize, result: RunResult) {
        match (result.row, result.error) {
            (Some(_), _) => {
                if !self.done[run] {
                    self.cost.add(result.cost);
                }
                self.done[run] = true;
                self.errors.remove(&run);
            }
            (None, Some(error)) => _ = self.errors.insert(run, error),
            (None, None) => {}
        }
    }

    /// The runs that are this process's to make, done or not.
    fn own_runs(&self) -> impl Iterator<Item = usize> {
        let shard = self.shard;
        (0..self.done.len()).filter(move |run| shard.is_none_or(|shard| shard.has(*run)))
    }

    /// Whether an earlier process has made any of the runs that are this process's to make.
    pub(crate) fn begun(&self) -> bool {
        self.own_runs().any(|run| self.has_ended(run))
    }

    /// The runs that are left for this process to make.
    pub(crate) fn to_do(&self) -> Vec<usize> {
        self.own_runs().filter(|run| !self.done[*run]).collect()
    }

    /// Whether run `run` has a row or has failed.
    pub(crate) fn has_ended(&self, run: usize) -> bool {
        self.done[run] || self.errors.contains_key(&run)
    }

    /// The runs that have failed, with the reasons.
    pub(crate) fn errors(&self) -> &BTreeMap<usize, String> {
        &self.errors
    }

    /// Writes the result of a run: its row, or why it failed.
    pub(crate) fn add(&mut self, run: usize, outcome: Outcome) -> Result<(), Failure> {
        let path = self.path_of(run);
        let unwritable = |e: io::Error| Failure::at(&path, &e);
        let (row, cost, error) = match outcome {
            Ok((row, cost)) => {
                // The result file says that these are whole, so they go to the disk before it.
                for part in &self.parts {
                    let part = self.places().part(run, part);
                    File::open(&part).and_then(|file| file.sync_all()).map_err(|e| Failure::at(&part, &e))?;
                }
                (Some(RawValue::from_string(row).map_err(|e| unwritable(e.into()))?), cost, None)
            }
            Err(error) => (None, Cost::default(), Some(error)),
        };
        let Header { sweep, weft } = self.header.clone();
        let parts = self.parts.iter().copied().map(Cow::Borrowed).collect();
        let result = RunResult { sweep, weft, row, error, cost, parts };
        let bytes = serde_json::to_vec(&result).map_err(|e| unwritable(e.into()))?;
        let draft = suffixed(&path, ".new");
        fs::write(&draft, bytes).and_then(|()| fs::rename(&draft, &path)).map_err(unwritable)?;
        self.note(run, result);
        Ok(())
    }

    /// The row of run `run`; `None` if it has none.
    pub(crate) fn row(&self, run: usize) -> Result<Option<String>, Failure> {
        if !self.done[run] {
            return Ok(None);
        }
        let path = self.path_of(run);
        let bytes = fs::read(&path).map_err(|e| Failure::at(&path, &e))?;
        let result: RunResult = serde_json::from_slice(&bytes)
            .map_err(|e| Failure::Run(format!("{} has changed while in use: {e}", path.display())))?;
        Ok(result.row.map(|row| row.get().to_owned()))
    }

    /// Whether run `run` has a row.
    pub(crate) fn is_done(&self, run: usize) -> bool {
        self.done[run]
    }

    /// The endings of the names of the files with rows that each run has.
    pub(crate) fn parts(&self) -> &[&'static str] {
        &self.parts
    }

    /// Where runs write their rows of long tables.
    pub(crate) fn places(&self) -> Places {
        Places(self.directory.clone())
    }

    /// Removes all results, to begin anew.
    pub(crate) fn discard(&mut self) -> Result<(), Failure> {
        for name in self.names()?.iter().filter(|name| is_result(name) || is_part(name)) {
            let path = self.directory.join(name);
            fs::remove_file(&path).map_err(|e| Failure::at(&path, &e))?;
        }
        Ok(())
    }

    /// Removes the results of a sweep whose table is complete, unless another shard is still at work.
    pub(crate) fn remove(mut self) -> Result<(), Failure> {
        if self.is_alone() { self.discard() } else { Ok(()) }
    }

    /// Whether no other process works on the sweep, which it then cannot begin to do either.
    fn is_alone(&self) -> bool {
        fcntl_lock(&self.lock, FlockOperation::NonBlockingLockExclusive).is_ok()
    }

    /// The place of the draft of a partial table. Each shard has its own, because several may be interrupted at once.
    pub(crate) fn partial_draft(&self) -> PathBuf {
        let shard = self.shard.map(|Shard { index, of }| format!("{index}-of-{of}."));
        self.directory.join(shard.unwrap_or_default() + PARTIAL_DRAFT)
    }

    fn path_of(&self, run: usize) -> PathBuf {
        self.directory.join(format!("{run}.json"))
    }

    /// The names of all files in the directory.
    fn names(&self) -> Result<Vec<String>, Failure> {
        let entries = fs::read_dir(&self.directory).map_err(|e| Failure::at(&self.directory, &e))?;
        let names = entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()));
        Ok(names.collect())
    }
}

impl Drop for Results {
    /// Removes the directory if it holds no results. A failure to do so harms nobody.
    fn drop(&mut self) {
        let is_empty =
            |results: &Results| results.names().is_ok_and(|names| !names.iter().any(|name| is_result(name)));
        // Looked at again with the lock held: another shard may have added a result meanwhile.
        if !is_empty(self) || !self.is_alone() || !is_empty(self) {
            return;
        }
        let names = self.names().unwrap_or_default();
        let ours = |name: &&String| name.ends_with(".lock") || name.ends_with(PARTIAL_DRAFT) || is_part(name);
        for name in names.iter().filter(ours) {
            let _ = fs::remove_file(self.directory.join(name));
        }
        // The lock itself goes last: until then, nobody can begin.
        let _ = fs::remove_file(self.directory.join("lock")).and_then(|()| fs::remove_dir(&self.directory));
    }
}

/// The directory in which runs write their rows of long tables.
#[derive(Clone, Debug)]
pub(crate) struct Places(PathBuf);

impl Places {
    /// The file with the rows of run `run` whose name ends with `part`.
    pub(crate) fn part(&self, run: usize, part: &str) -> PathBuf {
        self.0.join(format!("{run}.{part}"))
    }
}

/// Whether `name` is that of a file with rows of a run, or of one that a run had begun when it was killed.
fn is_part(name: &str) -> bool {
    let begun = name.strip_prefix('.').filter(|name| name.ends_with(".part"));
    let whole = begun.or_else(|| Some(name).filter(|name| name.ends_with(".parquet")));
    let run = whole.and_then(|name| name.split_once('.'));
    run.is_some_and(|(run, rest)| run.parse::<usize>().is_ok() && rest.contains(".parquet"))
}

/// Whether `name` is that of a result file, or of the draft of one.
fn is_result(name: &str) -> bool {
    let run = name.trim_end_matches(".new").strip_suffix(".json");
    run.is_some_and(|run| run.parse::<usize>().is_ok())
}

/// Refuses to begin beside the journal of an earlier version of weft, in which it kept all results of a sweep.
fn refuse_journal(out: &Path) -> Result<(), Failure> {
    let journal = suffixed(out, ".journal");
    let name = journal.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let directory = out.parent().unwrap_or(Path::new("."));
    let is_journal = |found: &str| {
        found
            .strip_prefix(&name)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.') && rest.contains("-of-"))
    };
    for entry in fs::read_dir(directory).map_err(|e| Failure::at(out, &e))? {
        let found = entry.map_err(|e| Failure::at(out, &e))?.file_name();
        if is_journal(&found.to_string_lossy()) {
            return Err(Failure::Run(format!(
                "{}: an earlier version of weft began this sweep, and only that version can go on with it; remove the \
                 journal to begin anew, or choose another table with --out",
                journal.with_file_name(&found).display()
            )));
        }
    }
    Ok(())
}

/// Opens and locks the file `name` in `directory`, and creates both if they are absent. `out` is the sweep's table.
fn locked(out: &Path, directory: &Path, name: &str, how: FlockOperation) -> Result<File, Failure> {
    let path = directory.join(name);
    for _ in 0..MAX_TRIES {
        match fs::create_dir(directory) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(Failure::at(out, &e)),
            _ => {}
        }
        // Some file systems lend exclusive locks only to those who may write.
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = match opened {
            // Another process has removed the directory after the call above.
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            opened => opened.map_err(|e| Failure::at(&path, &e))?,
        };
        // POSIX locks end with the process. A run that is just being started would inherit one of `flock`'s kind, and
        // might keep it when the sweep is killed.
        match fcntl_lock(&file, how) {
            Err(Errno::AGAIN | Errno::ACCESS) => {
                return Err(Failure::Run(format!(
                    "{}: another weft sweep is at work on this table; wait for its end, or choose another table with --out",
                    out.display()
                )));
            }
            outcome => outcome.map_err(|e| Failure::at(&path, &e.into()))?,
        }
        // The process that had the lock may have removed the file before it let go of the lock.
        let held = file.metadata().map_err(|e| Failure::at(&path, &e))?;
        if fs::metadata(&path).is_ok_and(|named| (named.dev(), named.ino()) == (held.dev(), held.ino())) {
            return Ok(file);
        }
    }
    Err(Failure::at(&path, &io::Error::other("other processes keep removing it")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    const RUNS: usize = 4;

    fn scratch() -> TempDir {
        tempfile::tempdir().unwrap()
    }

    fn out(scratch: &TempDir) -> PathBuf {
        scratch.path().join("t.jsonl")
    }

    /// The result file of run `run`.
    fn file_of(scratch: &TempDir, run: usize) -> PathBuf {
        scratch.path().join(format!("t.jsonl.runs/{run}.json"))
    }

    fn header() -> Header {
        Header { sweep: "0123".to_owned(), weft: "9.9".to_owned() }
    }

    fn open_with(scratch: &TempDir, header: Header, shard: Option<Shard>) -> Result<Results, Failure> {
        let mut results = Results::open(&out(scratch), header, RUNS, Vec::new(), shard)?;
        results.load()?;
        Ok(results)
    }

    fn open(scratch: &TempDir, shard: Option<Shard>) -> Results {
        open_with(scratch, header(), shard).unwrap()
    }

    fn row(run: usize) -> String {
        format!("{{\"seed\":{run},\"jain\":0.1234567890123456789}}")
    }

    fn add(results: &mut Results, run: usize) {
        results.add(run, Ok((row(run), Cost { cpu_s: 1.0, max_rss_mb: run as f64 }))).unwrap();
    }

    fn finish(results: &mut Results) {
        for run in (0..RUNS).rev() {
            if !results.done[run] {
                add(results, run);
            }
        }
    }

    fn assert_complete(results: &Results) {
        for run in 0..RUNS {
            assert_eq!(results.row(run).unwrap(), Some(row(run)));
        }
        assert_eq!((results.cost.cpu_s, results.cost.max_rss_mb), (4.0, 3.0));
        assert!(results.errors().is_empty());
    }

    #[test]
    fn a_sweep_resumes_from_any_set_of_result_files() {
        for kept in 0..1 << RUNS {
            let scratch = scratch();
            finish(&mut open(&scratch, None));
            let is_kept = |run: usize| kept >> run & 1 == 1;
            for run in (0..RUNS).filter(|run| !is_kept(*run)) {
                fs::remove_file(file_of(&scratch, run)).unwrap();
            }
            let mut results = open(&scratch, None);
            assert!((0..RUNS).all(|run| results.done[run] == is_kept(run)));
            assert_eq!(results.begun(), kept != 0);
            finish(&mut results);
            assert_complete(&results);
            drop(results);
            assert_complete(&open(&scratch, None));
        }
    }

    #[test]
    fn a_run_whose_result_file_is_damaged_is_made_again() {
        let scratch = scratch();
        finish(&mut open(&scratch, None));
        let path = file_of(&scratch, 2);
        let whole = fs::read(&path).unwrap();
        // A crash of the machine may leave a part of the file, or zeros.
        let cut = (0..whole.len()).map(|length| whole[..length].to_vec());
        let zeroed = (0..whole.len()).map(|at| {
            let mut bytes = whole.clone();
            bytes[at] = 0;
            bytes
        });
        for damaged in cut.chain(zeroed) {
            fs::write(&path, &damaged).unwrap();
            let mut results = open(&scratch, None);
            let missing: Vec<usize> = (0..RUNS).filter(|run| !results.done[*run]).collect();
            assert_eq!(missing, [2], "{}", String::from_utf8_lossy(&damaged));
            finish(&mut results);
            assert_complete(&results);
        }
    }

    #[test]
    fn a_draft_left_by_a_killed_sweep_is_no_result() {
        let scratch = scratch();
        finish(&mut open(&scratch, None));
        fs::rename(file_of(&scratch, 1), suffixed(&file_of(&scratch, 1), ".new")).unwrap();
        let mut results = open(&scratch, None);
        assert!(!results.done[1]);
        finish(&mut results);
        assert_complete(&results);
        fs::write(suffixed(&file_of(&scratch, 3), ".new"), "{").unwrap();
        results.remove().unwrap();
        assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0);
    }

    #[test]
    fn results_of_another_sweep_are_refused() {
        let scratch = scratch();
        finish(&mut open(&scratch, None));
        let refused = |header: Header| open_with(&scratch, header, None).unwrap_err().to_string();
        let other = refused(Header { sweep: "4567".to_owned(), ..header() });
        assert!(other.contains("t.jsonl.runs: it is of a sweep with other options"), "{other}");
        assert!(other.contains("--force") && other.contains("--out"), "{other}");
        let newer = refused(Header { weft: "10".to_owned(), ..header() });
        assert!(newer.contains("it was written by weft 9.9, and this is weft 10; remove it"), "{newer}");
    }

    #[test]
    fn the_journal_of_an_earlier_version_is_refused_and_kept() {
        for name in ["t.jsonl.journal", "t.jsonl.journal.2-of-3"] {
            let scratch = scratch();
            let journal = scratch.path().join(name);
            fs::write(&journal, "{}\n").unwrap();
            fs::write(scratch.path().join("t.jsonl.journals"), "not a journal").unwrap();
            let error = open_with(&scratch, header(), None).unwrap_err().to_string();
            assert!(
                error.contains(&format!("{name}: an earlier version of weft began this sweep")),
                "{error}"
            );
            assert!(error.contains("remove the journal") && error.contains("--out"), "{error}");
            fs::remove_file(journal).unwrap();
            open(&scratch, None);
        }
    }

    #[test]
    fn the_results_of_all_shards_are_found() {
        let scratch = scratch();
        let shard = |index| Some(Shard { index, of: 2 });
        add(&mut open(&scratch, shard(1)), 0);
        let mut second = open(&scratch, shard(2));
        assert!(second.done[0] && !second.begun(), "run 0 is not one of this shard's");
        add(&mut second, 1);
        drop(second);
        let mut whole = open(&scratch, None);
        assert!(whole.done[0] && whole.done[1] && !whole.done[2]);
        finish(&mut whole);
        assert_complete(&whole);
        whole.remove().unwrap();
        assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_without_results_is_removed() {
        let scratch = scratch();
        drop(open(&scratch, None));
        drop(open(&scratch, Some(Shard { index: 1, of: 2 })));
        assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0);
        // A file that is not the sweep's stays.
        let mut results = open(&scratch, None);
        fs::write(scratch.path().join("t.jsonl.runs/notes.txt"), "mine").unwrap();
        finish(&mut results);
        results.remove().unwrap();
        assert_eq!(fs::read(scratch.path().join("t.jsonl.runs/notes.txt")).unwrap(), b"mine");
    }

    #[test]
    fn a_failure_counts_until_the_run_is_done() {
        let scratch = scratch();
        let mut results = open(&scratch, None);
        results.add(1, Err("panicked".to_owned())).unwrap();
        drop(results);
        let mut results = open(&scratch, None);
        assert_eq!(results.errors().get(&1).map(String::as_str), Some("panicked"));
        assert!(!results.done[1] && results.has_ended(1) && results.row(1).unwrap().is_none());
        results.add(1, Ok((row(1), Cost::default()))).unwrap();
        assert!(results.done[1] && results.errors().is_empty());
        drop(results);
        assert!(open(&scratch, None).errors().is_empty());
    }
}
