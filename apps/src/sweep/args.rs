//! The options of `weft sweep`.

use super::grid::Shard;
use clap::Args;
use std::num::NonZero;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct SweepArgs {
    /// The sweep file: a table [run] of options that all runs share, and a table [vary] of lists. Names of files in it
    /// are relative to its directory.
    #[arg(value_name = "FILE.toml")]
    pub(crate) file: PathBuf,
    /// Table to write: one JSON object per line and run [default: FILE.jsonl beside FILE.toml].
    #[arg(long, value_name = "FILE.jsonl")]
    pub(crate) out: Option<PathBuf>,
    /// Number of concurrent runs [default: one per core].
    #[arg(long, value_name = "N")]
    pub(crate) jobs: Option<NonZero<usize>>,
    /// Start again: discard the table and all results.
    #[arg(long)]
    pub(crate) force: bool,
    /// Make only the I-th of N parts of the runs; other processes make the other parts.
    #[arg(long, value_name = "I/N", conflicts_with_all = ["force", "merge", "slurm"])]
    pub(crate) shard: Option<Shard>,
    /// Make no runs, but write the table if all parts are done.
    #[arg(long, conflicts_with_all = ["force", "slurm"])]
    pub(crate) merge: bool,
    /// Submit the runs to Slurm: an array job that makes them, and a job that writes the table.
    #[arg(long)]
    pub(crate) slurm: bool,
    /// Number of tasks in the array job [default: one for each run, 1000 at most].
    #[arg(long, value_name = "N", requires = "slurm")]
    pub(crate) tasks: Option<NonZero<usize>>,
    /// An option for sbatch, such as --sbatch=--time=1:00:00; may be repeated.
    #[arg(long, value_name = "OPTION", requires = "slurm", allow_hyphen_values = true)]
    pub(crate) sbatch: Vec<String>,
    /// Print the script that would submit the jobs to Slurm.
    #[arg(long, requires = "slurm", conflicts_with = "force")]
    pub(crate) dry_run: bool,
}
