//! A sweep as a Slurm array job: each task makes one shard of the runs, and a job that depends on all tasks writes the
//! table.

use super::args::SweepArgs;
use super::{Sweep, suffixed};
use crate::Failure;
use std::env;
use std::path::Path;
use std::process::Command;

/// Array indices must stay below Slurm's MaxArraySize, which is 1001 by default.
const MOST_TASKS: usize = 1000;

/// Submits `todo` runs of `sweep`, or prints the script that would submit them.
pub(crate) fn submit(sweep: &Sweep, todo: usize, args: &SweepArgs) -> Result<(), Failure> {
    // An array needs at least one task, even if only the table is left to be written.
    let tasks = args.tasks.map_or(MOST_TASKS, |tasks| tasks.get()).min(todo).max(1);
    let program = env::current_exe().map_err(|e| Failure::at(Path::new("/proc/self/exe"), &e))?;
    let script = script(&program, sweep, tasks, args.jobs.map(|jobs| jobs.get()), &args.sbatch);
    if args.dry_run {
        return super::say(&script);
    }
    let status = Command::new("sh").args(["-c", &script]).status();
    match status.map_err(|e| Failure::at(Path::new("sh"), &e))?.success() {
        true => Ok(()),
        false => Err(Failure::Run("sbatch has failed; nothing more was submitted".to_owned())),
    }
}

/// A shell script that submits both jobs.
fn script(program: &Path, sweep: &Sweep, tasks: usize, jobs: Option<usize>, options: &[String]) -> String {
    let log = |what: &str| {
        // Slurm interprets % in file names.
        let name = suffixed(&sweep.out, "").display().to_string().replace('%', "%%");
        quoted(&format!("{name}.slurm-{what}.log"))
    };
    let options: String = options.iter().map(|option| format!(" {}", quoted(option))).collect();
    let command = [program, Path::new("sweep"), &sweep.file, Path::new("--out"), &sweep.out]
        .map(|word| quoted(&word.display().to_string()))
        .join(" ");
    let jobs = jobs.map_or_else(|| "\"${SLURM_CPUS_PER_TASK:-1}\"".to_owned(), |jobs| jobs.to_string());
    let logs = quoted(&suffixed(&sweep.out, ".slurm-").display().to_string());
    format!(
        "#!/bin/sh
# Submits a sweep of {runs} runs to Slurm.
set -e
array=$(sbatch --parsable --job-name=weft-sweep --array=1-{tasks} --output={task_log}{options} <<'TASK'
#!/bin/sh
exec {command} --shard \"$SLURM_ARRAY_TASK_ID/{tasks}\" --jobs {jobs}
TASK
)
array=${{array%%;*}}
merge=$(sbatch --parsable --job-name=weft-merge --dependency=\"afterany:$array\" --output={merge_log}{options} <<'MERGE'
#!/bin/sh
{command} --merge && rm -f {logs}*.log
MERGE
)
echo \"array job $array of {tasks} tasks; job ${{merge%%;*}} writes the table\"
",
        runs = sweep.grid.runs(),
        task_log = log("%a"),
        merge_log = log("merge"),
    )
}

/// `word` as one word of a shell script.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_the_shell() {
        for word in ["/a/b.toml", "", "two words", "it's", "$HOME", "a\"b", "*", "--time=1:00"] {
            let output = Command::new("sh").args(["-c", &format!("printf %s {}", quoted(word))]).output();
            assert_eq!(String::from_utf8(output.unwrap().stdout).unwrap(), word);
        }
        assert_eq!(quoted("--time=1:00"), "--time=1:00");
    }
}
