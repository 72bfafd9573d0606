//! `weft sweep`: a grid of runs over all cores, and one table of their results.

mod args;
mod file;
mod grid;
mod journal;
mod slurm;
mod table;
mod workers;

pub(crate) use args::SweepArgs;

use crate::Failure;
use crate::interrupt::Interrupt;
use crate::options::RunArgs;
use crate::resolve::resolve;
use crate::{run, text};
use file::SweepFile;
use grid::Grid;
use journal::{Access, Header, Journals, Shard, failed};
use std::num::NonZero;
use std::path::{Path, PathBuf, absolute};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use std::{env, fs, io, thread};
use table::{Existing, Tally};

/// A sweep file and the table to make of it. The current directory is that of the file, from which the
/// files that it names are found.
struct Sweep {
    grid: Arc<Grid>,
    header: Header,
    file: PathBuf,
    out: PathBuf,
}

/// Does what `args` ask for.
pub(crate) fn sweep(args: &SweepArgs) -> Result<(), Failure> {
    let sweep = Sweep::read(args)?;
    let access = args.shard.map_or(Access::Whole, Access::Shard);
    let Some(mut journals) = sweep.begin(access, args.force)? else { return Ok(()) };
    if args.merge {
        sweep.check_merge(&journals)?;
        let (tally, clock) = (sweep.write(&mut journals)?, Instant::now());
        return sweep.end(journals, tally, 0, clock);
    }
    let mine = |run: &usize| args.shard.is_none_or(|shard| shard.has(*run));
    let todo: Vec<usize> = (0..sweep.grid.runs()).filter(mine).filter(|run| !journals.has(*run)).collect();
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let jobs = args.jobs.map_or((cores / sweep.grid.threads()).max(1), NonZero::get);
    // A journal is begun only once all has been checked.
    if !journals.begun() {
        check_all(&sweep.grid, &todo, jobs)?;
    }
    if args.slurm {
        // The tasks take the locks.
        drop(journals);
        return slurm::submit(&sweep, todo.len(), args);
    }
    let clock = Instant::now();
    let count = todo.len();
    workers::run(&sweep.grid, &sweep.header.sweep, todo, jobs, &mut journals)?;
    if let Some(shard) = args.shard {
        return sweep.end_shard(&journals, shard, count);
    }
    let tally = sweep.write(&mut journals)?;
    sweep.end(journals, tally, count, clock)
}

/// Makes one run of a sweep, in a process that ends with `parent`; or only finds out whether it can be made.
pub(crate) fn one_run(parent: u32, rehearse: bool, args: &RunArgs) -> Result<(), Failure> {
    workers::die_with(parent)?;
    if rehearse { resolve(args).and_then(run::rehearse) } else { run::run(args, || Ok(Interrupt::default())) }
}

impl Sweep {
    fn read(args: &SweepArgs) -> Result<Sweep, Failure> {
        let name = args.file.display().to_string();
        let unreadable = |e: io::Error| failed(&args.file, &e);
        let text = String::from_utf8(text::read(&args.file).map_err(unreadable)?)
            .map_err(|_| Failure::Run(format!("{name}: not UTF-8 text")))?;
        let grid = Grid::new(SweepFile::parse(&name, &text)?)?;
        let file = absolute(&args.file).map_err(unreadable)?;
        let out = match &args.out {
            Some(out) => absolute(out).map_err(|e| failed(out, &e))?,
            None => file.with_extension("jsonl"),
        };
        if out == file {
            return Err(Failure::Usage("--out: expected another file than the sweep file".to_owned()));
        }
        env::set_current_dir(file.parent().unwrap_or(Path::new("/"))).map_err(unreadable)?;
        Ok(Sweep { header: Header::new(&grid)?, grid: Arc::new(grid), file, out })
    }

    /// Finds out what is done, and keeps others from doing the same; none if everything is.
    fn begin(&self, access: Access, force: bool) -> Result<Option<Journals>, Failure> {
        table::check_place(&self.out)?;
        let runs = self.grid.runs();
        let mut journals = Journals::open(&self.out, self.header.clone(), runs, access)?;
        if force {
            journals.discard()?;
            match fs::remove_file(&self.out) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(&self.out, &e)),
                _ => {}
            }
        }
        let out = self.out.display();
        match table::existing(&self.out, &self.header.sweep, runs)? {
            Existing::Nothing | Existing::Partial => journals.load()?,
            Existing::Complete => {
                journals.remove()?;
                say(&format!("{out} is finished: {runs} runs; --force begins anew\n"))?;
                return Ok(None);
            }
            Existing::Foreign => {
                return Err(Failure::Run(format!(
                    "{out} is there already, and not of this sweep and version of weft; \
                     remove it (or give --force), or choose another table with --out"
                )));
            }
        }
        Ok(Some(journals))
    }

    fn check_merge(&self, journals: &Journals) -> Result<(), Failure> {
        let runs = self.grid.runs();
        let ended = |run: &usize| journals.has(*run) || journals.errors().contains_key(run);
        match runs - (0..runs).filter(ended).count() {
            0 => Ok(()),
            missing => Err(Failure::Run(format!(
                "{missing} of {runs} runs are not done yet; without --merge (or with --slurm) they will be"
            ))),
        }
    }

    fn write(&self, journals: &mut Journals) -> Result<Tally, Failure> {
        table::write(&self.out, &self.grid, &self.header.sweep, journals)
    }

    /// Sums up a sweep whose table is written.
    fn end(&self, journals: Journals, tally: Tally, now: usize, clock: Instant) -> Result<(), Failure> {
        let (runs, out, cost) = (self.grid.runs(), self.out.display(), journals.cost);
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
        say(&text)?;
        if tally.failed > 0 {
            return Err(Failure::Run(format!(
                "{} of {runs} runs failed; the table says how, and the same command tries them again",
                tally.failed
            )));
        }
        journals.remove()
    }

    fn end_shard(&self, journals: &Journals, shard: Shard, now: usize) -> Result<(), Failure> {
        let Shard { index, of } = shard;
        let failed = journals.errors().keys().filter(|run| shard.has(**run)).count();
        say(&format!("shard {index} of {of}: {now} runs made now, {failed} failed\n"))?;
        match failed {
            0 => Ok(()),
            _ => Err(Failure::Run(format!("{failed} runs failed; the same command tries them again"))),
        }
    }
}

/// Refuses the first of the runs `todo` that makes no sense or cannot be made; `jobs` at a time, because
/// each builds its fabric.
fn check_all(grid: &Grid, todo: &[usize], jobs: usize) -> Result<(), Failure> {
    let bar = workers::progress_bar(todo.len(), "checked");
    let (next, first) = (AtomicUsize::new(0), Mutex::new(None::<(usize, Failure)>));
    let check = || {
        while let Some(&run) = todo.get(next.fetch_add(1, Ordering::Relaxed)) {
            bar.inc(1);
            if let Err(failure) = grid.check(run, workers::rehearse) {
                // What comes later need not be looked at; what comes before has been taken already.
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

fn say(text: &str) -> Result<(), Failure> {
    crate::print(text.as_bytes()).map_err(|e| Failure::Run(format!("standard output: {e}")))
}
