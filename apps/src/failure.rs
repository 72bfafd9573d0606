//! Why a command has not done what was asked.

use std::io;
use std::path::Path;

/// Why the command did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The options make no sense: exit status 2.
    #[error("{0}")]
    Usage(String),
    /// The options make sense, but the command failed: exit status 1.
    #[error("{0}")]
    Run(String),
    /// Some flows have not completed: exit status 3.
    #[error("{0}")]
    Unfinished(String),
    /// A signal came: exit status `status`.
    #[error("{text}")]
    Interrupted { text: String, status: u8 },
}

impl Failure {
    /// The file or directory `path` cannot be used because of `error`.
    pub(crate) fn at(path: &Path, error: &io::Error) -> Failure {
        Failure::Run(format!("{}: {error}", path.display()))
    }

    /// The exit status of the process.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Failure::Run(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Unfinished(_) => 3,
            Failure::Interrupted { status, .. } => *status,
        }
    }
}
