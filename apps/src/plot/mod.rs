//! `weft plot`: figures of the files that `weft run` and `weft sweep` write, on one page of HTML.

mod flows;
mod reports;
mod runs;
mod samples;
mod sweeps;

pub(crate) use flows::{Flows, distribution};
pub(crate) use samples::goodputs;

use crate::chart::Page;
use crate::columnar::{Reader, is_parquet};
use crate::output::OutputFile;
use crate::{Failure, text};
use clap::Args;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub(crate) struct PlotArgs {
    /// Files to draw: JSON reports (--json), tables of flows (--flows), samples (--sample), of single runs or of sweeps,
    /// and tables of sweeps.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// The page to write.
    #[arg(short, long, value_name = "FILE.html", default_value = "report.html")]
    pub(crate) out: PathBuf,
    /// A column of the tables of sweeps to draw; may be repeated [default: fct_us_p99 and fct_us_max].
    #[arg(long, value_name = "COLUMN")]
    pub(crate) metric: Vec<String>,
}

/// The content of a file.
enum Kind {
    Report,
    Flows,
    Ports,
    FlowSamples,
    Sweep,
}

/// Runs `weft plot`.
pub(crate) fn plot(args: &PlotArgs) -> Result<(), Failure> {
    let mut files: Vec<(&Path, Kind)> = Vec::new();
    for file in &args.files {
        files.push((file, kind(file)?));
    }
    spare_inputs(args)?;
    let of = |wanted: fn(&Kind) -> bool| -> Vec<&Path> {
        files.iter().filter(|(_, kind)| wanted(kind)).map(|(path, _)| *path).collect()
    };
    let sweeps = of(|kind| matches!(kind, Kind::Sweep));
    if sweeps.is_empty() && !args.metric.is_empty() {
        return Err(Failure::Usage("--metric: has no effect without a table of a sweep".to_owned()));
    }
    let mut page = Page::new("Results");
    reports::draw(&of(|kind| matches!(kind, Kind::Report)), &mut page)?;
    flows::draw(&of(|kind| matches!(kind, Kind::Flows)), &mut page)?;
    for path in of(|kind| matches!(kind, Kind::FlowSamples)) {
        samples::draw_flows(path, &mut page)?;
    }
    for path in of(|kind| matches!(kind, Kind::Ports)) {
        samples::draw_ports(path, &mut page)?;
    }
    for path in sweeps {
        sweeps::draw(path, &args.metric, &mut page)?;
    }
    write_page(&args.out, page)?;
    let said = format!("{}: figures of {} files\n", args.out.display(), files.len());
    crate::print(said.as_bytes()).map_err(|e| Failure::Run(format!("standard output: {e}")))
}

/// Refuses a page in the place of a file that it is drawn from.
fn spare_inputs(args: &PlotArgs) -> Result<(), Failure> {
    // A page that is not there yet is none of the files.
    let Ok(out) = args.out.canonicalize() else { return Ok(()) };
    let is_out = |file: &&PathBuf| file.canonicalize().is_ok_and(|file| file == out);
    match args.files.iter().find(is_out) {
        Some(file) => Err(Failure::Usage(format!(
            "--out: {} is one of the files to draw; expected another name",
            file.display()
        ))),
        None => Ok(()),
    }
}

/// Writes `page` to `path`, which it replaces when it is complete.
pub(crate) fn write_page(path: &Path, page: Page) -> Result<(), Failure> {
    let mut file = OutputFile::create(path).map_err(|e| Failure::at(path, &e))?;
    file.write_all(page.end().as_bytes()).and_then(|()| file.commit()).map_err(|e| Failure::at(path, &e))
}

/// Finds out the content of the file `path` from its first line or, in Parquet, from its columns.
fn kind(path: &Path) -> Result<Kind, Failure> {
    if is_parquet(path)? {
        let reader = Reader::open(path)?;
        let known =
            [("queue_bytes", Kind::Ports), ("goodput_gbps", Kind::FlowSamples), ("fct_us", Kind::Flows)];
        let found = known.into_iter().find(|(name, _)| reader.place(name).is_some());
        let what = "no column queue_bytes, goodput_gbps or fct_us; expected samples or a table of flows";
        return found.map(|(_, kind)| kind).ok_or_else(|| reader.refuse(what));
    }
    let mut line = Vec::new();
    let mut reader = std::io::BufReader::new(File::open(path).map_err(|e| Failure::at(path, &e))?);
    let more = text::next_line(&mut reader, &mut line).map_err(|e| Failure::at(path, &e))?;
    let line = String::from_utf8_lossy(&line);
    match line.trim_end() {
        "{" if more => Ok(Kind::Report),
        row if row.starts_with('{') && row.ends_with('}') => Ok(Kind::Sweep),
        head if head.split(',').any(|column| column == "fct_us") => Ok(Kind::Flows),
        _ => Err(Failure::Usage(format!(
            "{}:1: expected a JSON report, a table of flows with a column fct_us, samples in Parquet, or the table of \
             a sweep (a JSON object on each line)",
            path.display()
        ))),
    }
}

/// The file's name without directories and endings, for legends.
fn short(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').next().filter(|stem| !stem.is_empty()).map_or_else(|| name.to_string(), str::to_owned)
}

/// The names of `paths`: short ones if these differ.
fn names(paths: &[&Path]) -> Vec<String> {
    let short: Vec<String> = paths.iter().map(|path| short(path)).collect();
    let different: std::collections::BTreeSet<&String> = short.iter().collect();
    if different.len() == short.len() {
        short
    } else {
        paths.iter().map(|p| p.display().to_string()).collect()
    }
}
