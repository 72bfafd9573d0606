//! The report as JSON, indented, with a line end at its end.

use super::Report;
use std::io::{self, Write};

/// Writes `report` to `out`. Numbers are the shortest that read back as the same value, so the same
/// results are the same bytes.
pub(crate) fn write(report: &Report, mut out: impl Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut out, report)?;
    out.write_all(b"\n")?;
    out.flush()
}
