//! The report for people.

use super::{BackgroundFlow, Predicted, Report};
use crate::sample::FairnessOverTime;
use crate::stats::Summary;
use std::io::{self, Write};
use std::time::Duration;

/// Writes `report`. `took` is the time that the user waited.
pub(crate) fn write(report: &Report, took: Duration, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}", report.config.headline())?;
    let mut row = |name: &str, text: String| writeln!(out, "  {name:<9} {text}");
    if let Some(ranks) = &report.ranks {
        row("ranks", ranks.text())?;
    }
    let simulated = report.predicted.as_ref();
    if let Some((ranks, ratio)) = simulated.and_then(|p| Some((p.ranks.as_ref()?, p.finish_ratio))) {
        row("simulated", ranks.text())?;
        row("", format!("the last rank took {} times that", number(ratio, 3)))?;
    }
    row(if report.ranks.is_some() { "messages" } else { "flows" }, flows(report))?;
    row("FCT", completion_times(&report.fct_us))?;
    for line in slowdowns(report) {
        row(&line.0, line.1)?;
    }
    if !report.background.is_empty() {
        row("rates", rates(&report.background))?;
    }
    if let Some(p) = &report.predicted {
        row("simulated", completion_times(&p.fct_us))?;
        let [mean, p99, max] = [p.mean_ratio, p.p99_ratio, p.max_ratio].map(|ratio| number(ratio, 3));
        row("", format!("FCT is {mean} times that on average, p99 {p99}, max {max}"))?;
        let Predicted { retransmitted, trimmed, dropped, timeouts, .. } = p;
        row(
            "",
            format!("{retransmitted} sent again, {trimmed} trimmed, {dropped} dropped, {timeouts} timeouts"),
        )?;
    }
    if let Some(switches) = &report.switches {
        row("switches", switches.text())?;
        report.doubt().map_or(Ok(()), |doubt| row("", doubt))?;
    }
    row("bound", bound(report))?;
    row("fairness", format!("{} (Jain)", number(report.jain, 4)))?;
    if let Some(shares) = &report.shares {
        row("", over_time(shares))?;
    }
    row("goodput", format!("{} Gbit/s", number(report.goodput_gbps, 2)))?;
    let p = &report.packets;
    row("packets", format!("{} sent, {} sent again", p.data, p.retransmitted))?;
    row("", format!("{} trimmed, {} dropped, {} marked", p.trimmed, p.dropped, p.ecn_marked))?;
    row("", format!("{} ACKs, {} NACKs", p.acks, p.nacks))?;
    row("timeouts", report.timeouts.to_string())?;
    for (name, text) in report.fabric.iter().flat_map(|fabric| fabric.lines()) {
        row(name, text)?;
    }
    if let Some(hosts) = &report.host_queues {
        let (mean, max, bytes) = (hosts.wait_mean_us, hosts.wait_max_us, hosts.max_bytes);
        row(
            "hosts",
            format!("packets wait {mean:.2} µs on average, {max:.2} µs at most, in up to {bytes} B"),
        )?;
        row("", format!("{} dropped by full receive queues", hosts.dropped))?;
    }
    let state = report.state;
    row("state", format!("{:.0} B a host, {:.0} B a flow", state.bytes_per_host, state.bytes_per_flow))?;
    row("", format!("{:.0} B for each flow of the workload, begun or not", state.bytes_per_planned_flow))?;
    row("took", cost(report, took))
}

fn flows(report: &Report) -> String {
    let count = report.flows;
    let missing = count.total - count.completed;
    let note = if missing == 0 { String::new() } else { format!(", {missing} UNFINISHED") };
    format!("{} of {} done{note}", count.completed, count.total)
}

/// How much of their rates the flows at constant rates have reached.
fn rates(flows: &[BackgroundFlow]) -> String {
    let reached = || flows.iter().filter_map(|flow| Some(flow.goodput_gbps? / flow.rate_gbps));
    let [least, most] =
        [reached().reduce(f64::min), reached().reduce(f64::max)].map(|share| number(share, 4));
    format!("{} flows at constant rates, which reach {least} to {most} of them", flows.len())
}

/// The slowdowns of all flows, and where there are several groups of sizes, of each; and the tasks.
fn slowdowns(report: &Report) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    if let (Some(all), Some(by_size)) = (&report.flow_slowdown, &report.by_size) {
        lines.push(("slowdown".to_owned(), factors(all)));
        let filled = by_size.groups().into_iter().filter(|(_, group)| group.flows > 0);
        if filled.clone().count() > 1 {
            lines.extend(filled.map(|(name, group)| {
                let [p50, p99] = [group.fct_us.p50, group.fct_us.p99].map(|us| number(us, 1));
                let text = format!(
                    "{} flows, {}; FCT p50 {p50}  p99 {p99} µs",
                    group.flows,
                    factors(&group.slowdown)
                );
                (format!(" {name}"), text)
            }));
        }
    }
    for tasks in report.tasks.values() {
        lines.push((
            "tasks".to_owned(),
            format!("{} of {} of {} done", tasks.completed, tasks.total, tasks.workload),
        ));
        lines.push((String::new(), completion_times(&tasks.time_us)));
        let ideal = number(tasks.ideal_us.mean, 1);
        lines.push((
            String::new(),
            format!("ideal {ideal} µs on average; slowdown {}", factors(&tasks.slowdown)),
        ));
    }
    lines
}

fn factors(t: &Summary) -> String {
    let [mean, p50, p99, max] = [t.mean, t.p50, t.p99, t.max].map(|factor| number(factor, 2));
    format!("mean {mean}  p50 {p50}  p99 {p99}  max {max}")
}

pub(crate) fn completion_times(t: &Summary) -> String {
    let [min, mean, p50, p99, max] = [t.min, t.mean, t.p50, t.p99, t.max].map(|us| number(us, 1));
    format!("min {min}  mean {mean}  p50 {p50}  p99 {p99}  max {max} µs")
}

fn over_time(shares: &FairnessOverTime) -> String {
    let (mean, least) = (number(shares.jain_mean, 4), number(shares.jain_min, 4));
    let converged = match (shares.converged_us, shares.jain_mean) {
        (Some(us), _) => format!("; every flow within 10 % of the mean from {us:.1} µs on"),
        (None, Some(_)) => "; to the end some flow was away from the mean by more than 10 %".to_owned(),
        (None, None) => String::new(),
    };
    format!("over time: mean {mean}, least {least}{converged}")
}

fn bound(report: &Report) -> String {
    if report.bound_at.is_empty() {
        return "none: no link lies between the endpoints".to_owned();
    }
    if report.bound_us == 0.0 {
        return "none: nothing crosses a link".to_owned();
    }
    let reached = match report.slowdown_max {
        Some(ratio) => format!("; all done after {ratio:.3} times that"),
        None => String::new(),
    };
    format!("{:.1} µs set by the {}{reached}", report.bound_us, report.bound_at)
}

fn cost(report: &Report, took: Duration) -> String {
    let e = &report.engine;
    format!(
        "{:.2} s ({:.2} s of CPU, {:.0} MB): {} events, {:.0} data packets per CPU second",
        took.as_secs_f64(),
        e.cpu_s,
        e.max_rss_mb,
        e.events,
        e.data_packets_per_cpu_s
    )
}

pub(crate) fn number(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "–".to_owned(), |v| format!("{v:.decimals$}"))
}
