//! `weft testbed exec`: a program at a host of a testbed, such as a rank of an MPI job.

use super::control::{Reply, Request, ask};
use super::rundir::RunDir;
use super::{not_up, option};
use crate::Failure;
use clap::Args;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// Variables with which launchers tell a process its rank.
const RANKS: [&str; 4] = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"];
/// The variable that tells libfabric's provider where its endpoints are.
const PORT: &str = "FI_WEFT_PORT";

/// `weft testbed exec`.
#[derive(Debug, Args)]
pub(super) struct ExecArgs {
    #[command(flatten)]
    name: super::NameArgs,
    /// The host; unless given, ranks of an MPI job are dealt out to all hosts in turn, as OMPI_COMM_WORLD_RANK, PMIX_RANK,
    /// PMI_RANK or SLURM_PROCID says.
    #[arg(long, value_name = "N")]
    host: Option<u32>,
    /// The program, and its options.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Becomes the program, with the server of its host as the place of its endpoints.
///
/// # Errors
/// The testbed is not up, has no servers or no such host, the rank is not known, or the program cannot be run.
pub(super) fn exec(args: &ExecArgs) -> Result<(), Failure> {
    let name = &args.name.name;
    let servers = match ask(&RunDir::of(name)?.control(), &Request::Status)? {
        Some(Reply::Status(status)) => status.servers(),
        Some(_) => return Err(Failure::Run("testbed: the switches answered something else".to_owned())),
        None => return Err(not_up(name)?),
    };
    let hosts = servers.len() as u32;
    let host = match args.host {
        Some(host) => host,
        None => rank(|name| std::env::var(name).ok())?.checked_rem(hosts).unwrap_or(0),
    };
    let server = servers.into_iter().nth(host as usize);
    let server: PathBuf = server
        .ok_or_else(|| Failure::Usage(format!("--host {host}: expected a host below {hosts}")))?
        .ok_or_else(|| {
            Failure::Run(format!(
                "testbed: {name} has no servers; expected weft testbed up --serve{} first",
                option(name)
            ))
        })?;
    let mut command = Command::new(&args.program[0]);
    command.args(&args.program[1..]).env(PORT, format!("serve:{}", server.display()));
    let error = command.exec();
    Err(Failure::Run(format!("{}: {error}", args.program[0].display())))
}

/// The rank that the environment names.
fn rank(variable: impl Fn(&str) -> Option<String>) -> Result<u32, Failure> {
    let found = RANKS.iter().find_map(|name| Some((name, variable(name)?)));
    let (name, value) = found.ok_or_else(|| {
        Failure::Usage(format!("expected --host N, or a rank in one of {}", RANKS.join(", ")))
    })?;
    value.parse().map_err(|_| Failure::Usage(format!("{name}={value}: expected a number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_launcher_of_the_job_goes_before_that_of_the_allocation() {
        let slurm = |name: &str| (name == "SLURM_PROCID").then(|| "7".to_owned());
        let both =
            |name: &str| if name == "OMPI_COMM_WORLD_RANK" { Some("3".to_owned()) } else { slurm(name) };
        assert_eq!((rank(slurm).unwrap(), rank(both).unwrap()), (7, 3));
        assert!(rank(|_| None).unwrap_err().to_string().contains("--host N"));
        assert!(rank(|_| Some("x".to_owned())).unwrap_err().to_string().contains("expected a number"));
    }
}
