//! Tables of what can be chosen by name. Congestion controls and load balancers are rows of such tables.
//!
//! A [`Row`] has a name, a line about it, its source, and a part that builds it. Parts hand out
//! [`Builder`]s: settings with their values, and the function that makes something of them.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::settings::{SettingInfo, Settings};

/// One thing that can be chosen by name.
#[derive(Clone, Copy, Debug)]
pub struct Row<P> {
    /// The name to choose it by.
    pub name: &'static str,
    /// A description in one line.
    pub about: &'static str,
    /// The specification or paper.
    pub source: &'static str,
    /// The part or parts that build it.
    pub part: P,
}

/// Hands out a builder with the default settings.
pub type Part<I, O> = fn() -> Arc<dyn Builder<I, O>>;

/// Parts that list their settings.
pub trait ListSettings {
    /// The settings with their defaults, in the order of their tables.
    fn settings(&self) -> Vec<SettingInfo>;
}

impl<I, O> ListSettings for Part<I, O> {
    fn settings(&self) -> Vec<SettingInfo> {
        self().settings()
    }
}

/// There is no row of that name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown {kind} '{name}'; there are: {known}")]
pub struct UnknownName {
    /// The kind of thing that the table holds, in the singular.
    pub kind: &'static str,
    /// The name asked for.
    pub name: String,
    /// The names in the table, comma-separated.
    pub known: String,
}

/// The row called `name`. `kind` is what errors call the things in the table.
///
/// # Errors
/// [`UnknownName`] when no row has this name; its text lists the names.
pub fn find<P>(
    table: &'static [Row<P>],
    kind: &'static str,
    name: &str,
) -> Result<&'static Row<P>, UnknownName> {
    table.iter().find(|row| row.name == name).ok_or_else(|| UnknownName {
        kind,
        name: name.to_owned(),
        known: names(table).join(", "),
    })
}

/// The names in `table`, in its order.
pub fn names<P>(table: &'static [Row<P>]) -> Vec<&'static str> {
    table.iter().map(|row| row.name).collect()
}

/// Why a setting was not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no setting of this name.
    NoSuchKey,
    /// The text is not one of the setting's values.
    BadValue {
        /// The values and their range, to complete the sentence "expected …".
        expected: String,
    },
}

/// A setting could not be changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SetError {
    /// There is no parameter of this name.
    #[error("{algorithm} has no parameter '{key}' (to set to '{value}'); it has: {known}")]
    UnknownKey {
        /// The algorithm's name.
        algorithm: String,
        /// The name that was given.
        key: String,
        /// The value that it was set to.
        value: String,
        /// The names of the parameters that exist, comma-separated.
        known: String,
    },
    /// The parameter does not take this value.
    #[error("{algorithm}: {key} is '{value}', expected {expected}; parameters are: {known}")]
    BadValue {
        /// The algorithm's name.
        algorithm: String,
        /// The name of the parameter.
        key: String,
        /// The value that it was set to.
        value: String,
        /// The values that it takes, to complete the sentence "expected …".
        expected: String,
        /// The names of the parameters that exist, comma-separated.
        known: String,
    },
}

impl SetError {
    /// The error for `refused`, when `key` of `algorithm` with these `settings` was to be set to `value`.
    pub fn new(
        refused: Refused,
        algorithm: &str,
        key: &str,
        value: &str,
        settings: &[SettingInfo],
    ) -> SetError {
        let keys: Vec<&str> = settings.iter().map(|setting| setting.key).collect();
        let known = if keys.is_empty() { "none".into() } else { keys.join(", ") };
        let (algorithm, key, value) = (algorithm.to_owned(), key.to_owned(), value.to_owned());
        match refused {
            Refused::NoSuchKey => SetError::UnknownKey { algorithm, key, value, known },
            Refused::BadValue { expected } => SetError::BadValue { algorithm, key, value, expected, known },
        }
    }
}

/// Settings with their values, and the function that builds an `O` from them and an input `I`. Its debug output
/// shows the values.
pub trait Builder<I, O>: fmt::Debug + Send + Sync {
    /// The settings with their defaults, in the order of their table.
    fn settings(&self) -> Vec<SettingInfo>;

    /// This builder with one setting changed.
    ///
    /// # Errors
    /// [`Refused`] when there is no such setting, or when it does not take this value.
    fn with(&self, key: &str, value: &str) -> Result<Arc<dyn Builder<I, O>>, Refused>;

    /// Builds the algorithm with these settings.
    fn build(&self, input: I) -> O;
}

/// The builder that calls `build` with a configuration, which has its defaults at first.
pub fn configured<C: Settings, I: 'static, O: 'static>(build: fn(&C, I) -> O) -> Arc<dyn Builder<I, O>> {
    Arc::new(Configured { config: C::default(), build })
}

/// The builder that calls `build` and has no settings.
pub fn without_settings<I, O, F>(build: F) -> Arc<dyn Builder<I, O>>
where
    F: Fn(I) -> O + Send + Sync + 'static,
{
    Arc::new(WithoutSettings(build))
}

struct Configured<C, I, O> {
    config: C,
    build: fn(&C, I) -> O,
}

impl<C: Settings, I: 'static, O: 'static> Builder<I, O> for Configured<C, I, O> {
    fn settings(&self) -> Vec<SettingInfo> {
        C::TABLE.iter().map(|setting| setting.info()).collect()
    }

    fn with(&self, key: &str, value: &str) -> Result<Arc<dyn Builder<I, O>>, Refused> {
        let setting = C::TABLE.iter().find(|setting| setting.key == key).ok_or(Refused::NoSuchKey)?;
        let mut config = self.config.clone();
        if !(setting.store)(&mut config, value.trim()) {
            return Err(Refused::BadValue { expected: (setting.expected)() });
        }
        Ok(Arc::new(Configured { config, build: self.build }))
    }

    fn build(&self, input: I) -> O {
        (self.build)(&self.config, input)
    }
}

impl<C: fmt::Debug, I, O> fmt::Debug for Configured<C, I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config.fmt(f)
    }
}

struct WithoutSettings<F>(F);

impl<I, O, F: Fn(I) -> O + Send + Sync> Builder<I, O> for WithoutSettings<F> {
    fn settings(&self) -> Vec<SettingInfo> {
        Vec::new()
    }

    fn with(&self, _: &str, _: &str) -> Result<Arc<dyn Builder<I, O>>, Refused> {
        Err(Refused::NoSuchKey)
    }

    fn build(&self, input: I) -> O {
        (self.0)(input)
    }
}

impl<F> fmt::Debug for WithoutSettings<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no settings")
    }
}
