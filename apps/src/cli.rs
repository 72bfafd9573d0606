//! The command line.

use crate::doctor::DoctorArgs;
use crate::goal::GoalArgs;
use crate::htsim::HtsimArgs;
use crate::list::Catalogue;
use crate::matrix::MatrixArgs;
use crate::options::RunArgs;
use crate::perf::PerfArgs;
use crate::plot::PlotArgs;
use crate::reproduce::ReproduceArgs;
use crate::serve::ServeArgs;
use crate::sweep::SweepArgs;
use crate::testbed::TestbedArgs;
use clap::{CommandFactory, Parser, Subcommand};
use std::ffi::OsString;

/// Userspace transport for lossy Ethernet fabrics: experiments and their results.
#[derive(Debug, Parser)]
#[command(name = "weft", version = env!("WEFT_VERSION"), about, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a workload over a fabric and report how it went.
    ///
    /// SIGINT and SIGTERM end a run early, with the report so far. Files that it writes appear when they are complete.
    ///
    /// Exit status: 0 when every flow has completed, 3 when some have not (who waits for what is
    /// listed), 1 when the run could not be made, 2 for options that make no sense, 130 or 143 when a signal
    /// ended it before every flow had completed.
    Run(Box<RunArgs>),
    /// The command line of htsim_uec, the program of uet-htsim, over weft's simulator.
    ///
    /// A link named htsim_uec to this program does the same. `weft htsim --help` lists the options.
    Htsim(HtsimArgs),
    /// Make a grid of runs over all cores, and one table of their results.
    ///
    /// Interrupted at any moment, the same command goes on from there. SIGINT and SIGTERM end it with the table of
    /// the runs that are done, in FILE.jsonl.partial. Exit status: 0 when the table is written, 1 when runs have
    /// failed or the table could not be made, 2 for a sweep file that makes no sense, 130 or 143 when a signal
    /// ended it.
    Sweep(SweepArgs),
    /// One host of a run, in a process that ends with the run.
    #[command(hide = true)]
    RunHost {
        /// The process of the run.
        #[arg(long = "parent", value_name = "PID")]
        parent_process: u32,
        /// The number of the host.
        #[arg(long, value_name = "N")]
        number: u32,
        #[command(flatten)]
        run: Box<RunArgs>,
    },
    /// One run of a sweep, in a process that ends with the sweep.
    #[command(hide = true)]
    SweepRun {
        /// The process of the sweep.
        #[arg(long, value_name = "PID")]
        parent: u32,
        /// Only find out whether it can be made.
        #[arg(long)]
        rehearse: bool,
        #[command(flatten)]
        run: Box<RunArgs>,
    },
    /// Run the figures of a paper again, and say what the paper says beside what is measured.
    ///
    /// Writes results.jsonl and report.html, a page with the figures, to a directory. Interrupted at any moment, the same
    /// command goes on from there. Exit status: 0 when all claims hold or deviate for a known reason, 1 when one does
    /// not hold or a run failed, 2 for options that make no sense, 130 or 143 when a signal ended it.
    Reproduce(ReproduceArgs),
    /// Draw what runs and sweeps have written, on one page of HTML that needs nothing else.
    ///
    /// Reports (weft run --json) become bars, tables of flows (--flows) distributions, samples (--sample) curves over
    /// time, tables of sweeps bars with 95 % confidence intervals over the seeds. Several files are drawn side by side.
    Plot(PlotArgs),
    /// Measure throughput, message rate or latency between two endpoints, over any port.
    ///
    /// Exit status: 0 when the test was run, 1 when it could not be or data arrived wrong, 2 for options that
    /// make no sense, 130 or 143 when a signal ended it; a server without --once ends on SIGINT or SIGTERM with 0.
    #[command(args_override_self = true)]
    Perf(PerfArgs),
    /// Look at this machine, a port or a path, and say what to type to make them fit.
    ///
    /// Exit status: 0 when nothing is bad, 1 when something is or could not be looked at, 2 for options that make
    /// no sense.
    #[command(args_override_self = true)]
    Doctor(Box<DoctorArgs>),
    /// Own a port, and let applications of this host share it over rings in shared memory.
    ///
    /// Ends on SIGINT or SIGTERM. Exit status: 0 then, 1 when the port or the socket cannot be had, 2 for options
    /// that make no sense.
    #[command(args_override_self = true)]
    Serve(Box<ServeArgs>),
    /// A fabric of software switches in real time, to which hosts of this machine are attached.
    ///
    /// Exit status: 0 when it did what was asked, 1 when it could not, 2 for options or words that make no sense.
    Testbed(TestbedArgs),
    /// Run a connection matrix between the processes of a job, over any provider of libfabric.
    ///
    /// Each process of the job is this command: started by mpirun, mpiexec or srun --mpi=pmix, or by hand with --hosts and
    /// --rank. Flows are tagged messages. Rank 0 reports how long each took, as `weft run` does. Exit status: 0 when
    /// every flow has completed, 3 when some had not at --until, 1 when the run could not be made, a rank died or data
    /// arrived wrong, 2 for options that make no sense.
    Matrix(MatrixArgs),
    /// Write the GOAL program of a collective operation: what each rank sends and receives, and in which order.
    ///
    /// Exit status: 0 when the file is written, 1 when it could not be, 2 for options that make no sense.
    Goal(GoalArgs),
    /// List the choices of an option, each with one line and its source.
    List {
        /// The option to list the choices of.
        what: Catalogue,
        /// List only this choice, with its parameters.
        name: Option<String>,
    },
}

/// The command line that prints the help on the command that `words` begin with.
pub(crate) fn help(words: impl Iterator<Item = OsString>) -> String {
    let (all, mut path) = (Cli::command(), "weft".to_owned());
    let mut command = &all;
    for word in words {
        let Some(inner) = command.find_subcommand(&word) else { break };
        path = format!("{path} {}", inner.get_name());
        command = inner;
    }
    path + " --help"
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_cc::Span;

    #[test]
    fn the_last_of_several_values_of_one_option_counts() {
        for (words, more) in [
            (&["perf", "server"][..], &["--rto", "100ms", "--rto", "300ms"][..]),
            (&["perf", "client", "127.0.0.2"], &["--rto", "100ms", "--rto", "300ms"]),
            (&["perf", "pair"], &["--rto", "100ms", "--rto", "300ms"]),
            (&["serve", "--socket", "s", "--socket", "t"], &["--rto", "100ms", "--rto", "300ms"]),
            (&["doctor"], &[]),
        ] {
            let port = match words[1..].first() {
                Some(&"pair") => ["--port", "ring", "--port", "memory"],
                _ => ["--port", "udp:127.0.0.1", "--port", "udp:127.0.0.3"],
            };
            let line =
                [&["weft"], words, &port, &["--port-mtu", "1500", "--port-mtu", "4184"], more].concat();
            let matches =
                Cli::command().try_get_matches_from(&line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
            let mut innermost = &matches;
            while let Some((_, next)) = innermost.subcommand() {
                innermost = next;
            }
            let mtu = innermost.get_raw("mtu").and_then(|mut values| values.next_back());
            assert_eq!(mtu, Some("4184".as_ref()), "{line:?}");
            if !more.is_empty() {
                assert_eq!(innermost.get_one::<Span>("rto"), Some(&Span::from_ms(300)), "{line:?}");
            }
        }
        let peers = ["weft", "perf", "server", "--port", "udp:127.0.0.1", "--peer", "::1", "--peer", "::2"];
        let matches = Cli::command().get_matches_from(peers);
        let server = matches.subcommand_matches("perf").and_then(|perf| perf.subcommand_matches("server"));
        let count = server.and_then(|server| server.get_raw("peers")).map(Iterator::count);
        assert_eq!(count, Some(2), "repeatable options keep all their values");
    }

    #[test]
    fn a_refusal_points_to_the_help_of_its_subcommand() {
        let help = |words: &str| help(words.split(' ').map(OsString::from));
        assert_eq!(help("perf client --cout 3"), "weft perf client --help");
        assert_eq!(help("list ccs"), "weft list --help");
        assert_eq!(help("prf client"), "weft --help");
        assert_eq!(help("--port perf"), "weft --help");
    }

    #[test]
    fn the_command_is_well_formed() {
        Cli::command().debug_assert();
    }
}
