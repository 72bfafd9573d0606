//! `weft sweep`: a grid of runs over all cores, and one table of their results.

mod args;
mod file;
mod grid;
mod long;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod properties;
mod results;
mod slurm;
mod summary;
mod table;
mod workers;

pub(crate) use args::SweepArgs;
pub(crate) use grid::identity_of;
pub(crate) use results::version;
pub(crate) use summary::{SweepTable, mean_text};
pub(crate) use workers::{complaint, spawn_run};

use crate::Failure;
use crate::interrupt::Interrupt;
use crate::options::RunArgs;
use crate::resolve::resolve;
use crate::{run, text};
use file::SweepFile;
use grid::{Grid, Shard};
use long::{Earlier, LongTable};
use results::{Cost, Header, Results};
use std::num::NonZero;
use std::path::{Path, PathBuf, absolute};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use std::{env, fs, io, thread};
use table::{Existing, Identities, Tally};

/// A sweep file and the table that it produces. The current directory is that of the sweep file, because the names of
/// files in it are relative to it.
struct Sweep {
    grid: Arc<Grid>,
    header: Header,
    ids: Identities,
    file: PathBuf,
    out: PathBuf,
    /// The tables of the flows and samples of all runs.
    long: Vec<LongTable>,
    /// The table of the runs that are done, which an interrupted sweep writes.
    partial: PathBuf,
}

/// The columns that the end of a sweep shows, with their means over the seeds.
const SHOWN: [&str; 3] = ["fct_us_mean", "fct_us_p99", "fct_us_max"];

/// Runs `weft sweep`.
pub(crate) fn sweep(args: &SweepArgs) -> Result<(), Failure> {
    let sweep = Sweep::read(args)?;
    let Some(mut results) = sweep.begin(args.shard, args.force)? else { return Ok(()) };
    if args.merge {
        sweep.check_merge(&results)?;
        let (tally, clock) = (sweep.write(&results)?, Instant::now());
        return sweep.end(results, tally, 0, clock);
    }
    let todo = results.to_do();
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let jobs = args.jobs.map_or((cores / sweep.grid.threads()).max(1), NonZero::get);
    // No run is made before all have been checked, so a sweep that has begun needs no check.
    if !results.begun() {
        check_all(&sweep.grid, &todo, jobs)?;
    }
    if args.slurm {
        // The tasks take the locks.
        drop(results);
        return slurm::submit(&sweep, todo.len(), args);
    }
    let clock = Instant::now();
    let count = todo.len();
    workers::run(&sweep.grid, &sweep.ids, todo, jobs, &mut results)
        .map_err(|failure| sweep.interrupted(failure, &mut results))?;
    if let Some(shard) = args.shard {
        return sweep.end_shard(&results, shard, count);
    }
    let tally = sweep.write(&results)?;
    sweep.end(results, tally, count, clock)
}

/// Makes one run of a sweep, or only checks whether it can be made. The process ends when `parent` ends.
pub(crate) fn one_run(parent: u32, rehearse: bool, args: &RunArgs) -> Result<(), Failure> {
    workers::end_with_parent(parent)?;
    if rehearse { resolve(args).and_then(run::rehearse) } else { run::run(args, || Ok(Interrupt::default())) }
}

impl Sweep {
    fn read(args: &SweepArgs) -> Result<Sweep, Failure> {
        let name = args.file.display().to_string();
        let unreadable = |e: io::Error| Failure::at(&args.file, &e);
        let text = String::from_utf8(text::read(&args.file).map_err(unreadable)?)
            .map_err(|_| Failure::Run(format!("{name}: not UTF-8 text")))?;
        let grid = Grid::new(SweepFile::parse(&name, &text)?)?;
        let file = absolute(&args.file).map_err(unreadable)?;
        let out = match &args.out {
            Some(out) => absolute(out).map_err(|e| Failure::at(out, &e))?,
            None => file.with_extension("jsonl"),
        };
        if out == file {
            return Err(Failure::Usage("--out: expected another file than the sweep file".to_owned()));
        }
        env::set_current_dir(file.parent().unwrap_or(Path::new("/"))).map_err(unreadable)?;
        let header = Header::new(&grid)?;
        let runs = grid.run_identities(&header.weft);
        let runs = runs.map_err(|e| Failure::Run(format!("hashing the runs: {e}")))?;
        Ok(Sweep {
            ids: Identities { sweep: header.sweep.clone(), runs: runs.into() },
            header,
            long: long::asked_for(&grid, &out)?,
            grid: Arc::new(grid),
            file,
            partial: suffixed(&out, ".partial"),
            out,
        })
    }

    /// Locks and reads the results of earlier processes; `None` if all tables are complete.
    fn begin(&self, shard: Option<Shard>, force: bool) -> Result<Option<Results>, Failure> {
        table::check_place(&self.out, "table with --out")?;
        table::check_place(&self.partial, "table with --out")?;
        self.long.iter().try_for_each(|table| table::check_place(table.path(), "name in [run]"))?;
        let runs = self.grid.runs();
        let parts = self.long.iter().map(|table| table.part).collect();
        let mut results = Results::open(&self.out, self.header.clone(), runs, parts, shard)?;
        if force {
            results.discard()?;
            let long = self.long.iter().map(LongTable::path);
            [&*self.out, &*self.partial].into_iter().chain(long).try_for_each(remove_if_present)?;
        }
        let partial = table::existing(&self.partial, &self.header.sweep, runs)?;
        let table = table::existing(&self.out, &self.header.sweep, runs)?;
        let long = self.long.iter().map(|table| table.earlier(&self.ids)).collect::<Result<Vec<_>, _>>()?;
        if let Some((foreign, _)) = self.long.iter().zip(&long).find(|(_, at)| matches!(at, Earlier::Foreign))
        {
            return Err(foreign_table(foreign.path(), "name in [run]"));
        }
        if table == Existing::Complete && long.iter().all(|at| matches!(at, Earlier::Complete)) {
            if partial != Existing::Foreign {
                remove_if_present(&self.partial)?;
            }
            results.remove()?;
            say(&format!("{} is finished: {runs} runs; --force begins anew\n", self.out.display()))?;
            return Ok(None);
        }
        // The table of a smaller sweep, or one without long tables, goes on to be one of this.
        let rows = match table {
            Existing::Foreign => {
                let rows = table::reusable(&self.out, &self.grid, &self.ids)?.filter(|rows| !rows.is_empty());
                rows.ok_or_else(|| foreign_table(&self.out, "table with --out"))?
            }
            Existing::Complete => table::reusable(&self.out, &self.grid, &self.ids)?.unwrap_or_default(),
            Existing::Nothing | Existing::Partial => Vec::new(),
        };
        if partial == Existing::Foreign {
            return Err(foreign_table(&self.partial, "table with --out"));
        }
        results.load()?;
        self.reuse(rows, &long, &mut results)?;
        Ok(Some(results))
    }

    /// Adds `rows` of an earlier table to the results, for the runs whose rows of the long tables are in `earlier` too.
    fn reuse(
        &self,
        rows: Vec<(usize, String)>,
        earlier: &[Earlier],
        results: &mut Results,
    ) -> Result<(), Failure> {
        let is_there = |id: &String| {
            earlier.iter().all(|at| match at {
                Earlier::Complete => true,
                Earlier::Runs(runs) => runs.contains(id),
                Earlier::Nothing | Earlier::Foreign => false,
            })
        };
        let rows: Vec<_> = (rows.into_iter())
            .filter(|(run, _)| !results.is_done(*run) && is_there(&self.ids.runs[*run]))
            .collect();
        let wanted = rows.iter().map(|(run, _)| (self.ids.runs[*run].as_str(), *run)).collect();
        self.long.iter().try_for_each(|table| table.split(&wanted, &results.places()))?;
        rows.into_iter().try_for_each(|(run, row)| results.add(run, Ok((row, Cost::default()))))
    }

    fn check_merge(&self, results: &Results) -> Result<(), Failure> {
        let runs = self.grid.runs();
        match (0..runs).filter(|run| !results.has_ended(*run)).count() {
            0 => Ok(()),
            missing => Err(Failure::Run(format!(
                "{missing} of {runs} runs are not done yet; without --merge (or with --slurm) they will be"
            ))),
        }
    }

    /// Writes all tables. That of the results comes last: when it is there, so are the others.
    fn write(&self, results: &Results) -> Result<Tally, Failure> {
        self.long.iter().try_for_each(|table| table.write(&self.grid, &self.ids, results))?;
        let tally = table::write(&self.out, &self.grid, &self.ids, results)?;
        remove_if_present(&self.partial)?;
        Ok(tally)
    }

    /// Writes the partial table if `failure` is that of an interruption, and adds to its text what the table has.
    fn interrupted(&self, failure: Failure, results: &mut Results) -> Failure {
        let Failure::Interrupted { mut text, status } = failure else { return failure };
        // Other shards may have made runs meanwhile.
        let written =
            results.load().and_then(|()| table::write_partial(&self.partial, &self.grid, &self.ids, results));
        match written {
            Ok(Tally { rows: 0, .. }) => {}
            Ok(Tally { rows, failed, .. }) => {
                text += &format!(
                    "; {} has the rows of {rows} of {} runs",
                    self.partial.display(),
                    self.grid.runs()
                );
                if failed > 0 {
                    text += &format!(", {failed} of which failed");
                }
            }
            Err(error) => text += &format!("; the partial table could not be written: {error}"),
        }
        Failure::Interrupted { text, status }
    }

    /// Reports on a sweep whose table is written, and removes its results if no run has failed.
    fn end(&self, results: Results, tally: Tally, now: usize, clock: Instant) -> Result<(), Failure> {
        let (runs, out, cost) = (self.grid.runs(), self.out.display(), results.cost);
        let mut text = format!("{out}: {runs} runs, {now} of them made now");
        if tally.unfinished > 0 {
            text += &format!("; in {} not all flows have completed", tally.unfinished);
        }
        text += &format!(
            "\n  took {:.1} s now; {:.1} s of CPU in all runs, at most {:.0} MB in one\n",
            clock.elapsed().as_secs_f64(),
            cost.cpu_s,
            cost.max_rss_mb
        );
        for table in &self.long {
            text += &format!("  rows of all runs: {}\n", table.path().display());
        }
        text += &SweepTable::read(&self.out)?.text_table(&SHOWN.map(str::to_owned)).text();
        say(&text)?;
        if tally.failed > 0 {
            return Err(Failure::Run(format!(
                "{} of {runs} runs failed; the table says how, and the same command tries them again",
                tally.failed
            )));
        }
        results.remove()
    }

    fn end_shard(&self, results: &Results, shard: Shard, now: usize) -> Result<(), Failure> {
        let Shard { index, of } = shard;
        let failed = results.errors().keys().filter(|run| shard.has(**run)).count();
        say(&format!("shard {index} of {of}: {now} runs made now, {failed} failed\n"))?;
        match failed {
            0 => Ok(()),
            _ => Err(Failure::Run(format!("{failed} runs failed; the same command tries them again"))),
        }
    }
}

/// The error that the file at the place of a table is not one of this sweep. `instead` says how to choose another.
fn foreign_table(path: &Path, instead: &str) -> Failure {
    Failure::Run(format!(
        "{} is there already, and not of this sweep and version of weft; remove it (or give --force), or choose another \
         {instead}",
        path.display()
    ))
}

/// Checks the runs `todo`, `jobs` at a time because each check builds a fabric. The error is that of the first run that
/// cannot be made.
fn check_all(grid: &Grid, todo: &[usize], jobs: usize) -> Result<(), Failure> {
    let bar = workers::progress_bar(todo.len(), "checked");
    let (next, first) = (AtomicUsize::new(0), Mutex::new(None::<(usize, Failure)>));
    let check = || {
        while let Some(&run) = todo.get(next.fetch_add(1, Ordering::Relaxed)) {
            bar.inc(1);
            if let Err(failure) = grid.check(run, workers::rehearse) {
                // Later runs need no check now; all earlier ones have been handed out already.
                next.store(todo.len(), Ordering::Relaxed);
                let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
                if first.as_ref().is_none_or(|(earlier, _)| run < *earlier) {
                    *first = Some((run, failure));
                }
            }
        }
    };
    thread::scope(|scope| (0..jobs.min(todo.len())).for_each(|_| _ = scope.spawn(check)));
    bar.finish_and_clear();
    match first.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some((_, failure)) => Err(failure),
        None => Ok(()),
    }
}

/// `path` with `suffix` at its end.
fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn remove_if_present(path: &Path) -> Result<(), Failure> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Failure::at(path, &e)),
        _ => Ok(()),
    }
}

fn say(text: &str) -> Result<(), Failure> {
    crate::print(text.as_bytes()).map_err(|e| Failure::Run(format!("standard output: {e}")))
}
