//! Suites of experiments: command lines of `htsim_uec`, run as `weft htsim` runs them, and limits for completion times.

use super::runs::Job;
use super::suite::{Claim, Draw, Figure, Measure, Suite, read};
use crate::{Failure, htsim};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

/// Matrices and topologies of the suite of this program, and the notice under which they are copied, by their names.
macro_rules! data {
    ($($path:literal),* $(,)?) => {
        [$(($path, include_str!(concat!("../../../testbed/data/", $path)))),*]
    };
}
const DATA: [(&str, &str); 16] = data![
    "LICENSE",
    "matrices/bidir.cm",
    "matrices/incast.cm",
    "matrices/incast_1024_100K.cm",
    "matrices/incast_128.cm",
    "matrices/incast_3-1_overlapped.tm",
    "matrices/one.cm",
    "matrices/outcast_incast.cm",
    "matrices/perm_1024n_1024c_0u_2000000b.cm",
    "matrices/perm_16n_16c_2MB.cm",
    "matrices/test_cr_1f10m10p.cm",
    "matrices/test_cr_1f10m1p.cm",
    "matrices/test_cr_1f1m100p.cm",
    "matrices/test_cr_1f1m10p.cm",
    "topologies/leaf_spine_1024_oversub.topo",
    "topologies/leaf_spine_1024_oversub_8-1.topo",
];

/// A suite of experiments.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Experiments {
    title: String,
    source: String,
    /// The program whose limits these are, and whose results stand beside those of weft.
    program: String,
    #[serde(default)]
    note: String,
    file: Vec<ExperimentFile>,
}

/// The experiments of a file of the source, in its order.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExperimentFile {
    name: String,
    experiment: Vec<Experiment>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Experiment {
    name: String,
    /// A matrix of [`DATA`], or a file.
    matrix: String,
    /// Arguments of `weft htsim` beside `-tm`. The word after `-topo` is a topology of [`DATA`], or a file.
    arguments: String,
    /// The time by which the last flow has to end, µs.
    tail_us: f64,
    /// The time at which it ends in the source's own program, µs, where that is known.
    program_us: Option<f64>,
    /// Times by which single flows have to end, µs, by their names `Uec_SRC_DST`.
    #[serde(default)]
    flows: BTreeMap<String, f64>,
    /// Whether it is left out with `--quick`.
    #[serde(default)]
    slow: bool,
    /// Why the last flow ends too late, if it does.
    missed: Option<String>,
}

/// Whether `text` is a suite of experiments, and not one of figures.
pub(super) fn are_in(text: &str) -> bool {
    toml::from_str::<toml::Table>(text).is_ok_and(|table| table.contains_key("file"))
}

/// Reads `text`, the contents of the file `name`: each file of experiments becomes a figure, each limit a claim.
///
/// # Errors
/// The file is malformed; the error names its line.
pub(super) fn parse(name: &str, text: &str) -> Result<Suite, Failure> {
    let Experiments { title, source, program, note, file } = read(name, text)?;
    let figure = file.into_iter().map(ExperimentFile::figure).collect();
    Ok(Suite { title, source, note, beside: program, figure, ..Suite::default() })
}

impl ExperimentFile {
    fn figure(self) -> Figure {
        let numbered = self.experiment.iter().zip(1..);
        let claims = numbered.flat_map(|(experiment, n)| experiment.claims(&self.name, n));
        Figure {
            claim: claims.collect(),
            title: "experiments and their limits".to_owned(),
            section: self.name.clone(),
            draw: Draw::Nothing,
            slow: self.experiment.iter().all(|experiment| experiment.slow),
            id: self.name,
            experiments: self.experiment,
            ..Figure::default()
        }
    }
}

impl Experiment {
    /// Its limits. It is number `n` of the file `file`.
    fn claims(&self, file: &str, n: u32) -> Vec<Claim> {
        let of = BTreeMap::from([("experiment".to_owned(), toml::Value::Integer(n.into()))]);
        let claim = |what: &str, column: String, at_most: f64| Claim {
            says: format!("{}: {what}.", self.name),
            measure: Measure { column, of: of.clone(), pick: None },
            at_most: Some(at_most),
            because: format!("The limit is that of {file}."),
            slow: self.slow,
            ..Claim::default()
        };
        let flows = self.flows.iter();
        let mut claims: Vec<Claim> =
            flows.map(|(flow, limit)| claim(&format!("{flow} ends, µs"), end_column(flow), *limit)).collect();
        let tail = claim("the last flow ends, µs", "end_us_max".to_owned(), self.tail_us);
        claims.push(Claim { paper: self.program_us, deviates: self.missed.clone(), ..tail });
        claims.push(claim("flows that do not finish", "unfinished".to_owned(), 0.0));
        claims
    }

    /// Its run, as number `n` of the file `file`. Data inside the program are written to `out`.
    fn job(&self, file: &str, n: usize, out: &Path) -> Result<Job, Failure> {
        let refused = |what: String| Failure::Usage(format!("{file}: {}: {what}", self.name));
        let mut words = vec!["-tm".to_owned(), data_file("matrices", &self.matrix, out)?];
        for word in self.arguments.split_whitespace() {
            let is_topology = words.last().is_some_and(|before| before == "-topo");
            words.push(if is_topology { data_file("topologies", word, out)? } else { word.to_owned() });
        }
        let words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
        let (arguments, plan) = htsim::as_run(&words).map_err(|e| refused(e.to_string()))?;
        let point = BTreeMap::from([("experiment".to_owned(), n.to_string())]);
        let job = Job::with_arguments(file, point, arguments, &plan).map_err(|e| refused(e.to_string()))?;
        Ok(job.watching(self.flows.keys().cloned().collect()))
    }
}

/// The column with the time at which `flow` ends.
pub(super) fn end_column(flow: &str) -> String {
    format!("end_us_{flow}")
}

/// The runs of the experiments of `figure`.
pub(super) fn jobs(figure: &Figure, quick: bool, out: &Path) -> Result<Vec<Job>, Failure> {
    let numbered = figure.experiments.iter().zip(1..);
    let chosen = numbered.filter(|(experiment, _)| !(quick && experiment.slow));
    chosen.map(|(experiment, n)| experiment.job(&figure.id, n, out)).collect()
}

/// The name of the file `name`: written to `out` if it is inside the program, as given if not.
fn data_file(kind: &str, name: &str, out: &Path) -> Result<String, Failure> {
    let inside = format!("{kind}/{name}");
    let Some((_, text)) = DATA.iter().find(|(known, _)| *known == inside) else {
        return Ok(name.to_owned());
    };
    let (directory, notice) = (out.join("runs").join(kind), DATA[0]);
    let write = |path: &Path, text: &str| fs::write(path, text).map_err(|e| Failure::at(path, &e));
    fs::create_dir_all(&directory).map_err(|e| Failure::at(&directory, &e))?;
    write(&directory.join(notice.0), notice.1)?;
    let path = directory.join(name);
    write(&path, text)?;
    Ok(path.display().to_string())
}
