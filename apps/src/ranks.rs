//! `--workload goal:FILE`: ranks that execute a program, in place of flows.

use crate::options::RunArgs;
use crate::report::Finishes;
use crate::{Failure, text, units};
use clap::Args;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;
use std::str::FromStr;
use weft_cc::units::{parse_rate, parse_span};
use weft_cc::{Rate, Span};
use weft_testbed::goal::{Costs, GoalReader, Job, JobError, Placement, Program, Scale};

/// Options that have an effect with `--workload goal:FILE` only.
#[derive(Debug, Args)]
pub(crate) struct RankArgs {
    /// With a program: the most ranks of a host, 1 to 4096 [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) ranks_per_host: Option<u32>,
    /// With a program: which ranks share a host, consecutive ones (block) or those whose numbers differ by a multiple of the
    /// number of hosts (round-robin) [default: block].
    #[arg(long, value_name = "block|round-robin")]
    pub(crate) placement: Option<Placement>,
    /// With a program: a send of fewer bytes finishes as soon as the endpoint has its message, others when all of it has
    /// arrived [default: 65535].
    #[arg(long, value_name = "BYTES", value_parser = units::bytes, allow_negative_numbers = true)]
    pub(crate) eager: Option<u64>,
    /// With a program: the factor of its computation times [default: 1].
    #[arg(long, value_name = "FACTOR", allow_negative_numbers = true)]
    pub(crate) compute_scale: Option<Scale>,
    /// With a program: how long each send and each arrived message occupies a processor of its rank [default: 0].
    #[arg(long, value_name = "TIME", value_parser = units::span, allow_negative_numbers = true)]
    pub(crate) rank_overhead: Option<Span>,
    /// With a program: how long a message between ranks of one host takes, and the rate at which its bytes are copied
    /// besides [default: 500ns,200G].
    #[arg(long, value_name = "TIME,RATE", allow_negative_numbers = true)]
    pub(crate) memory: Option<Memory>,
}

/// The cost of messages within a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    latency: Span,
    rate: Rate,
}

impl FromStr for Memory {
    type Err = units::ValueError;

    fn from_str(text: &str) -> Result<Memory, units::ValueError> {
        let parts = text.split_once(',').and_then(|(latency, rate)| {
            let memory = Memory { latency: parse_span(latency).ok()?, rate: parse_rate(rate).ok()? };
            Some(memory).filter(|memory| memory.rate.as_bps() > 0)
        });
        parts.ok_or_else(|| units::ValueError::expected("a time and a rate, such as 500ns,200G"))
    }
}

impl RankArgs {
    /// The first of these options that is given.
    fn given(&self) -> Option<&'static str> {
        let given = [
            ("--ranks-per-host", self.ranks_per_host.is_some()),
            ("--placement", self.placement.is_some()),
            ("--eager", self.eager.is_some()),
            ("--compute-scale", self.compute_scale.is_some()),
            ("--rank-overhead", self.rank_overhead.is_some()),
            ("--memory", self.memory.is_some()),
        ];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
    }

    fn costs(&self) -> Costs {
        let costs = Costs::default();
        Costs {
            eager: self.eager.unwrap_or(costs.eager),
            compute: self.compute_scale.unwrap_or(costs.compute),
            overhead: self.rank_overhead.unwrap_or(costs.overhead),
            memory_latency: self.memory.map_or(costs.memory_latency, |memory| memory.latency),
            memory_rate: self.memory.map_or(costs.memory_rate, |memory| memory.rate),
        }
    }
}

/// The program's file in `--workload goal:FILE`.
fn file(args: &RunArgs) -> Option<&str> {
    args.workload.iter().find_map(|workload| workload.strip_prefix("goal:"))
}

/// The ranks that `args` ask for; `None` if they ask for flows.
///
/// # Errors
/// A file that cannot be read or is no program, and options that have no effect.
pub(crate) fn job(args: &RunArgs) -> Result<Option<Job>, Failure> {
    let Some(file) = file(args) else {
        return match args.ranks.given() {
            Some(option) => Err(Failure::Usage(format!("{option}: expected --workload goal:FILE with it"))),
            None => Ok(None),
        };
    };
    check_effects(args)?;
    let per_host = args.ranks.ranks_per_host.unwrap_or(1);
    let placement = args.ranks.placement.unwrap_or_default();
    let job = Job::new(file, read(Path::new(file))?, per_host, placement, args.ranks.costs());
    job.map(Some).map_err(|error| match error {
        JobError::RanksPerHost(_) | JobError::Hosts(_) => {
            Failure::Usage(format!("--ranks-per-host: {error}"))
        }
        JobError::Placement(_) | JobError::Scale => Failure::Usage(error.to_string()),
    })
}

/// Refuses options that have no effect on ranks.
fn check_effects(args: &RunArgs) -> Result<(), Failure> {
    if args.workload.len() > 1 {
        let text = "--workload: a program cannot be laid over other workloads; expected goal:FILE alone";
        return Err(Failure::Usage(text.to_owned()));
    }
    let idle = [
        ("--size", args.size.is_some(), "the program has the size of each message"),
        (
            "--hosts",
            args.hosts.is_some(),
            "the number of hosts follows from that of the ranks; see --ranks-per-host",
        ),
        ("--sample", args.sample.is_some(), "samples are of flows, and ranks send messages"),
    ];
    if let Some((option, _, why)) = idle.iter().find(|(_, is_given, _)| *is_given) {
        return Err(Failure::Usage(format!("{option}: has no effect with --workload goal:FILE: {why}")));
    }
    Ok(())
}

/// Line by line: the text of a program may be larger than its operations.
fn read(path: &Path) -> Result<Program, Failure> {
    let name = path.display().to_string();
    let failed = |error: io::Error| Failure::Run(format!("{name}: {error}"));
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
    let mut reader = GoalReader::new(&name);
    let (mut bytes, mut number) = (Vec::new(), 0u64);
    loop {
        number += 1;
        let more = text::next_line(&mut file, &mut bytes);
        if !more.map_err(|error| Failure::Run(format!("{name}:{number}: {error}")))? {
            break;
        }
        let line =
            str::from_utf8(&bytes).map_err(|_| Failure::Run(format!("{name}:{number}: not UTF-8 text")))?;
        reader.line(line).map_err(|error| Failure::Run(error.to_string()))?;
    }
    reader.finish().map_err(|error| Failure::Run(error.to_string()))
}

impl Finishes {
    /// The ranks for people.
    pub(crate) fn text(&self) -> String {
        let missing = self.total - self.finished;
        let note = if missing == 0 { String::new() } else { format!(", {missing} UNFINISHED") };
        let last = self.slowest.as_ref().map_or_else(String::new, |slowest| {
            let finish = slowest.finish_us.unwrap_or_default();
            format!("; rank {} on host {} last, after {finish:.1} µs", slowest.rank, slowest.host)
        });
        format!("{} of {} finished{note}{last}", self.finished, self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_of_memory_is_a_time_and_a_rate() {
        let memory = "1us,50G".parse::<Memory>().unwrap();
        assert_eq!(memory, Memory { latency: Span::from_us(1), rate: Rate::from_gbps(50) });
        for wrong in ["1us", "1us,", ",50G", "50G,1us", "1us,0G", "1us,50G,2"] {
            assert!(wrong.parse::<Memory>().is_err(), "{wrong}");
        }
    }
}
