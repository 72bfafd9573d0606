//! The file of a suite: figures of a paper as runs of `weft run`, and what the paper says of them.
//!
//! docs/reproduce.md describes the format. Suites of experiments have their own ([`experiments`]).

use super::experiments::{self, Experiment};
use crate::Failure;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

/// Options of `weft run` by their long names: a single value, or a list of values if it is varied.
pub(super) type Options = BTreeMap<String, toml::Value>;

/// A suite.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Suite {
    pub(super) title: String,
    /// The paper or program that is reproduced.
    pub(super) source: String,
    /// What differs from the source for all figures.
    #[serde(default)]
    pub(super) note: String,
    /// Options of all runs.
    #[serde(default)]
    pub(super) run: Options,
    /// Connection matrices by the names that `matrix` calls them by.
    #[serde(default)]
    pub(super) matrix: BTreeMap<String, String>,
    /// Options that go together, by the names that `case` calls them by.
    #[serde(default)]
    pub(super) case: BTreeMap<String, Options>,
    #[serde(default)]
    pub(super) figure: Vec<Figure>,
    #[serde(default)]
    pub(super) missing: Vec<Missing>,
    /// What the numbers are of that stand beside those of weft.
    #[serde(skip, default = "paper")]
    pub(super) beside: String,
}

fn paper() -> String {
    "paper".to_owned()
}

/// A figure or table of the source.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Figure {
    /// Its number in the source, such as `13a`.
    pub(super) id: String,
    pub(super) title: String,
    /// Where the source speaks of it.
    pub(super) section: String,
    #[serde(default)]
    pub(super) note: String,
    pub(super) draw: Draw,
    /// The option that is told by colour, and the one that is told by place.
    pub(super) series: String,
    #[serde(default)]
    pub(super) group: Option<String>,
    /// The column that is drawn as bars, and its name with the unit.
    #[serde(default = "default_column")]
    pub(super) column: String,
    #[serde(default = "default_label")]
    pub(super) label: String,
    /// Options of its runs, beside those of the suite. Lists are varied.
    pub(super) run: Options,
    /// Values that take the place of those above with `--quick`.
    #[serde(default)]
    pub(super) quick: Options,
    /// Whether it is left out with `--quick`.
    #[serde(default)]
    pub(super) slow: bool,
    /// Numbers of the source, or of a model, that stand beside the bars.
    #[serde(default)]
    pub(super) beside: Option<Beside>,
    /// Names for options and their values in figures.
    #[serde(default)]
    pub(super) names: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) claim: Vec<Claim>,
    /// Experiments that take the place of runs with options.
    #[serde(skip)]
    pub(super) experiments: Vec<Experiment>,
}

/// Numbers that are drawn as bars of their own.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Beside {
    /// The label of the bars.
    pub(super) name: String,
    /// One for each value of `group`.
    pub(super) values: BTreeMap<String, f64>,
}

fn default_column() -> String {
    "fct_us_max".to_owned()
}

fn default_label() -> String {
    "completion time of the last flow, µs".to_owned()
}

/// How a figure is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Draw {
    /// Cumulative distributions of completion times, a chart for each group.
    FctCdf,
    /// Bars with intervals over the seeds.
    Bars,
    /// Goodputs of flows over time, a chart for each value that is told by colour, of the first seed.
    Goodputs,
    /// Not at all: experiments have a table only.
    #[default]
    #[serde(skip)]
    Nothing,
}

/// Something that the source says.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Claim {
    /// In a sentence.
    pub(super) says: String,
    /// The source's number, if it states one.
    #[serde(default)]
    pub(super) paper: Option<f64>,
    pub(super) measure: Measure,
    /// This measure is subtracted.
    #[serde(default)]
    pub(super) less: Option<Measure>,
    /// The measure is divided by this one.
    #[serde(default)]
    pub(super) over: Option<Measure>,
    #[serde(default)]
    pub(super) at_least: Option<f64>,
    #[serde(default)]
    pub(super) at_most: Option<f64>,
    /// Why the limits are what they are.
    pub(super) because: String,
    /// Whether the claim is of the whole size only, and not judged with `--quick`.
    #[serde(default)]
    pub(super) slow: bool,
    /// The reason of a deviation that is known and understood: the claim is shown, and does not fail the suite.
    #[serde(default)]
    pub(super) deviates: Option<String>,
    /// The runs in which it deviates.
    #[serde(default)]
    pub(super) deviates_with: Runs,
}

/// The sizes of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Runs {
    /// Those of the whole size and those with `--quick`.
    #[default]
    All,
    /// Those of the whole size.
    Whole,
    /// Those with `--quick`.
    Quick,
}

impl Runs {
    /// Whether runs with or without `quick` are among them.
    pub(super) fn includes(self, quick: bool) -> bool {
        self == Runs::All || (self == Runs::Quick) == quick
    }
}

/// A value taken from the results of a figure's runs.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Measure {
    pub(super) column: String,
    /// The runs: those with these options.
    #[serde(default)]
    pub(super) of: BTreeMap<String, toml::Value>,
    /// Which value is taken if runs differ in more than their seeds.
    #[serde(default)]
    pub(super) pick: Option<Pick>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Pick {
    Least,
    Greatest,
}

/// Something of the source that is not reproduced.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Missing {
    pub(super) what: String,
    pub(super) why: String,
}

/// Reads `text`, the contents of the file `name`.
///
/// # Errors
/// It is malformed; the error names the line.
pub(super) fn read<T: DeserializeOwned>(name: &str, text: &str) -> Result<T, Failure> {
    toml::from_str(text).map_err(|error| {
        let before = error.span().map_or("", |span| &text[..span.start.min(text.len())]);
        let line = 1 + before.matches('\n').count();
        let words: Vec<&str> = error.message().split_whitespace().collect();
        Failure::Usage(format!("{name}:{line}: {}", words.join(" ")))
    })
}

impl Suite {
    /// Reads `text`, the contents of the file `name`.
    ///
    /// # Errors
    /// The file is malformed; the error names its line.
    pub(super) fn parse(name: &str, text: &str) -> Result<Suite, Failure> {
        if experiments::are_in(text) {
            return experiments::parse(name, text);
        }
        let suite: Suite = read(name, text)?;
        check_values(&suite.run).map_err(|what| Failure::Usage(format!("{name}: [run]: {what}")))?;
        for (case, options) in &suite.case {
            let list = options.iter().find(|(_, value)| !is_plain(value));
            if let Some((option, _)) = list {
                let what = format!("[case.{case}]: '{option}' is varied; expected text or a number");
                return Err(Failure::Usage(format!("{name}: {what}")));
            }
        }
        for figure in &suite.figure {
            figure.check().map_err(|what| Failure::Usage(format!("{name}: figure {}: {what}", figure.id)))?;
        }
        Ok(suite)
    }
}

/// Refuses values of options that are no arguments, and empty lists, with which there would be no run.
fn check_values(options: &Options) -> Result<(), String> {
    let is_one_or_more = |list: &Vec<toml::Value>| !list.is_empty() && list.iter().all(is_plain);
    match options.iter().find(|(_, value)| !value.as_array().map_or(is_plain(value), is_one_or_more)) {
        Some((option, _)) => {
            Err(format!("'{option}' has another value; expected text, a number, or a list of them"))
        }
        None => Ok(()),
    }
}

impl Figure {
    fn check(&self) -> Result<(), String> {
        for option in [Some(&self.series), self.group.as_ref()].into_iter().flatten() {
            if !self.run.get(option).is_some_and(toml::Value::is_array) {
                return Err(format!("'{option}' is drawn, but not varied; expected a list in [figure.run]"));
            }
        }
        if let Some(option) = self.quick.keys().find(|option| !self.run.contains_key(*option)) {
            return Err(format!("'{option}' has a value with --quick only; expected it in [figure.run] too"));
        }
        check_values(&self.run)?;
        check_values(&self.quick)?;
        if self.draw == Draw::Goodputs && !self.run.contains_key("sample") {
            return Err("goodputs over time need samples; expected 'sample' in [figure.run]".to_owned());
        }
        for claim in &self.claim {
            if claim.at_least.is_none() && claim.at_most.is_none() {
                return Err(format!("the claim '{}' has no limit; expected at_least or at_most", claim.says));
            }
            for measure in std::iter::once(&claim.measure).chain(&claim.less).chain(&claim.over) {
                if let Some(option) = measure.of.keys().find(|option| !self.run.contains_key(*option)) {
                    return Err(format!(
                        "a claim is of runs with '{option}'; expected that option in [figure.run]"
                    ));
                }
            }
        }
        Ok(())
    }

    /// The options of its runs: those of the suite, of the figure, and with `quick` those that take their place.
    pub(super) fn options(&self, suite: &Suite, quick: bool) -> Options {
        let mut options = suite.run.clone();
        options.extend(self.run.clone());
        if quick {
            options.extend(self.quick.clone());
        }
        options
    }
}

/// Every combination of the values of `options`, as single values.
pub(super) fn combinations(options: &Options) -> Vec<BTreeMap<String, String>> {
    let mut all = vec![BTreeMap::new()];
    for (option, value) in options {
        let values = match value {
            toml::Value::Array(values) => values.iter().map(plain).collect(),
            single => vec![plain(single)],
        };
        all = (all.iter())
            .flat_map(|point| {
                values.iter().map(move |value| {
                    let mut point: BTreeMap<String, String> = point.clone();
                    point.insert(option.clone(), value.clone());
                    point
                })
            })
            .collect();
    }
    all
}

/// A value as an argument of the command; [`check_values`] has refused values other than text and numbers.
pub(super) fn plain(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Float(number) => number.to_string(),
        _ => String::new(),
    }
}

/// Whether `value` is text or a number.
fn is_plain(value: &toml::Value) -> bool {
    value.is_str() || value.is_integer() || value.is_float()
}
