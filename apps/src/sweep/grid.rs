//! The grid: every combination of the varied options' values, in the order written, the last
//! varying fastest.

use super::file::{Setting, SweepFile, Value};
use super::summary::SEED;
use crate::Failure;
use crate::columnar::{Column, Columns};
use crate::options::RunArgs;
use parquet::data_type::ByteArray;
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

/// The most runs in a sweep.
const MAX_RUNS: usize = 10_000_000;

/// The runs of a sweep file, numbered from 0.
#[derive(Debug)]
pub(crate) struct Grid {
    file: SweepFile,
    runs: usize,
}

impl Grid {
    pub(crate) fn new(file: SweepFile) -> Result<Grid, Failure> {
        let sizes = file.axes.iter().map(|axis| axis.values.len());
        let runs = sizes.into_iter().try_fold(1usize, usize::checked_mul).filter(|&n| n <= MAX_RUNS);
        let Some(runs) = runs else {
            let line = file.axes[0].values[0].line;
            return Err(file.refusal(line, &format!("[vary] is too large; expected at most {MAX_RUNS} runs")));
        };
        Ok(Grid { file, runs })
    }

    pub(crate) fn file(&self) -> &SweepFile {
        &self.file
    }

    /// How many runs there are; at least one.
    pub(crate) fn runs(&self) -> usize {
        self.runs
    }

    /// The varied options of run `index` with their values.
    fn varied(&self, index: usize) -> Vec<(&Setting, &Value)> {
        let mut rest = index;
        let mut point: Vec<_> = (self.file.axes.iter().rev())
            .map(|axis| {
                let value = &axis.values[rest % axis.values.len()];
                rest /= axis.values.len();
                (axis, value)
            })
            .collect();
        point.reverse();
        point
    }

    /// All options of run `index` with their values.
    fn settings(&self, index: usize) -> impl Iterator<Item = (&Setting, &Value)> {
        self.file.fixed.iter().map(|setting| (setting, &setting.values[0])).chain(self.varied(index))
    }

    /// The options of run `index` as columns of the table, those that all runs share first.
    pub(crate) fn columns(&self, index: usize) -> impl Iterator<Item = (String, &Json)> {
        self.settings(index).map(|(setting, value)| (setting.option.replace('-', "_"), &value.json))
    }

    /// The varied options of run `index` and its seed as columns with one value each, of the same types for all runs.
    ///
    /// # Errors
    /// The run's options make no sense.
    pub(crate) fn keys(&self, index: usize) -> Result<Columns, Failure> {
        let key = |(axis, value): (&Setting, &Value)| {
            let name = axis.option.replace('-', "_");
            if axis.values.iter().all(|value| value.json.is_i64()) {
                return (name, Column::Long(value.json.as_i64().into_iter().collect()));
            }
            if axis.values.iter().all(|value| value.json.is_number()) {
                return (name, Column::Double(value.json.as_f64().into_iter().collect()));
            }
            let text = value.json.as_str().map_or_else(|| value.json.to_string(), str::to_owned);
            (name, Column::Text(vec![ByteArray::from(text.into_bytes())]))
        };
        let mut keys: Columns = self.varied(index).into_iter().map(key).collect();
        if keys.iter().all(|(name, _)| name != SEED) {
            let seed = RunArgs::parse(self.arguments(index))?.seed;
            keys.push((SEED.to_owned(), Column::Long(vec![seed.cast_signed()])));
        }
        Ok(keys)
    }

    /// For each run, a hash of what its results follow from: its options, the contents of the files that they name, and
    /// `version`. It does not depend on the rest of the sweep.
    pub(crate) fn run_identities(&self, version: &str) -> io::Result<Vec<String>> {
        let mut files = BTreeMap::new();
        (0..self.runs).map(|run| identity_of(&self.arguments(run), version, &mut files)).collect()
    }

    /// Run `index` as arguments of `weft run`.
    pub(crate) fn arguments(&self, index: usize) -> Vec<String> {
        let argument = |(setting, value): (&Setting, &Value)| -> Vec<String> {
            value.texts.iter().map(|text| format!("--{}={text}", setting.option)).collect()
        };
        self.settings(index).flat_map(argument).collect()
    }

    /// A description of run `index` for messages: its number and its varied options.
    pub(crate) fn label(&self, index: usize) -> String {
        let varied = self.varied(index).into_iter();
        let words: Vec<String> = varied.map(|(s, v)| format!("{}={}", s.option, v.texts.join(","))).collect();
        format!("run {} of {}: {}", index + 1, self.runs, words.join(" ")).trim_end_matches(": ").to_owned()
    }

    /// The largest number of threads of any run.
    pub(crate) fn threads(&self) -> usize {
        let settings = self.file.fixed.iter().chain(&self.file.axes);
        let values = settings.filter(|s| s.option == "threads").flat_map(|s| &s.values);
        values.filter_map(|value| value.texts.first()?.parse().ok()).max().unwrap_or(1).max(1)
    }

    /// Checks that run `index` can be made. `rehearse` gets its options once the parser has accepted them, and returns
    /// what is wrong with their combination.
    pub(crate) fn check(
        &self,
        index: usize,
        rehearse: impl FnOnce(&[String]) -> Result<(), String>,
    ) -> Result<(), Failure> {
        let arguments = self.arguments(index);
        RunArgs::parse(arguments.iter().cloned())
            .map_err(|failure| failure.to_string())
            .and_then(|_| rehearse(&arguments))
            .map_err(|complaint| self.blame(index, &complaint))
    }

    /// The error `complaint` about run `index`, with the line of the option or file that it names first.
    fn blame(&self, index: usize, complaint: &str) -> Failure {
        let named = self.settings(index).filter_map(|(setting, value)| {
            let at = named_at(complaint, &setting.option);
            let file = value.texts.iter().any(|text| complaint.starts_with(&format!("{text}:")));
            Some((if file { 0 } else { at? }, value.line))
        });
        let label = self.label(index);
        match named.min() {
            Some((_, line)) => self.file.refusal(line, &format!("{complaint} ({label})")),
            None => Failure::Usage(format!("{}: {complaint} ({label})", self.file.name)),
        }
    }

    /// A hash of the options, of the contents of the files that they name, and of `version`.
    pub(crate) fn identity(&self, version: &str) -> io::Result<String> {
        let mut hash = Fnv::new();
        hash.text(version);
        let mut files = BTreeSet::new();
        for (kind, settings) in [("run", &self.file.fixed), ("vary", &self.file.axes)] {
            for setting in settings {
                hash.text(kind);
                hash.text(&setting.option);
                for value in &setting.values {
                    hash.count(value.texts.len());
                    value.texts.iter().for_each(|text| hash.text(text));
                    files.extend(value.texts.iter().flat_map(|text| files_in(&setting.option, text)));
                }
            }
        }
        for path in files {
            hash.text(path);
            hash.contents(BufReader::new(File::open(path)?))?;
        }
        Ok(format!("{:016x}", hash.0))
    }
}

/// A hash of what the results of a run follow from: its `arguments` in any order, the contents of the files that they
/// name, whose hashes `files` keeps, and `version`.
pub(crate) fn identity_of(
    arguments: &[String],
    version: &str,
    files: &mut BTreeMap<String, u64>,
) -> io::Result<String> {
    let mut arguments: Vec<&String> = arguments.iter().collect();
    // Stable: the values of a repeated option keep their order.
    arguments.sort_by_key(|argument| argument.split('=').next());
    let mut hash = Fnv::new();
    hash.text(version);
    for argument in arguments {
        hash.text(argument);
        let (option, value) = argument.trim_start_matches('-').split_once('=').unwrap_or_default();
        for path in files_in(option, value) {
            if !files.contains_key(path) {
                let mut contents = Fnv::new();
                contents.contents(BufReader::new(File::open(path)?))?;
                files.insert(path.to_owned(), contents.0);
            }
            hash.bytes(&files[path].to_le_bytes());
        }
    }
    Ok(format!("{:016x}", hash.0))
}

/// The files that `value`, a value of `option`, names.
fn files_in<'a>(option: &str, value: &'a str) -> impl Iterator<Item = &'a str> {
    // A description of a workload may name a program, or files with sizes of flows.
    let workload = Some(value).filter(|_| option == "workload");
    let program = workload.and_then(|value| value.strip_prefix("goal:"));
    let words = workload.into_iter().flat_map(|value| value.split([':', ',', '=']));
    let words = words.filter(move |word| *word != value && Some(*word) != program);
    std::iter::once(value).chain(program).chain(words).filter(|text| Path::new(text).is_file())
}

/// A part of a sweep: the runs whose number leaves `index - 1` when divided by `of`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    /// From 1 to `of`.
    pub(crate) index: usize,
    pub(crate) of: usize,
}

impl Shard {
    pub(crate) fn has(self, run: usize) -> bool {
        run % self.of == self.index - 1
    }
}

impl std::str::FromStr for Shard {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Shard, Self::Err> {
        let numbers = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match numbers {
            Some((index, of)) if (1..=of).contains(&index) => Ok(Shard { index, of }),
            _ => Err("expected I/N with I from 1 to N, such as 1/8"),
        }
    }
}

/// Where `complaint` names `option`.
fn named_at(complaint: &str, option: &str) -> Option<usize> {
    let flag = format!("--{option}");
    let at = complaint.find(&flag)?;
    // A complaint about `--cc-set` does not name `--cc`.
    let longer = complaint[at + flag.len()..].starts_with(|c: char| c == '-' || c.is_alphanumeric());
    (!longer).then_some(at)
}

/// The hash FNV-1a with 64 bits, which gives the same value on every machine. (G. Fowler, L. Noll, K.-P. Vo, 1991.)
struct Fnv(u64);

impl Fnv {
    fn new() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    }

    fn count(&mut self, count: usize) {
        self.bytes(&(count as u64).to_le_bytes());
    }

    /// Hashes `text` with its length, so that different lists of texts give different bytes.
    fn text(&mut self, text: &str) {
        self.count(text.len());
        self.bytes(text.as_bytes());
    }

    fn contents(&mut self, mut reader: impl Read) -> io::Result<()> {
        let mut buffer = [0; 1 << 16];
        loop {
            match reader.read(&mut buffer)? {
                0 => return Ok(()),
                n => self.bytes(&buffer[..n]),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::resolve;

    fn grid(text: &str) -> Grid {
        Grid::new(SweepFile::parse("s.toml", text).unwrap()).unwrap()
    }

    fn check(grid: &Grid, index: usize) -> Result<(), Failure> {
        grid.check(index, |arguments| {
            let plan = RunArgs::parse(arguments.iter().cloned()).and_then(|args| resolve(&args));
            plan.map(drop).map_err(|failure| failure.to_string())
        })
    }

    const SMALL: &str = "[run]\nworkload = 'permutation'\nhosts = 8\nsize = '16KiB'\n\
                         [vary]\ncc = ['nscc', 'smartt']\nwire-overhead = ['auto']\nseed = { from = 1, to = 3 }\n";

    #[test]
    fn the_last_option_varies_fastest() {
        let grid = grid(SMALL);
        assert_eq!(grid.runs(), 6);
        let labels: Vec<String> = (0..6).map(|i| grid.label(i)).collect();
        assert_eq!(labels[0], "run 1 of 6: cc=nscc wire-overhead=auto seed=1");
        assert_eq!(labels[2], "run 3 of 6: cc=nscc wire-overhead=auto seed=3");
        assert_eq!(labels[3], "run 4 of 6: cc=smartt wire-overhead=auto seed=1");
        let arguments = grid.arguments(5);
        let expected =
            ["workload=permutation", "hosts=8", "size=16KiB", "cc=smartt", "wire-overhead=auto", "seed=3"];
        assert_eq!(arguments, expected.map(|a| format!("--{a}")));
        let columns: Vec<_> = grid.columns(5).map(|(name, json)| format!("{name}:{json}")).collect();
        let shared = ["workload:\"permutation\"", "hosts:8", "size:\"16KiB\""];
        assert_eq!(columns, [&shared[..], &["cc:\"smartt\"", "wire_overhead:\"auto\"", "seed:3"]].concat());
        (0..6).for_each(|i| check(&grid, i).unwrap());
    }

    #[test]
    fn every_combination_occurs_once() {
        let grid = grid("[vary]\ncc = ['a', 'b', 'c']\nlb = ['x', 'y']\npaths = [1, 2, 3, 4]\nseed = [7]\n");
        let points: BTreeSet<Vec<String>> = (0..grid.runs()).map(|i| grid.arguments(i)).collect();
        assert_eq!((grid.runs(), points.len()), (24, 24));
    }

    #[test]
    fn a_sweep_may_vary_nothing_but_not_everything() {
        let one = grid("[run]\nworkload = 'permutation'\n");
        assert_eq!((one.runs(), one.label(0).as_str(), one.threads()), (1, "run 1 of 1", 1));
        assert_eq!(grid("[vary]\nthreads = [2, 4, 1]\n").threads(), 4);
        let range = "{ from = 1, to = 100000 }";
        let file = SweepFile::parse("s.toml", &format!("[vary]\nseed = {range}\nsize = {range}\n")).unwrap();
        let message = Grid::new(file).unwrap_err().to_string();
        assert_eq!(message, "s.toml:2: [vary] is too large; expected at most 10000000 runs");
    }

    #[test]
    fn an_error_in_a_run_names_the_line_of_the_option() {
        let refused = |text: &str, index| check(&grid(text), index).unwrap_err().to_string();
        let lb = "[run]\nworkload = 'permutation'\n[vary]\nlb = [\n'mixed',\n'conga']\nseed = [1, 2]\n";
        assert!(check(&grid(lb), 1).is_ok());
        let message = refused(lb, 3);
        assert!(message.starts_with("s.toml:6: --lb: unknown load balancer 'conga'"), "{message}");
        assert!(message.ends_with(" (run 4 of 4: lb=conga seed=2)"), "{message}");

        let set = "[run]\nworkload = 'permutation'\ncc = 'nscc'\n[vary]\ncc-set = ['gamma=0.5', 'speed=1']\n";
        assert!(
            refused(set, 1).starts_with("s.toml:5: --cc-set: nscc has no parameter"),
            "{}",
            refused(set, 1)
        );
        let mtu = "[run]\nworkload = 'permutation'\nmtu = 3\n";
        assert!(refused(mtu, 0).starts_with("s.toml:3: invalid value '3' for '--mtu"), "{}", refused(mtu, 0));
        let none = "[vary]\nseed = [1]\n";
        assert!(refused(none, 0).starts_with("s.toml: "), "{}", refused(none, 0));
        let dash = "[run]\nworkload = 'permutation'\n[vary]\nlb = ['--help', '-x']\n";
        assert!(
            refused(dash, 0).starts_with("s.toml:4: --lb: unknown load balancer"),
            "{}",
            refused(dash, 0)
        );
    }

    #[test]
    fn the_identity_follows_what_changes_results() {
        let id = |text: &str, version: &str| grid(text).identity(version).unwrap();
        let first = id(SMALL, "1");
        assert_eq!(first, id(&format!("# a remark\n{SMALL}"), "1"));
        assert_ne!(first, id(SMALL, "2"));
        assert_ne!(first, id(&SMALL.replace("16KiB", "17KiB"), "1"));
        assert_ne!(first, id(&SMALL.replace("'nscc', 'smartt'", "'smartt', 'nscc'"), "1"));
        assert_ne!(id("[run]\ncc-set=['a', 'b']", "1"), id("[run]\ncc-set=['ab']", "1"));
        assert_ne!(id("[vary]\ncc-set=[['a', 'b']]", "1"), id("[vary]\ncc-set=['a', 'b']", "1"));

        let path = std::env::temp_dir().join(format!("weft-identity-{}.cm", std::process::id()));
        let text = format!("[run]\nmatrix = '{}'\n", path.display());
        std::fs::write(&path, "Nodes 2\n").unwrap();
        let before = id(&text, "1");
        std::fs::write(&path, "Nodes 3\n").unwrap();
        let after = id(&text, "1");
        std::fs::remove_file(&path).unwrap();
        assert_ne!(before, after);
    }

    #[test]
    fn a_run_keeps_its_identity_in_another_sweep() {
        let ids = |text: &str| grid(text).run_identities("1").unwrap();
        let few = ids(SMALL);
        let more = ids(&SMALL.replace("to = 3", "to = 5"));
        assert_eq!((few[0..3].to_vec(), few[3..].to_vec()), (more[0..3].to_vec(), more[5..8].to_vec()));
        let moved = "[run]\nseed = 2\ncc = 'smartt'\nsize = '16KiB'\nwire-overhead = 'auto'\nhosts = 8\n\
                     [vary]\nworkload = ['permutation']\n";
        assert_eq!(ids(moved), few[4..5]);
        let different: BTreeSet<String> = more.iter().cloned().collect();
        assert_eq!(different.len(), 10);
        assert_ne!(grid(SMALL).run_identities("2").unwrap()[0], few[0]);
    }

    #[test]
    fn a_run_has_another_identity_when_sizes_in_a_file_change() {
        let path = std::env::temp_dir().join(format!("weft-sizes-{}.txt", std::process::id()));
        let text = format!("[run]\nworkload = 'poisson:load=0.5,sizes={},duration=1ms'\n", path.display());
        let ids = || {
            let grid = grid(&text);
            (grid.identity("1").unwrap(), grid.run_identities("1").unwrap())
        };
        std::fs::write(&path, "1000 0.5\n2000 1\n").unwrap();
        let before = ids();
        std::fs::write(&path, "1000 0.5\n3000 1\n").unwrap();
        let after = ids();
        std::fs::remove_file(&path).unwrap();
        assert_ne!(before.0, after.0);
        assert_ne!(before.1, after.1);
    }

    #[test]
    fn keys_are_the_varied_options_and_the_seed() {
        let text = |column: &str| Column::Text(vec![ByteArray::from(column)]);
        let keys = grid(SMALL).keys(5).unwrap();
        let names: Vec<&str> = keys.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["cc", "wire_overhead", "seed"]);
        assert_eq!(keys[0].1, text("smartt"));
        assert_eq!(keys[2].1, Column::Long(vec![3]));
        // A time without a unit is no option of a run, whose seed is therefore unknown.
        assert!(grid("[run]\nworkload='permutation'\n[vary]\nuntil = [1.5, 2]\n").keys(0).is_err());
        let mixed = grid("[run]\nworkload='permutation'\nseed = 9\n[vary]\nsize = [1000, '2KiB']\n");
        assert_eq!(
            mixed.keys(0).unwrap(),
            [("size".into(), text("1000")), ("seed".into(), Column::Long(vec![9]))]
        );
    }

    #[test]
    fn a_run_has_another_identity_when_a_file_that_it_names_changes() {
        let scratch = tempfile::tempdir().unwrap();
        // Characters that separate the settings of descriptions are allowed in the names of programs.
        let path = scratch.path().join("of,a=b:c");
        let path = path.to_str().unwrap();
        for value in [
            format!("[run]\nworkload = 'goal:{path}'\n"),
            format!("[run]\nworkload = 'permutation'\ntopology = '{path}'\n"),
            format!("[run]\nmatrix = '{path}'\n"),
        ] {
            let ids = |contents: &str| {
                std::fs::write(path, contents).unwrap();
                (grid(&value).run_identities("1").unwrap(), grid(&value).identity("1").unwrap())
            };
            let (before, after) = (ids("one"), ids("two"));
            assert!(before.0 != after.0 && before.1 != after.1, "{value}");
            assert_eq!(ids("one"), before, "{value}");
        }
        let sizes = scratch.path().join("sizes");
        let text = format!("[run]\nworkload = 'poisson:load=0.1,sizes={},flows=1'\n", sizes.display());
        let ids = |contents: &str| {
            std::fs::write(&sizes, contents).unwrap();
            grid(&text).run_identities("1").unwrap()
        };
        assert_ne!(ids("0 0\n9 100\n"), ids("0 0\n8 100\n"));
    }

    #[test]
    fn every_run_belongs_to_one_shard() {
        let shard = |text: &str| text.parse::<Shard>();
        for run in 0..20 {
            assert_eq!((1..=3).filter(|i| shard(&format!("{i}/3")).unwrap().has(run)).count(), 1);
        }
        for wrong in ["", "1", "0/3", "4/3", "1/0", "a/b", "-1/3"] {
            assert!(shard(wrong).is_err(), "{wrong}");
        }
    }
}
