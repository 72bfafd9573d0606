//! One line for each flow.

use super::slowdown::Slowdown;
use std::io::{self, BufWriter, Write};
use weft_cc::{Span, Time};
use weft_testbed::sim::{FlowRecord, RunConfig};

/// Writes the header and `flows`, in their order. Times are in microseconds of virtual time, exact
/// to the picosecond; they are empty for events that have not happened. Without a `fabric`, there are no ideal times.
pub(crate) fn write(flows: &[FlowRecord], fabric: Option<&RunConfig>, out: impl Write) -> io::Result<()> {
    write_rows(flows, fabric, |flow| flow.retransmitted.to_string(), out)
}

/// As [`write`] without a fabric, for flows whose packets nobody has counted.
pub(crate) fn write_uncounted(flows: &[FlowRecord], out: impl Write) -> io::Result<()> {
    write_rows(flows, None, |_| String::new(), out)
}

fn write_rows(
    flows: &[FlowRecord],
    fabric: Option<&RunConfig>,
    retransmitted: impl Fn(&FlowRecord) -> String,
    out: impl Write,
) -> io::Result<()> {
    let mut out = BufWriter::new(out);
    writeln!(out, "{}", COLUMNS.join(","))?;
    for flow in flows {
        let Row { start, end, fct, ideal, slowdown } = Row::of(flow, fabric);
        let [start, end, fct, ideal] = [start, end, fct, ideal].map(us);
        let slowdown = slowdown.map_or_else(String::new, |x| format!("{x:.6}"));
        let FlowRecord { id, src, dst, bytes, .. } = flow;
        let again = retransmitted(flow);
        writeln!(out, "{id},{src},{dst},{bytes},{start},{end},{fct},{again},{ideal},{slowdown}")?;
    }
    out.flush()
}

/// The times of a flow as the tables have them: since the start of the run, or between two events. None if an event has
/// not happened, or if there is no fabric with ideal times.
pub(super) struct Row {
    pub(super) start: Option<Span>,
    pub(super) end: Option<Span>,
    pub(super) fct: Option<Span>,
    pub(super) ideal: Option<Span>,
    /// `fct` over `ideal`.
    pub(super) slowdown: Option<f64>,
}

impl Row {
    pub(super) fn of(flow: &FlowRecord, fabric: Option<&RunConfig>) -> Row {
        let slowdown = fabric.map(|config| Slowdown::of(flow, config));
        Row {
            start: flow.start.map(since_start),
            end: flow.end.map(since_start),
            fct: flow.start.zip(flow.end).map(|(start, end)| end.since(start)),
            ideal: slowdown.as_ref().map(|slowdown| slowdown.ideal),
            slowdown: slowdown.and_then(|slowdown| slowdown.factor),
        }
    }
}

/// The columns of the tables of flows.
pub(super) const COLUMNS: [&str; 10] =
    ["id", "src", "dst", "bytes", "start_us", "end_us", "fct_us", "retransmitted", "ideal_us", "slowdown"];

fn since_start(time: Time) -> Span {
    time.since(Time::ZERO)
}

fn us(span: Option<Span>) -> String {
    span.map_or_else(String::new, |s| format!("{}.{:06}", s.as_ps() / 1_000_000, s.as_ps() % 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_events_that_did_not_happen_are_empty() {
        let at = |us| Some(Time::ZERO + Span::from_us(us));
        let flow =
            |id, start, end| FlowRecord { id, src: 1, dst: 2, bytes: 30, start, end, retransmitted: 4 };
        let flows =
            [flow(1, at(5), Some(Time::from_ps(7_000_001))), flow(2, at(6), None), flow(3, None, None)];
        let mut text = Vec::new();
        write(&flows, None, &mut text).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "id,src,dst,bytes,start_us,end_us,fct_us,retransmitted,ideal_us,slowdown\n\
             1,1,2,30,5.000000,7.000001,2.000001,4,,\n\
             2,1,2,30,6.000000,,,4,,\n\
             3,1,2,30,,,,4,,\n"
        );
    }
}
