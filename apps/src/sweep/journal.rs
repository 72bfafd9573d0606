//! The journal: what of a sweep is done already. A line of JSON for the sweep that it belongs to, then
//! one for each run, written whole as the run ends. Whatever a kill leaves behind is a valid start: a
//! line counts once its end is there, and what follows the last such end is cut off.
//!
//! A sweep has the journal `OUT.journal`, and each shard of it `OUT.journal.I-of-N`. Who writes a journal
//! has a lock on it.

use super::grid::Grid;
use crate::Failure;
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The form of the journal that this version writes.
const FORMAT: u32 = 1;

/// A part of a sweep: the runs whose number leaves `index - 1` when divided by `of`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    /// From 1 to `of`.
    pub(crate) index: usize,
    pub(crate) of: usize,
}

impl Shard {
    pub(crate) fn has(self, run: usize) -> bool {
        run % self.of == self.index - 1
    }
}

impl std::str::FromStr for Shard {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Shard, Self::Err> {
        let numbers = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match numbers {
            Some((index, of)) if (1..=of).contains(&index) => Ok(Shard { index, of }),
            _ => Err("expected I/N with I from 1 to N, such as 1/8"),
        }
    }
}

/// The sweep that a journal belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    /// [`FORMAT`].
    journal: u32,
    /// [`Grid::identity`].
    pub(crate) sweep: String,
    /// The weft that runs it.
    weft: String,
}

impl Header {
    /// The header for `grid`, run by this program.
    pub(crate) fn new(grid: &Grid) -> Result<Header, Failure> {
        let revision = env!("WEFT_GIT_REVISION");
        let weft = format!("{} ({revision})", env!("CARGO_PKG_VERSION")).replace(" ()", "");
        let sweep = grid.identity(&weft).map_err(|e| Failure::Run(format!("hashing the sweep: {e}")))?;
        Ok(Header { journal: FORMAT, sweep, weft })
    }

    /// Why a journal with the header `other` cannot be gone on with.
    fn difference(&self, other: &Header) -> Option<String> {
        if self == other {
            return None;
        }
        Some(if self.weft == other.weft {
            "it is of a sweep with other options, or of files that have changed since".to_owned()
        } else {
            format!("it was written by weft {}, and this is weft {}", other.weft, self.weft)
        })
    }
}

/// What runs cost.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Cost {
    /// CPU time, seconds.
    pub(crate) cpu_s: f64,
    /// The most memory that one process held, 10⁶ bytes.
    pub(crate) max_rss_mb: f64,
}

/// A run that has ended.
#[derive(Debug, Serialize, Deserialize)]
struct Entry<'a> {
    run: usize,
    /// Its row of the table; none if it has failed.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    row: Option<&'a RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(default)]
    cost: Cost,
}

/// Where the line of a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    file: usize,
    offset: u64,
    bytes: usize,
}

/// One journal's contents.
#[derive(Debug, Default)]
struct Contents {
    header: Option<Header>,
    /// Bytes up to the end of the last whole line.
    whole: u64,
    /// Runs with a row, where their lines are, and what they cost.
    rows: Vec<(usize, u64, usize, Cost)>,
    errors: Vec<(usize, String)>,
}

/// Reads a journal of a sweep with `runs` runs, of which any part may be missing at the end. A line
/// that makes no sense counts as a run not done.
fn read(mut journal: impl BufRead, runs: usize) -> io::Result<Contents> {
    let mut contents = Contents::default();
    let mut line = Vec::new();
    while journal.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
        if contents.whole == 0 {
            contents.header = serde_json::from_slice(&line).ok();
        } else if let Ok(entry) = serde_json::from_slice::<Entry>(&line)
            && entry.run < runs
        {
            match (entry.row, entry.error) {
                (Some(_), _) => contents.rows.push((entry.run, contents.whole, line.len(), entry.cost)),
                (None, Some(error)) => contents.errors.push((entry.run, error)),
                (None, None) => {}
            }
        }
        contents.whole += line.len() as u64;
        line.clear();
    }
    Ok(contents)
}

/// All journals of a sweep, and the one to write to.
#[derive(Debug)]
pub(crate) struct Journals {
    header: Header,
    files: Vec<(PathBuf, File)>,
    /// For each run, where its row is.
    places: Vec<Option<Place>>,
    /// Runs that have failed and not been done since.
    errors: BTreeMap<usize, String>,
    /// Of the runs with rows: CPU time in all, and the most memory.
    pub(crate) cost: Cost,
    /// Length of the file written to, which is the first.
    end: u64,
    access: Access,
}

/// What is to be done with the journals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// All of the sweep: no one else may write any of them.
    Whole,
    /// This part of it: others may do other parts.
    Shard(Shard),
}

impl Journals {
    /// Opens the journals of the table `out` for the sweep of `header` with `runs` runs, and creates that
    /// to write to if it is not there.
    pub(crate) fn open(out: &Path, header: Header, runs: usize, access: Access) -> Result<Journals, Failure> {
        let own = match access {
            Access::Whole => suffixed(out, ".journal"),
            Access::Shard(Shard { index, of }) => suffixed(out, &format!(".journal.{index}-of-{of}")),
        };
        let mut journals = Journals {
            header,
            files: vec![(own.clone(), locked(&own)?)],
            places: vec![None; runs],
            errors: BTreeMap::new(),
            cost: Cost::default(),
            end: 0,
            access,
        };
        // After its own lock: of a shard and a whole sweep that start together, at least one sees the other's.
        for path in existing(out).map_err(|e| failed(out, &e))?.into_iter().filter(|path| *path != own) {
            if let Some(file) = other(&path, access, path == suffixed(out, ".journal"))? {
                journals.files.push((path, file));
            }
        }
        Ok(journals)
    }

    /// Reads what is done; `Err` for journals of another sweep.
    pub(crate) fn load(&mut self) -> Result<(), Failure> {
        for file in 0..self.files.len() {
            let (path, journal) = &self.files[file];
            let contents = read(BufReader::new(journal), self.places.len()).map_err(|e| failed(path, &e))?;
            if contents.whole > 0 {
                self.check_header(path, contents.header.as_ref())?;
            }
            if file == 0 {
                journal.set_len(contents.whole).map_err(|e| failed(path, &e))?;
                self.end = contents.whole;
            }
            for (run, offset, bytes, cost) in contents.rows {
                self.done(run, Place { file, offset, bytes }, cost);
            }
            self.errors.extend(contents.errors);
        }
        let done = &self.places;
        self.errors.retain(|run, _| done[*run].is_none());
        Ok(())
    }

    fn check_header(&self, path: &Path, header: Option<&Header>) -> Result<(), Failure> {
        let difference = match header {
            Some(header) => self.header.difference(header),
            None => Some("it is no journal of this version of weft".to_owned()),
        };
        match difference {
            Some(why) => Err(Failure::Run(format!(
                "{}: {why}; remove it (or give --force) to begin anew, or choose another table with --out",
                path.display()
            ))),
            None => Ok(()),
        }
    }

    fn done(&mut self, run: usize, place: Place, cost: Cost) {
        if self.places[run].is_none() {
            self.places[run] = Some(place);
            self.cost.cpu_s += cost.cpu_s;
            self.cost.max_rss_mb = self.cost.max_rss_mb.max(cost.max_rss_mb);
        }
    }

    /// Whether an earlier process has written to the journal that this one writes.
    pub(crate) fn begun(&self) -> bool {
        self.end > 0
    }

    /// Whether run `run` has a row.
    pub(crate) fn has(&self, run: usize) -> bool {
        self.places[run].is_some()
    }

    /// The runs that have failed, and how.
    pub(crate) fn errors(&self) -> &BTreeMap<usize, String> {
        &self.errors
    }

    /// Adds a run that has ended: its row, or how it failed.
    pub(crate) fn append(
        &mut self,
        run: usize,
        outcome: Result<(String, Cost), String>,
    ) -> Result<(), Failure> {
        let path = &self.files[0].0;
        let broken = |e: serde_json::Error| Failure::Run(format!("{}: {e}", path.display()));
        let (row, cost, error) = match outcome {
            Ok((row, cost)) => (Some(RawValue::from_string(row).map_err(broken)?), cost, None),
            Err(error) => (None, Cost::default(), Some(error)),
        };
        let entry = Entry { run, row: row.as_deref(), error: error.clone(), cost };
        let line = serde_json::to_string(&entry).map_err(broken)?;
        if self.end == 0 {
            self.write(&serde_json::to_string(&self.header).map_err(broken)?)?;
        }
        let offset = self.end;
        self.write(&line)?;
        match error {
            Some(error) => _ = self.errors.insert(run, error),
            None => {
                self.errors.remove(&run);
                self.done(run, Place { file: 0, offset, bytes: line.len() + 1 }, cost);
            }
        }
        Ok(())
    }

    /// One call for the whole line: the less often a kill tears one, the better.
    fn write(&mut self, line: &str) -> Result<(), Failure> {
        let (path, file) = &mut self.files[0];
        file.write_all(format!("{line}\n").as_bytes()).map_err(|e| failed(path, &e))?;
        self.end += line.len() as u64 + 1;
        Ok(())
    }

    /// The row of run `run`; none if it has none.
    pub(crate) fn row(&mut self, run: usize) -> Result<Option<String>, Failure> {
        let Some(place) = self.places[run] else { return Ok(None) };
        let (path, file) = &mut self.files[place.file];
        let mut line = vec![0; place.bytes];
        file.seek(SeekFrom::Start(place.offset))
            .and_then(|_| file.read_exact(&mut line))
            .map_err(|e| failed(path, &e))?;
        let entry: Entry = serde_json::from_slice(&line)
            .map_err(|e| Failure::Run(format!("{} has changed while in use: {e}", path.display())))?;
        Ok(entry.row.map(|row| row.get().to_owned()))
    }

    /// Empties them, to begin anew.
    pub(crate) fn discard(&mut self) -> Result<(), Failure> {
        for (path, _) in self.files.drain(1..) {
            fs::remove_file(&path).map_err(|e| failed(&path, &e))?;
        }
        let (path, own) = &self.files[0];
        own.set_len(0).map_err(|e| failed(path, &e))
    }

    /// Removes those that are this process's alone: the table holds all that they did.
    pub(crate) fn remove(mut self) -> Result<(), Failure> {
        // The locks are held until all are gone, so that no one begins with some of them.
        let mut files = std::mem::take(&mut self.files);
        if self.access != Access::Whole {
            files.truncate(1);
        }
        files.iter().try_for_each(|(path, _)| fs::remove_file(path).map_err(|e| failed(path, &e)))
    }
}

impl Drop for Journals {
    /// Leaves no empty journal behind.
    fn drop(&mut self) {
        if let Some((path, file)) = self.files.first()
            && file.metadata().is_ok_and(|own| own.len() == 0)
        {
            let _ = fs::remove_file(path);
        }
    }
}

/// A journal that another part of the sweep wrote; none if it has just been removed. `main` is that of
/// the whole sweep.
fn other(path: &Path, access: Access, main: bool) -> Result<Option<File>, Failure> {
    // Some file systems lend exclusive locks only to those who may write.
    let opened = OpenOptions::new().read(true).append(access == Access::Whole).open(path);
    let file = match opened {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|e| failed(path, &e))?,
    };
    match access {
        Access::Whole => lock(path, &file, FlockOperation::NonBlockingLockExclusive)?,
        // Shards live beside each other, but not beside the whole.
        Access::Shard(_) if main => lock(path, &file, FlockOperation::NonBlockingLockShared)?,
        Access::Shard(_) => {}
    }
    Ok(Some(file))
}

/// Opens the journal `path` for writing, and locks it.
fn locked(path: &Path) -> Result<File, Failure> {
    loop {
        let file = OpenOptions::new().read(true).append(true).create(true).open(path);
        let file = file.map_err(|e| failed(path, &e))?;
        lock(path, &file, FlockOperation::NonBlockingLockExclusive)?;
        // Whoever had the lock may have removed the file before giving it up.
        let held = file.metadata().map_err(|e| failed(path, &e))?;
        if fs::metadata(path).is_ok_and(|named| (named.dev(), named.ino()) == (held.dev(), held.ino())) {
            return Ok(file);
        }
    }
}

/// Takes a lock of POSIX's kind, which ends with the process. One of `flock`'s would be shared with a run
/// just being started, and might so outlive a sweep that is killed.
fn lock(path: &Path, file: &File, how: FlockOperation) -> Result<(), Failure> {
    match fcntl_lock(file, how) {
        Err(Errno::AGAIN | Errno::ACCESS) => Err(Failure::Run(format!(
            "{}: another weft sweep is at work on this table; wait for its end, or choose another table with --out",
            path.display()
        ))),
        outcome => outcome.map_err(|e| failed(path, &e.into())),
    }
}

/// The journals of the table `out` that there are, by name.
fn existing(out: &Path) -> io::Result<Vec<PathBuf>> {
    let main = suffixed(out, ".journal");
    let name = main.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut found = Vec::new();
    for entry in fs::read_dir(out.parent().unwrap_or(Path::new(".")))? {
        let entry = entry?.file_name();
        let is_shard = |rest: &str| rest.strip_prefix('.').is_some_and(|part| part.contains("-of-"));
        match entry.to_string_lossy().strip_prefix(&name) {
            Some(rest) if rest.is_empty() || is_shard(rest) => found.push(main.with_file_name(&entry)),
            _ => {}
        }
    }
    found.sort();
    Ok(found)
}

/// `path` with `suffix` at its end.
pub(crate) fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

pub(crate) fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::Run(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNS: usize = 4;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let dir = std::env::temp_dir().join(format!("weft-journal-{}-{name}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            Scratch(dir)
        }

        fn out(&self) -> PathBuf {
            self.0.join("t.jsonl")
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn header() -> Header {
        Header { journal: FORMAT, sweep: "0123".to_owned(), weft: "9.9".to_owned() }
    }

    fn open(scratch: &Scratch, access: Access) -> Result<Journals, Failure> {
        let mut journals = Journals::open(&scratch.out(), header(), RUNS, access)?;
        journals.load()?;
        Ok(journals)
    }

    fn row(run: usize) -> String {
        format!("{{\"seed\":{run},\"jain\":0.1234567890123456789}}")
    }

    fn finish(journals: &mut Journals) {
        for run in (0..RUNS).rev() {
            if !journals.has(run) {
                journals.append(run, Ok((row(run), Cost { cpu_s: 1.0, max_rss_mb: run as f64 }))).unwrap();
            }
        }
    }

    fn assert_complete(journals: &mut Journals) {
        for run in 0..RUNS {
            assert_eq!(journals.row(run).unwrap(), Some(row(run)));
        }
        assert_eq!((journals.cost.cpu_s, journals.cost.max_rss_mb), (4.0, 3.0));
        assert!(journals.errors().is_empty());
    }

    #[test]
    fn every_prefix_of_a_journal_is_a_valid_start() {
        let scratch = Scratch::new("prefix");
        let path = suffixed(&scratch.out(), ".journal");
        let mut journals = open(&scratch, Access::Whole).unwrap();
        journals.append(2, Err("killed by signal 9".to_owned())).unwrap();
        finish(&mut journals);
        drop(journals);
        let whole = fs::read(&path).unwrap();
        let mut most = 0;
        for length in 0..=whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let mut journals = open(&scratch, Access::Whole).unwrap();
            let done = (0..RUNS).filter(|run| journals.has(*run)).count();
            // The header's line and that of the failed run hold no row.
            let lines = whole[..length].iter().filter(|&&byte| byte == b'\n').count();
            assert_eq!(done, lines.saturating_sub(2), "{length} bytes");
            most = most.max(done);
            finish(&mut journals);
            assert_complete(&mut journals);
            drop(journals);
            assert_complete(&mut open(&scratch, Access::Whole).unwrap());
        }
        assert_eq!(most, RUNS);
    }

    #[test]
    fn a_damaged_line_is_a_run_not_done() {
        let scratch = Scratch::new("damage");
        let path = suffixed(&scratch.out(), ".journal");
        finish(&mut open(&scratch, Access::Whole).unwrap());
        let whole = fs::read(&path).unwrap();
        let first = whole.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        for at in first..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] = 0;
            fs::write(&path, &damaged).unwrap();
            let mut journals = open(&scratch, Access::Whole).unwrap();
            let missing = (0..RUNS).filter(|run| !journals.has(*run)).count();
            assert!((1..=2).contains(&missing), "byte {at}: {missing} runs are missing");
            finish(&mut journals);
            assert_complete(&mut journals);
        }
    }

    #[test]
    fn a_journal_of_another_sweep_is_refused() {
        let scratch = Scratch::new("foreign");
        finish(&mut open(&scratch, Access::Whole).unwrap());
        let refused = |header: Header| {
            let mut journals = Journals::open(&scratch.out(), header, RUNS, Access::Whole).unwrap();
            journals.load().unwrap_err().to_string()
        };
        let other = refused(Header { sweep: "4567".to_owned(), ..header() });
        assert!(other.contains("t.jsonl.journal: it is of a sweep with other options"), "{other}");
        assert!(other.contains("--force") && other.contains("--out"), "{other}");
        let newer = refused(Header { weft: "10".to_owned(), ..header() });
        assert!(newer.contains("it was written by weft 9.9, and this is weft 10; remove it"), "{newer}");

        fs::write(suffixed(&scratch.out(), ".journal"), "a letter\nto someone\n").unwrap();
        let text = open(&scratch, Access::Whole).unwrap_err().to_string();
        assert!(text.contains("it is no journal"), "{text}");
    }

    #[test]
    fn what_other_parts_have_done_counts() {
        let scratch = Scratch::new("parts");
        let shard = |index| Access::Shard(Shard { index, of: 2 });
        let append = |journals: &mut Journals, run| {
            journals.append(run, Ok((row(run), Cost { cpu_s: 1.0, max_rss_mb: run as f64 }))).unwrap();
        };
        append(&mut open(&scratch, shard(1)).unwrap(), 0);
        let mut second = open(&scratch, shard(2)).unwrap();
        assert!(second.has(0));
        append(&mut second, 1);
        drop(second);
        let mut whole = open(&scratch, Access::Whole).unwrap();
        assert!(whole.has(0) && whole.has(1) && !whole.has(2));
        finish(&mut whole);
        assert_complete(&mut whole);
        whole.remove().unwrap();
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 0);
    }

    #[test]
    fn a_failure_counts_until_the_run_is_done() {
        let scratch = Scratch::new("failure");
        let mut journals = open(&scratch, Access::Whole).unwrap();
        journals.append(1, Err("panicked".to_owned())).unwrap();
        drop(journals);
        let mut journals = open(&scratch, Access::Whole).unwrap();
        assert_eq!(journals.errors().get(&1).map(String::as_str), Some("panicked"));
        assert!(!journals.has(1) && journals.row(1).unwrap().is_none());
        journals.append(1, Ok((row(1), Cost::default()))).unwrap();
        assert!(journals.has(1) && journals.errors().is_empty());
        drop(journals);
        assert!(open(&scratch, Access::Whole).unwrap().errors().is_empty());
    }

    #[test]
    fn shards_share_out_all_runs() {
        let shard = |text: &str| text.parse::<Shard>();
        for run in 0..20 {
            let takers = (1..=3).filter(|i| shard(&format!("{i}/3")).unwrap().has(run)).count();
            assert_eq!(takers, 1);
        }
        for wrong in ["", "1", "0/3", "4/3", "1/0", "a/b", "-1/3"] {
            assert!(shard(wrong).is_err(), "{wrong}");
        }
    }
}
