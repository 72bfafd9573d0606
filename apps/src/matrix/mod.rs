//! `weft matrix`: a connection matrix between the processes of a job, over any provider of libfabric.
//!
//! Each process of the job is this command. It starts `weft-matrix`, a program of the libfabric provider's, so that this one
//! need not be linked to libfabric; that of rank 0 prints results, of which the report is made here.

mod report;

use crate::Failure;
use crate::output::OutputFile;
use crate::report::csv;
use crate::units;
use clap::Args;
use report::{MatrixReport, Results};
use std::env;
use std::ffi::OsString;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use weft_cc::Span;

/// The program that is a rank.
const PROGRAM: &str = "weft-matrix";
/// How long a run takes at most, unless told otherwise.
const DEFAULT_UNTIL: Span = Span::from_ms(600_000);

#[derive(Debug, Args)]
pub(crate) struct MatrixArgs {
    /// The connection matrix. Each of its nodes is a rank of the job.
    matrix: PathBuf,
    /// The provider of libfabric: weft, tcp, shm, or any other that `fi_info` lists with FI_EP_RDM.
    #[arg(long, value_name = "NAME", default_value = "weft")]
    provider: String,
    /// The hosts of all ranks, for jobs without a launcher: addresses or names. The ranks meet at the first one.
    #[arg(long, value_name = "HOST,…", requires = "rank")]
    hosts: Option<String>,
    /// The rank of this process in a job without a launcher, from 0.
    #[arg(long, value_name = "N", requires = "hosts")]
    rank: Option<u32>,
    /// The TCP port at which the ranks of a job without a launcher meet.
    #[arg(long, value_name = "PORT", default_value_t = 4794, requires = "hosts")]
    rendezvous: u16,
    /// Compare every byte that arrives. This takes the ranks time, and so the flows.
    #[arg(long)]
    verify: bool,
    /// Time at which the run ends, done or not [default: 10 minutes].
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    until: Option<Span>,
    /// Rank 0 writes the results as JSON; with - to standard output, which then carries nothing else.
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
    /// Rank 0 writes one line for each flow, as CSV.
    #[arg(long, value_name = "FILE.csv")]
    flows: Option<PathBuf>,
}

/// Takes part in the run that `args` describe, and reports it if this is rank 0.
pub(crate) fn matrix(args: &MatrixArgs) -> Result<(), Failure> {
    let output = command(args).stdin(Stdio::null()).stderr(Stdio::inherit()).stdout(Stdio::piped()).output();
    let output = output.map_err(|error| {
        let build = "cargo build --release -p weft-libfabric-provider builds it";
        Failure::Run(format!("{PROGRAM}, beside this program or in PATH: {error}; {build}"))
    })?;
    succeeded(output.status)?;
    // Ranks other than the first one print nothing.
    if output.stdout.is_empty() {
        return Ok(());
    }
    let results: Results = serde_json::from_slice(&output.stdout).map_err(|error| {
        Failure::Run(format!("{PROGRAM}: its results: {error}; is it of the same version?"))
    })?;
    write(args, &MatrixReport::new(args, &results), &results)?;
    results.verdict()
}

fn command(args: &MatrixArgs) -> Command {
    let until = args.until.unwrap_or(DEFAULT_UNTIL);
    let mut words: Vec<OsString> =
        vec![args.matrix.clone().into(), "--provider".into(), args.provider.clone().into()];
    let mut option = |name: &str, value: String| words.extend([name.into(), value.into()]);
    option("--until-ms", (until.as_ps() / 1_000_000_000).to_string());
    option("--parent", std::process::id().to_string());
    if let Some((hosts, rank)) = args.hosts.as_ref().zip(args.rank) {
        option("--hosts", hosts.clone());
        option("--rank", rank.to_string());
        option("--port", args.rendezvous.to_string());
    }
    words.extend(args.verify.then(|| "--verify".into()));
    let mut command = Command::new(program());
    command.args(words);
    command
}

/// The program beside this one, where cargo and `setup.sh` put it; else that of the search path.
fn program() -> PathBuf {
    let beside = env::current_exe().ok().map(|own| own.with_file_name(PROGRAM));
    beside.filter(|path| path.exists()).unwrap_or_else(|| PROGRAM.into())
}

/// The program has said on standard error what is wrong.
fn succeeded(status: ExitStatus) -> Result<(), Failure> {
    match status.code() {
        Some(0) => Ok(()),
        Some(2) => Err(Failure::Usage("this rank has not begun".to_owned())),
        _ => Err(Failure::Run(format!("this rank has failed: {status}"))),
    }
}

fn write(args: &MatrixArgs, report: &MatrixReport, results: &Results) -> Result<(), Failure> {
    let failed = |path: &Path, error: &io::Error| Failure::at(path, error);
    match args.json.as_deref() {
        Some(path) if path == Path::new("-") => {
            report.write_json(BufWriter::new(io::stdout())).map_err(|error| failed(path, &error))?;
        }
        json => {
            crate::print(report.table().as_bytes())
                .map_err(|error| Failure::Run(format!("standard output: {error}")))?;
            if let Some(path) = json {
                let mut file = OutputFile::create(path).map_err(|error| failed(path, &error))?;
                let written = report.write_json(BufWriter::new(&mut file)).and_then(|()| file.commit());
                written.map_err(|error| failed(path, &error))?;
            }
        }
    }
    let Some(path) = args.flows.as_deref() else { return Ok(()) };
    let mut file = OutputFile::create(path).map_err(|error| failed(path, &error))?;
    let written = csv::write_uncounted(&results.records(), &mut file).and_then(|()| file.commit());
    written.map_err(|error| failed(path, &error))
}
