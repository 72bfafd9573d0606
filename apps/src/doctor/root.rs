//! Reads /proc and /sys, or a directory that imitates them in tests.

use core::str::FromStr;
use std::fs;
use std::path::{Path, PathBuf};

/// The directory that holds /proc and /sys.
#[derive(Clone, Debug)]
pub(super) struct Root(PathBuf);

impl Root {
    pub(super) fn at(path: &Path) -> Root {
        Root(path.to_owned())
    }

    /// Whether it is the root directory of the system.
    pub(super) fn is_real(&self) -> bool {
        self.0 == Path::new("/")
    }

    /// The content of a file without surrounding white space; `None` if it cannot be read.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.0.join(path)).ok().map(|text| text.trim().to_owned())
    }

    /// The value in a file that holds only one.
    pub(super) fn value<T: FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// The sorted names in a directory; empty if there is no such directory.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.0.join(path)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort_unstable();
        names
    }

    /// The file name of the target of a symbolic link, such as the name of a device's driver.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.0.join(path)).ok()?;
        target.file_name()?.to_str().map(str::to_owned)
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.0.join(path).exists()
    }
}
