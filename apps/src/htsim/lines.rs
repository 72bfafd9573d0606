//! The lines that `htsim_uec` prints and scripts read by position.

use crate::resolve::Plan;
use std::fmt::Write;
use weft_testbed::sim::{RunConfig, RunReport};

/// A line of the output: it describes a flow, or a connection with all its messages.
struct Line {
    id: u32,
    src: u32,
    dst: u32,
    /// ps
    end: u64,
    messages: u64,
    packets: u64,
    bytes: u64,
}

/// A line for each flow that has finished, or for each connection all of whose messages have, in order of time, and the
/// counts of packets.
pub(super) fn of(report: &RunReport, plan: &Plan, by_connection: bool) -> String {
    let mut text = String::new();
    for line in finished(report, &plan.config, by_connection) {
        let Line { id, src, dst, end, messages, packets, bytes } = line;
        let at = six_digits(end);
        // Word 4 and 5 name the sender there; scripts read words by their places.
        _ = writeln!(
            text,
            "Flow Uec_{src}_{dst} flowId {id} uecSrc {src} finished at {at} total messages {messages} total packets \
             {packets} RTS 0 total bytes {bytes} in_flight now 0"
        );
    }
    let counts = &report.packets;
    _ = writeln!(
        text,
        "New: {} Rtx: {} RTS: 0 Bounced: 0 ACKs: {} NACKs: {} Pulls: {} sleek_pkts: {}",
        counts.data, counts.retransmitted, counts.acks, counts.nacks, counts.control, counts.inferred_lost
    );
    text
}

fn finished(report: &RunReport, config: &RunConfig, by_connection: bool) -> Vec<Line> {
    let flows = config.workload.flows();
    let count = config.workload.connections().len();
    // Without reuse each flow has a connection of its own.
    let mut lines: Vec<Option<Line>> =
        (0..if by_connection { count } else { flows.len() }).map(|_| None).collect();
    let mut unfinished = vec![false; lines.len()];
    for ((flow, record), index) in flows.iter().zip(&report.flows).zip(0..) {
        let place = if by_connection { flow.connection as usize } else { index };
        let Some(end) = record.end.map(|end| end.as_ps()) else {
            unfinished[place] = true;
            continue;
        };
        let line = lines[place].get_or_insert(Line {
            id: flow.id,
            src: flow.src.0,
            dst: flow.dst.0,
            end,
            messages: 0,
            packets: 0,
            bytes: 0,
        });
        line.end = line.end.max(end);
        line.messages += 1;
        line.packets += flow.bytes.div_ceil(u64::from(config.mtu)).max(1);
        line.bytes += flow.bytes;
    }
    let all = lines.into_iter().zip(unfinished).filter(|(_, unfinished)| !unfinished);
    let mut lines: Vec<Line> = all.filter_map(|(line, _)| line).collect();
    lines.sort_by_key(|line| line.end);
    lines
}

/// A time in µs with six significant digits and without zeros at the end, as a C++ stream writes it. Below 1 µs all places
/// up to the picosecond are written.
fn six_digits(ps: u64) -> String {
    let Some(digits) = (ps / 1_000_000).checked_ilog10() else { return trimmed(ps, 6) };
    // Digits before the point; as many are dropped from the end, since picoseconds have six behind it.
    let digits = digits + 1;
    let drop = 10_u64.pow(digits);
    let rounded = ps.saturating_add(drop / 2) / drop;
    if digits < 7 && rounded < 1_000_000 {
        return trimmed(rounded, 6 - digits);
    }
    // Rounding may have carried into one more digit.
    let carried = rounded >= 1_000_000;
    match 6_u32.checked_sub(digits + u32::from(carried)) {
        Some(decimals) => trimmed(rounded / 10, decimals),
        None if carried => format!("{}e+{:02}", trimmed(rounded / 10, 5), digits),
        None => format!("{}e+{:02}", trimmed(rounded, 5), digits - 1),
    }
}

/// `number` with `decimals` places behind the point, without zeros at the end.
fn trimmed(number: u64, decimals: u32) -> String {
    let scale = 10_u64.pow(decimals);
    let (whole, rest) = (number / scale, number % scale);
    if rest == 0 {
        return whole.to_string();
    }
    let places = decimals as usize;
    format!("{whole}.{rest:0places$}").trim_end_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_six_significant_digits_like_those_of_a_stream() {
        for (ps, expected) in [
            (0, "0"),
            (500_000, "0.5"),
            (123_456, "0.123456"),
            (999_999_960, "1000"),
            (1_234_567, "1.23457"),
            (176_236_412, "176.236"),
            (200_000_000, "200"),
            (21_029_349_000, "21029.3"),
            (999_999_400_000, "999999"),
            (999_999_600_000, "1e+06"),
            (1_234_567_000_000, "1.23457e+06"),
            (12_000_000_000_000, "1.2e+07"),
        ] {
            assert_eq!(six_digits(ps), expected, "{ps} ps");
        }
    }
}
