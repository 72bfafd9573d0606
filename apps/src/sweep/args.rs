//! The options of `weft sweep`.

use super::grid::Shard;
use clap::Args;
use std::num::NonZero;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct SweepArgs {
    /// What to run: a table [run] of options that all runs share, and a table [vary] of lists. Files that
    /// it names are found from where it is.
    #[arg(value_name = "FILE.toml")]
    pub(crate) file: PathBuf,
    /// Table to write: a JSON object a line, one for each run [default: FILE.jsonl beside FILE.toml].
    #[arg(long, value_name = "FILE.jsonl")]
    pub(crate) out: Option<PathBuf>,
    /// Runs at a time [default: one for each core].
    #[arg(long, value_name = "N")]
    pub(crate) jobs: Option<NonZero<usize>>,
    /// Begin anew: discard the table and what was done of it.
    #[arg(long)]
    pub(crate) force: bool,
    /// Make only the I-th of N parts of the runs, beside others who make the other parts.
    #[arg(long, value_name = "I/N", conflicts_with_all = ["force", "merge", "slurm"])]
    pub(crate) shard: Option<Shard>,
    /// Make no run, but write the table when all parts are done.
    #[arg(long, conflicts_with_all = ["force", "slurm"])]
    pub(crate) merge: bool,
    /// Submit the runs to Slurm: an array job of parts, and a job that merges them.
    #[arg(long)]
    pub(crate) slurm: bool,
    /// Number of tasks in the array job [default: one for each run, 1000 at most].
    #[arg(long, value_name = "N", requires = "slurm")]
    pub(crate) tasks: Option<NonZero<usize>>,
    /// An option for sbatch, such as --sbatch=--time=1:00:00; may be repeated.
    #[arg(long, value_name = "OPTION", requires = "slurm", allow_hyphen_values = true)]
    pub(crate) sbatch: Vec<String>,
    /// Print what would be submitted to Slurm.
    #[arg(long, requires = "slurm", conflicts_with = "force")]
    pub(crate) dry_run: bool,
}
