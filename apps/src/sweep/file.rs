//! The sweep file: TOML with a table `[run]` of options that all runs share and a table `[vary]` of lists. Names and
//! values are those of the options of `weft run`, whose parser checks them later.

use crate::Failure;
use crate::options::RunArgs;
use clap::{ArgAction, Args};
use serde_json::Value as Json;
use std::ops::Range;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

/// The most values that an option may take.
const MAX_VALUES: i128 = 1_000_000;

/// Options that name an output file: the runs of a sweep would overwrite each other's.
const OUTPUTS: &[&str] = &["json", "links", "trace", "trace-pdc", "trace-host"];
/// Options that name an output file which all runs of a sweep share.
const SHARED: [&str; 2] = ["flows", "sample-file"];

/// One value of an option.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Value {
    /// The values of the option on the command line: several if the option is repeated.
    pub(crate) texts: Vec<String>,
    /// The value in the table.
    pub(crate) json: Json,
    /// The line of the file, from 1.
    pub(crate) line: usize,
}

/// An option with its values: a single one if it is not varied.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setting {
    /// The option's long name, without its dashes.
    pub(crate) option: String,
    pub(crate) values: Vec<Value>,
}

/// The contents of a sweep file.
#[derive(Debug)]
pub(crate) struct SweepFile {
    /// The name under which errors refer to it.
    pub(crate) name: String,
    /// `[run]`, in the order written.
    pub(crate) fixed: Vec<Setting>,
    /// `[vary]`, in the order written.
    pub(crate) axes: Vec<Setting>,
    /// The options of `[run]` that name files which all runs share.
    shared: Vec<Setting>,
}

impl SweepFile {
    /// The table of the flows of all runs, if the file asks for one.
    ///
    /// # Errors
    /// Its name is that of another kind of file, or of a directory that does not exist.
    pub(crate) fn flows(&self) -> Result<Option<&Path>, Failure> {
        let Some(value) = self.shared("flows") else { return Ok(None) };
        let path = Path::new(&value.texts[0]);
        if path.extension().is_none_or(|ending| ending != "parquet") {
            let what = format!(
                "'flows' is '{}'; expected a name that ends with .parquet: a sweep has the flows of all runs in one table",
                path.display()
            );
            return Err(self.refusal(value.line, &what));
        }
        self.check_directory("flows", value)?;
        Ok(Some(path))
    }

    /// With what the names of samples of all runs begin, if there are samples; `default` if the file does not say it.
    ///
    /// # Errors
    /// The file says it, but does not ask for samples, or names a directory that does not exist.
    pub(crate) fn samples<'a>(&'a self, default: &'a Path) -> Result<Option<&'a Path>, Failure> {
        let sampled = self.fixed.iter().chain(&self.axes).any(|setting| setting.option == "sample");
        match (self.shared("sample-file"), sampled) {
            (Some(value), true) => {
                self.check_directory("sample-file", value)?;
                Ok(Some(Path::new(&value.texts[0])))
            }
            (None, true) => Ok(Some(default)),
            (Some(value), false) => {
                let what =
                    "'sample-file' has no effect without 'sample'; expected the interval of samples too";
                Err(self.refusal(value.line, what))
            }
            (None, false) => Ok(None),
        }
    }

    /// Refuses the name of a file in a directory that does not exist, before any run is made in vain. The current directory is
    /// that of the sweep file.
    fn check_directory(&self, option: &str, value: &Value) -> Result<(), Failure> {
        let file = &value.texts[0];
        match Path::new(file).parent() {
            Some(directory) if !directory.as_os_str().is_empty() && !directory.is_dir() => {
                let what = format!(
                    "'{option}' is '{file}', but there is no directory '{}'; expected a file in one that exists",
                    directory.display()
                );
                Err(self.refusal(value.line, &what))
            }
            _ => Ok(()),
        }
    }

    fn shared(&self, option: &str) -> Option<&Value> {
        self.shared.iter().find(|setting| setting.option == option).map(|setting| &setting.values[0])
    }

    /// Reads `text`, the contents of the file `name`.
    pub(crate) fn parse(name: &str, text: &str) -> Result<SweepFile, Failure> {
        Parser { name, text }.file()
    }

    /// The error `what` in line `line`.
    pub(crate) fn refusal(&self, line: usize, what: &str) -> Failure {
        refusal(&self.name, line, what)
    }
}

fn refusal(name: &str, line: usize, what: &str) -> Failure {
    Failure::Usage(format!("{name}:{line}: {what}"))
}

/// The definition of an option on the command line.
struct RunOption {
    name: String,
    repeatable: bool,
}

fn run_options() -> Vec<RunOption> {
    let command = RunArgs::augment_args(clap::Command::new("run"));
    let known = command.get_arguments().filter_map(|arg| {
        let repeatable = matches!(arg.get_action(), ArgAction::Append);
        Some(RunOption { name: arg.get_long()?.to_owned(), repeatable })
    });
    // Runs in real time never give the same results twice.
    known.filter(|o| o.name != "on" && !OUTPUTS.contains(&o.name.as_str())).collect()
}

struct Parser<'a> {
    name: &'a str,
    text: &'a str,
}

impl Parser<'_> {
    fn file(&self) -> Result<SweepFile, Failure> {
        let document = DeTable::parse(self.text).map_err(|error| {
            let line = error.span().map_or(1, |span| self.line(&span));
            // Some messages of the TOML reader run over several lines.
            let words: Vec<&str> = error.message().split_whitespace().collect();
            refusal(self.name, line, &words.join(" "))
        })?;
        let name = self.name.to_owned();
        let mut file = SweepFile { name, fixed: Vec::new(), axes: Vec::new(), shared: Vec::new() };
        for (key, value) in in_order(document.get_ref()) {
            let DeValue::Table(table) = value.get_ref() else {
                let what = format!("'{}' stands outside of a table; expected [run] or [vary]", key.get_ref());
                return Err(self.refuse(&key.span(), &what));
            };
            match key.get_ref().as_ref() {
                "run" => file.fixed = self.settings(table, |option, value| self.fixed(option, value))?,
                "vary" => file.axes = self.settings(table, |option, value| self.varied(option, value))?,
                other => {
                    let what = format!("unknown table [{other}]; expected [run] or [vary]");
                    return Err(self.refuse(&key.span(), &what));
                }
            }
        }
        self.check_overlap(&file)?;
        if let Some(axis) = file.axes.iter().find(|axis| SHARED.contains(&&*axis.option)) {
            let what = format!("'{}' names one file for all runs; expected it in [run]", axis.option);
            return Err(file.refusal(axis.values[0].line, &what));
        }
        let is_shared = |setting: &mut Setting| SHARED.contains(&&*setting.option);
        file.shared = file.fixed.extract_if(.., is_shared).collect();
        Ok(file)
    }

    /// The options in `table`; `read` parses their values.
    fn settings(
        &self,
        table: &DeTable<'_>,
        read: impl Fn(&RunOption, &Spanned<DeValue<'_>>) -> Result<Vec<Value>, Failure>,
    ) -> Result<Vec<Setting>, Failure> {
        let known = run_options();
        let mut settings = Vec::new();
        for (key, value) in in_order(table) {
            let option = known.iter().find(|option| option.name == key.get_ref().as_ref());
            let option = option.ok_or_else(|| self.unknown(key.get_ref(), &key.span(), &known))?;
            settings.push(Setting { option: option.name.clone(), values: read(option, value)? });
        }
        Ok(settings)
    }

    fn unknown(&self, name: &str, span: &Range<usize>, known: &[RunOption]) -> Failure {
        if OUTPUTS.contains(&name) {
            let what =
                format!("'{name}' would be overwritten by each run; expected no option that names an output");
            return self.refuse(span, &what);
        }
        if name == "on" {
            return self.refuse(span, "a sweep runs in virtual time; expected no option 'on'");
        }
        let names: Vec<&str> = known.iter().map(|option| option.name.as_str()).collect();
        let what = format!("weft run has no option '{name}'; expected one of: {}", names.join(", "));
        self.refuse(span, &what)
    }

    fn fixed(&self, option: &RunOption, value: &Spanned<DeValue<'_>>) -> Result<Vec<Value>, Failure> {
        if value.get_ref().is_array() && !option.repeatable {
            let what =
                format!("'{}' is a list; expected a single value here, and lists in [vary]", option.name);
            return Err(self.refuse(&value.span(), &what));
        }
        Ok(vec![self.value(option, value)?])
    }

    fn varied(&self, option: &RunOption, value: &Spanned<DeValue<'_>>) -> Result<Vec<Value>, Failure> {
        let values = match value.get_ref() {
            DeValue::Array(list) => {
                list.iter().map(|v| self.value(option, v)).collect::<Result<Vec<_>, _>>()?
            }
            DeValue::Table(range) => self.range(range, &value.span())?,
            other => {
                let what = format!(
                    "'{}' is a single {}; expected a list, or {{ from = N, to = N }}",
                    option.name,
                    other.type_str()
                );
                return Err(self.refuse(&value.span(), &what));
            }
        };
        self.check_values(option, &values, &value.span())?;
        Ok(values)
    }

    fn check_values(&self, option: &RunOption, values: &[Value], span: &Range<usize>) -> Result<(), Failure> {
        if values.is_empty() {
            let what = format!("'{}' takes no value at all; expected at least one", option.name);
            return Err(self.refuse(span, &what));
        }
        let mut seen = std::collections::BTreeSet::new();
        match values.iter().find(|value| !seen.insert(&value.texts)) {
            Some(twice) => {
                let what = format!("'{}' takes {} twice; expected different values", option.name, twice.json);
                Err(refusal(self.name, twice.line, &what))
            }
            None => Ok(()),
        }
    }

    /// `{ from = 1, to = 20 }`: whole numbers, both ends included.
    fn range(&self, range: &DeTable<'_>, span: &Range<usize>) -> Result<Vec<Value>, Failure> {
        let bound = |name: &str| range.get(name).and_then(|value| integer(value.get_ref()));
        let (Some(from), Some(to), 2) = (bound("from"), bound("to"), range.len()) else {
            return Err(self.refuse(span, "expected a range such as { from = 1, to = 20 }"));
        };
        if from > to || to.checked_sub(from).is_none_or(|beyond| beyond >= MAX_VALUES) {
            let what = format!(
                "a range from {from} to {to}; expected the lower end first, and at most {MAX_VALUES} values"
            );
            return Err(self.refuse(span, &what));
        }
        let line = self.line(span);
        (from..=to).map(|n| whole(n, line).ok_or_else(|| self.too_large(span))).collect()
    }

    fn too_large(&self, span: &Range<usize>) -> Failure {
        self.refuse(span, "this number is too large; expected at most 18446744073709551615")
    }

    /// Text or a number; a list of them where the option may be repeated.
    fn value(&self, option: &RunOption, value: &Spanned<DeValue<'_>>) -> Result<Value, Failure> {
        if let (DeValue::Array(list), true) = (value.get_ref(), option.repeatable) {
            return self.repeated(list, &value.span());
        }
        let line = self.line(&value.span());
        match value.get_ref() {
            DeValue::String(text) => {
                Ok(Value { texts: vec![text.to_string()], json: text.as_ref().into(), line })
            }
            DeValue::Integer(_) => integer(value.get_ref())
                .and_then(|n| whole(n, line))
                .ok_or_else(|| self.too_large(&value.span())),
            DeValue::Float(number) => {
                let json = number.as_str().parse::<f64>().map_or(Json::Null, Json::from);
                Ok(Value { texts: vec![number.as_str().to_owned()], json, line })
            }
            other => {
                let what = format!("'{}' is a {}; expected text or a number", option.name, other.type_str());
                Err(self.refuse(&value.span(), &what))
            }
        }
    }

    fn repeated(&self, list: &DeArray<'_>, span: &Range<usize>) -> Result<Value, Failure> {
        let text = |value: &Spanned<DeValue<'_>>| match value.get_ref() {
            DeValue::String(text) => Ok(text.to_string()),
            _ => Err(self.refuse(&value.span(), "expected text in this list")),
        };
        let texts = list.iter().map(text).collect::<Result<Vec<String>, Failure>>()?;
        Ok(Value { json: texts.join(" ").into(), texts, line: self.line(span) })
    }

    fn check_overlap(&self, file: &SweepFile) -> Result<(), Failure> {
        let fixed = |axis: &&Setting| file.fixed.iter().any(|setting| setting.option == axis.option);
        match file.axes.iter().find(fixed) {
            Some(axis) => {
                let what = format!("'{}' is in [run] and in [vary]; expected it in one of them", axis.option);
                Err(refusal(self.name, axis.values[0].line, &what))
            }
            None => Ok(()),
        }
    }

    fn refuse(&self, span: &Range<usize>, what: &str) -> Failure {
        refusal(self.name, self.line(span), what)
    }

    fn line(&self, span: &Range<usize>) -> usize {
        let before = &self.text.as_bytes()[..span.start.min(self.text.len())];
        1 + before.iter().filter(|&&byte| byte == b'\n').count()
    }
}

/// The entries of `table` in the order of the file; the table itself sorts them by name.
fn in_order<'t, 'i>(
    table: &'t DeTable<'i>,
) -> Vec<(&'t Spanned<std::borrow::Cow<'i, str>>, &'t Spanned<DeValue<'i>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

fn integer(value: &DeValue<'_>) -> Option<i128> {
    let number = value.as_integer()?;
    i128::from_str_radix(number.as_str(), number.radix()).ok()
}

/// A whole number; `None` if it is beyond what JSON readers and options accept.
fn whole(number: i128, line: usize) -> Option<Value> {
    let json =
        u64::try_from(number).map(Json::from).or_else(|_| i64::try_from(number).map(Json::from)).ok()?;
    Some(Value { texts: vec![number.to_string()], json, line })
}

#[cfg(test)]
mod tests {
    use super::super::properties::any_text_is_a_sweep_or_refused_by_line;
    use super::*;
    use proptest::prelude::*;

    fn refused(text: &str) -> String {
        SweepFile::parse("s.toml", text).expect_err("it must be refused").to_string()
    }

    fn texts(setting: &Setting) -> Vec<String> {
        setting.values.iter().map(|value| value.texts.join("|")).collect()
    }

    #[test]
    fn options_keep_their_order_and_their_lines() {
        let file = SweepFile::parse(
            "s.toml",
            "[run]\nworkload = 'permutation'\nhosts = 8\ncc-set = ['gamma=0.5', 'eta=0.1']\n\
             [vary]\nseed = { from = 3, to = 5 }\ncc = [\n  'nscc',\n  'smartt',\n]\nmtu = [0x100, 4_096]\n",
        )
        .unwrap();
        let names = |settings: &[Setting]| settings.iter().map(|s| s.option.clone()).collect::<Vec<_>>();
        assert_eq!(names(&file.fixed), ["workload", "hosts", "cc-set"]);
        assert_eq!(names(&file.axes), ["seed", "cc", "mtu"]);
        assert_eq!(texts(&file.fixed[2]), ["gamma=0.5|eta=0.1"]);
        assert_eq!(file.fixed[2].values[0].json, Json::from("gamma=0.5 eta=0.1"));
        assert_eq!(texts(&file.axes[0]), ["3", "4", "5"]);
        assert_eq!(texts(&file.axes[2]), ["256", "4096"]);
        assert_eq!(file.axes[2].values[1].json, Json::from(4096));
        assert_eq!(file.axes[1].values.iter().map(|v| v.line).collect::<Vec<_>>(), [8, 9]);
    }

    #[test]
    fn refusals_name_the_line_and_what_was_expected() {
        let cases = [
            ("[run]\nhosts = 8\n[vary\n", "s.toml:3: "),
            ("[run]\nhosts = 8\nhosts = 9\n", "s.toml:3: "),
            ("cc = 'nscc'\n", "s.toml:1: 'cc' stands outside of a table; expected [run] or [vary]"),
            ("[run]\n\n[grid]\n", "s.toml:3: unknown table [grid]; expected [run] or [vary]"),
            ("[run]\nlbb = 'reps'\n", "s.toml:2: weft run has no option 'lbb'; expected one of: matrix, "),
            ("[vary]\njson = ['a']\n", "s.toml:2: 'json' would be overwritten by each run"),
            ("[run]\non = 'loopback'\n", "s.toml:2: a sweep runs in virtual time"),
            ("[run]\ncc = ['nscc']\n", "s.toml:2: 'cc' is a list; expected a single value here"),
            ("[vary]\ncc = 'nscc'\n", "s.toml:2: 'cc' is a single string; expected a list"),
            ("[vary]\ncc = []\n", "s.toml:2: 'cc' takes no value at all"),
            ("[vary]\ncc = [\n'nscc',\n'nscc']\n", "s.toml:4: 'cc' takes \"nscc\" twice"),
            ("[vary]\nflows = ['a.parquet']\n", "s.toml:2: 'flows' names one file for all runs"),
            ("[run]\n\ntrim = true\n", "s.toml:3: 'trim' is a boolean; expected text or a number"),
            ("[vary]\ncc = [['nscc']]\n", "s.toml:2: 'cc' is a array; expected text or a number"),
            (
                "[vary]\nseed = { from = 2, to = 1 }\n",
                "s.toml:2: a range from 2 to 1; expected the lower end",
            ),
            ("[vary]\nseed = { from = 1, to = 9999999999 }\n", "at most 1000000 values"),
            (
                "[vary]\nseed = { from = -99999999999999999999999999999999999999, to = 99999999999999999999999999999999999999 }\n",
                "at most 1000000 values",
            ),
            ("[vary]\nseed = { from = 1 }\n", "s.toml:2: expected a range such as { from = 1, to = 20 }"),
            ("[run]\nseed = 99999999999999999999\n", "s.toml:2: "),
            ("[run]\ncc = 'nscc'\n[vary]\ncc = ['nscc']\n", "s.toml:4: 'cc' is in [run] and in [vary]"),
        ];
        for (text, expected) in cases {
            let message = refused(text);
            assert!(message.contains(expected), "{text:?}: {message}");
            assert_eq!(message.lines().count(), 1, "{message}");
        }
    }

    proptest! {
        /// Words of sweep files in any order: a sweep, or a refusal in one line that names a line of the file.
        #[test]
        fn any_words_are_a_sweep_or_refused_by_line(words in prop::collection::vec(prop::sample::select(vec![
            "[run]\n", "[vary]\n", "[", "]", "{", "}", "=", ",", "\n", "\n", "'", "\"", "\\u", "é", "#", "cc", "seed", "hosts",
            "flows", "sample-file", "'nscc'", "'a.parquet'", "1", "-1", "1e400", "0x", "9223372036854775807", "true",
            "from", "to", "seed = { from = 1, to = 3 }\n", "cc = ['nscc', 'smartt']\n", "hosts = 8\n", "1979-05-27",
        ]), 0..24)) {
            any_text_is_a_sweep_or_refused_by_line(&words.concat());
        }
    }

    #[test]
    fn files_of_all_runs_are_not_options_of_runs() {
        let parse = |text: &str| SweepFile::parse("s.toml", text).unwrap();
        let default = Path::new("table");
        let file = parse("[run]\nflows = 'f.parquet'\nhosts = 8\nsample-file = 'x'\nsample = '1us'\n");
        let names: Vec<&str> = file.fixed.iter().map(|setting| setting.option.as_str()).collect();
        assert_eq!(names, ["hosts", "sample"]);
        assert_eq!(file.flows().unwrap(), Some(Path::new("f.parquet")));
        assert_eq!(file.samples(default).unwrap(), Some(Path::new("x")));
        let varied = parse("[vary]\nsample = ['1us', '2us']\n");
        assert_eq!((varied.flows().unwrap(), varied.samples(default).unwrap()), (None, Some(default)));
        assert_eq!(parse("[run]\nhosts = 8\n").samples(default).unwrap(), None);

        let refused = parse("[run]\n\nflows = 'f.csv'\n").flows().unwrap_err().to_string();
        assert!(
            refused.starts_with("s.toml:3: 'flows' is 'f.csv'; expected a name that ends with"),
            "{refused}"
        );
        let refused = parse("[run]\nsample-file = 'x'\n").samples(default).unwrap_err().to_string();
        assert!(refused.starts_with("s.toml:2: 'sample-file' has no effect without 'sample'"), "{refused}");
    }

    /// An option that names a file to write must be among the outputs.
    #[test]
    fn every_option_that_takes_a_file_is_known_to_read_or_write_it() {
        const INPUTS: &[&str] = &["matrix", "link-events"];
        let command = RunArgs::augment_args(clap::Command::new("run"));
        let path = std::any::TypeId::of::<std::path::PathBuf>();
        let long = |arg: &clap::Arg| arg.get_long().unwrap_or_default().to_owned();
        for arg in command.get_arguments().filter(|arg| arg.get_value_parser().type_id() == path) {
            let name = long(arg);
            let known = [INPUTS, OUTPUTS, &SHARED].iter().any(|options| options.contains(&&*name));
            assert!(known, "--{name}: is it an output?");
        }
        for output in OUTPUTS.iter().chain(&SHARED) {
            assert!(command.get_arguments().any(|arg| long(arg) == *output), "{output}");
        }
    }
}
