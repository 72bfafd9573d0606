//! `weft reproduce`: the figures of a paper, run again, with what the paper says beside what is measured.

mod draw;
mod experiments;
mod judge;
mod pattern;
mod runs;
mod suite;

#[cfg(test)]
mod tests;

use crate::chart::{Page, Table};
use crate::interrupt::Interrupt;
use crate::output::OutputFile;
use crate::{Failure, plot};
use clap::Args;
use judge::{Judgement, Verdict};
use runs::{Finished, Job, Store};
use serde_json::json;
use std::fs;
use std::io::Write;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread;
use suite::{Figure, Suite};

/// The suites of this program.
const SUITES: [(&str, &str); 4] = [
    ("smartt", include_str!("../../suites/smartt.toml")),
    ("swift", include_str!("../../suites/swift.toml")),
    ("mswift", include_str!("../../suites/mswift.toml")),
    ("htsim", include_str!("../../suites/htsim.toml")),
];

#[derive(Debug, Args)]
pub(crate) struct ReproduceArgs {
    /// The suite: smartt, swift, mswift, htsim, or a file FILE.toml in the form of one of them.
    #[arg(value_name = "SUITE")]
    pub(crate) suite: String,
    /// Only the figures with these numbers, or the files of experiments with these names; may be repeated.
    #[arg(long, value_name = "N")]
    pub(crate) figure: Vec<String>,
    /// Smaller fabrics and fewer runs: about a minute on two cores. Claims that hold at full size only are not judged.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Directory for results, figures and the report; the same command goes on with what is there [default:
    /// reproduce-SUITE].
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Number of concurrent runs [default: one per core].
    #[arg(long, value_name = "N")]
    pub(crate) jobs: Option<NonZero<usize>>,
}

/// Runs `weft reproduce`.
pub(crate) fn reproduce(args: &ReproduceArgs) -> Result<(), Failure> {
    let (name, suite) = find(&args.suite)?;
    let figures = chosen(&suite, args)?;
    let suffix = if args.quick { "-quick" } else { "" };
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from(format!("reproduce-{name}{suffix}")));
    let mut store = Store::open(&out)?;
    let mut jobs = Vec::new();
    for figure in &figures {
        jobs.extend(jobs_of(&suite, figure, args.quick, &out)?);
    }
    let cores =
        args.jobs.map_or_else(|| thread::available_parallelism().map_or(1, NonZero::get), NonZero::get);
    let interrupt = Interrupt::on_signals()?;
    let finished = store.run(jobs, cores, &interrupt)?;
    let judgements: Vec<Judgement<'_>> =
        figures.iter().flat_map(|figure| judge::judge(figure, &finished, args.quick)).collect();
    write_lines(&out, &judgements, &finished)?;
    plot::write_page(&out.join("report.html"), page(&suite, &figures, &finished, &judgements, args.quick)?)?;
    say(&report(&suite, &judgements, &out))?;
    let failed = judgements.iter().filter(|judgement| judgement.verdict == Verdict::Fails).count();
    match failed {
        0 => Ok(()),
        _ => Err(Failure::Run(format!("{failed} of {} claims do not hold", judgements.len()))),
    }
}

/// The runs of `figure`.
fn jobs_of(suite: &Suite, figure: &Figure, quick: bool, out: &Path) -> Result<Vec<Job>, Failure> {
    if !figure.experiments.is_empty() {
        return experiments::jobs(figure, quick, out);
    }
    let points = suite::combinations(&figure.options(suite, quick)).into_iter();
    points.map(|point| Job::new(&figure.id, point, suite, out)).collect()
}

/// The suite `name` of this program, or the one in the file of that name.
fn find(name: &str) -> Result<(String, Suite), Failure> {
    if let Some((name, text)) = SUITES.iter().find(|(known, _)| *known == name) {
        return Ok(((*name).to_owned(), Suite::parse(&format!("suite {name}"), text)?));
    }
    let path = PathBuf::from(name);
    if path.extension().is_none_or(|extension| extension != "toml") {
        let known = SUITES.map(|(name, _)| name).join(", ");
        return Err(Failure::Usage(format!("unknown suite '{name}'; expected {known}, or a file FILE.toml")));
    }
    let text = fs::read_to_string(&path).map_err(|e| Failure::at(&path, &e))?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok((stem, Suite::parse(name, &text)?))
}

/// The figures that are asked for.
fn chosen<'a>(suite: &'a Suite, args: &ReproduceArgs) -> Result<Vec<&'a Figure>, Failure> {
    let known = || suite.figure.iter().map(|figure| figure.id.as_str()).collect::<Vec<_>>().join(", ");
    if let Some(id) = args.figure.iter().find(|id| !suite.figure.iter().any(|figure| figure.id == **id)) {
        return Err(Failure::Usage(format!(
            "--figure: there is no figure '{id}'; expected one of: {}",
            known()
        )));
    }
    let wanted = |figure: &&Figure| match args.figure.is_empty() {
        true => !(args.quick && figure.slow),
        false => args.figure.contains(&figure.id),
    };
    Ok(suite.figure.iter().filter(wanted).collect())
}

/// Writes a line of JSON for each claim, and one for each run.
fn write_lines(out: &Path, judgements: &[Judgement<'_>], finished: &[Finished]) -> Result<(), Failure> {
    let path = out.join("results.jsonl");
    let mut text = String::new();
    for judgement in judgements {
        text += &(judgement.json().to_string() + "\n");
    }
    for run in finished {
        let line = json!({ "figure": run.figure, "options": run.point, "results": run.columns });
        text += &(line.to_string() + "\n");
    }
    let written = OutputFile::create(&path).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.commit()
    });
    written.map_err(|e| Failure::at(&path, &e))
}

fn claims_table<'a>(suite: &Suite, judgements: impl Iterator<Item = &'a Judgement<'a>>) -> Table {
    let head = ["figure", "claim", &suite.beside, "measured", "expected", "verdict"];
    let head = head.map(str::to_owned).to_vec();
    Table { head, rows: judgements.map(Judgement::cells).collect() }
}

fn page(
    suite: &Suite,
    figures: &[&Figure],
    finished: &[Finished],
    judgements: &[Judgement<'_>],
    quick: bool,
) -> Result<Page, Failure> {
    let mut page = Page::new(&suite.title);
    page.paragraph(&suite.source);
    if quick {
        page.paragraph("Quick form: fabrics are smaller and runs fewer than in the paper.");
    }
    if !suite.note.is_empty() {
        page.paragraph(&suite.note);
    }
    page.heading("Claims");
    page.table(&claims_table(suite, judgements.iter()));
    for figure in figures {
        page.heading(&format!("Figure {}: {}", figure.id, figure.title));
        page.paragraph(&format!("{}. {}", figure.section, figure.note));
        let runs: Vec<&Finished> = finished.iter().filter(|run| run.figure == figure.id).collect();
        for run in runs.iter().filter_map(|run| run.is_whole().err()) {
            page.paragraph(&format!("{run}: figures are of those that did."));
        }
        for svg in draw::draw(figure, &runs)? {
            page.figure(&svg);
        }
        for judgement in judgements.iter().filter(|judgement| judgement.figure == figure.id) {
            page.paragraph(&judgement.text());
        }
    }
    if !suite.missing.is_empty() {
        page.heading("Not reproduced");
        let rows =
            suite.missing.iter().map(|missing| vec![missing.what.clone(), missing.why.clone()]).collect();
        page.table(&Table { head: vec!["what".to_owned(), "why".to_owned()], rows });
    }
    Ok(page)
}

fn report(suite: &Suite, judgements: &[Judgement<'_>], out: &Path) -> String {
    let mut text = format!("{}\n", suite.title);
    text += &claims_table(suite, judgements.iter()).text();
    let with = |verdict| judgements.iter().filter(|judgement| judgement.verdict == verdict).count();
    let (hold, deviate) = (with(Verdict::Holds), with(Verdict::Deviates));
    text += &format!("  of {} claims {hold} hold, {deviate} deviate for known reasons\n", judgements.len());
    for judgement in judgements.iter().filter(|judgement| judgement.verdict != Verdict::Holds) {
        text += &format!("  figure {}: {}\n", judgement.figure, judgement.text());
    }
    for missing in &suite.missing {
        text += &format!("  not reproduced: {}: {}\n", missing.what, missing.why);
    }
    text + &format!("{}: the page with all figures\n", out.join("report.html").display())
}

fn say(text: &str) -> Result<(), Failure> {
    crate::print(text.as_bytes()).map_err(|e| Failure::Run(format!("standard output: {e}")))
}
