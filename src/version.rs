//! The sources and the DPDK that this library is built from.

use std::fmt;

/// The sources and the DPDK that this library is built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// The release of weft.
    pub release: &'static str,
    /// Its git commit, abbreviated; none if it was not built in its repository.
    pub revision: Option<&'static str>,
    /// The version of libdpdk; none if it is built without the feature `dpdk`.
    pub dpdk: Option<&'static str>,
}

/// The release, the commit and the DPDK that this library is built from.
pub fn version() -> Version {
    let stated = |text: &'static str| (!text.is_empty()).then_some(text);
    Version {
        release: env!("CARGO_PKG_VERSION"),
        revision: stated(env!("WEFT_GIT_REVISION")),
        dpdk: stated(env!("WEFT_DPDK_VERSION")),
    }
}

impl fmt::Display for Version {
    /// In a line, as `weft --version` shows it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(env!("WEFT_VERSION"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_contains_all_fields() {
        let version = version();
        let revision = version.revision.unwrap_or("unknown");
        let dpdk = version.dpdk.unwrap_or("none");
        assert_eq!(version.to_string(), format!("{} (git {revision}, DPDK {dpdk})", version.release));
        assert_eq!(version.dpdk.is_some(), cfg!(feature = "dpdk"));
        assert!(version.revision.is_none_or(|r| r.len() >= 12 && r.bytes().all(|b| b.is_ascii_hexdigit())));
    }
}
