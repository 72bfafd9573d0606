//! The report of a test, for people and as JSON.

use super::plan::Test;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use weft_cc::{CcSnapshot, Rate, Window};

/// The figures of one end. Rates are none where no time passed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EndReport {
    /// Length of the measured part.
    pub(super) seconds: f64,
    /// Messages delivered in it (latency: round trips).
    pub(super) messages: u64,
    /// Their bytes.
    pub(super) bytes: u64,
    pub(super) goodput_gbps: Option<f64>,
    pub(super) messages_per_s: Option<f64>,
    /// Data packets sent for the first time, or received as new.
    pub(super) packets: u64,
    pub(super) packets_per_s: Option<f64>,
    /// Acknowledgements sent or received.
    pub(super) acks: u64,
    /// Data packets sent again.
    pub(super) retransmitted: u64,
    /// Retransmission timers that expired.
    pub(super) timeouts: u64,
    /// Data packets received again.
    pub(super) duplicates: u64,
    /// Trimmed packets received.
    pub(super) trimmed: u64,
    /// Frames that the port lost or that arrived damaged.
    pub(super) dropped: u64,
    /// Processor use of the thread that drove this end; none if it drove both.
    pub(super) cpu: Option<CpuReport>,
    /// Messages of the whole test that have arrived, warm-up included.
    pub(super) arrived: u64,
    /// Messages that arrived twice or with a wrong length, that were never sent, or that are missing.
    pub(super) wrong_messages: u64,
    /// Bytes compared with what was sent.
    pub(super) verified_bytes: u64,
    /// Bytes among them that were others.
    pub(super) wrong_bytes: u64,
}

/// Processor use of a thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CpuReport {
    pub(super) seconds: f64,
    /// Share of the loop's time in which there was something to do.
    pub(super) busy: f64,
    /// In that time for each data packet, its share of acknowledgements and copies included.
    pub(super) ns_per_packet: Option<f64>,
    pub(super) cycles_per_packet: Option<f64>,
    pub(super) instructions_per_packet: Option<f64>,
    pub(super) counted_by: CountedBy,
}

/// Where cycles and instructions come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CountedBy {
    /// Hardware counters.
    UserAndKernel,
    /// Hardware counters, without what the kernel does for the thread.
    User,
    /// CPU time of the thread times the clock rate of the processor.
    ClockRate,
}

/// Round-trip times, microseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct LatencyReport {
    pub(super) samples: u64,
    pub(super) min_us: f64,
    pub(super) mean_us: f64,
    pub(super) p50_us: f64,
    pub(super) p90_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
    pub(super) max_us: f64,
}

/// The state of the sender's congestion control when the measured part ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct CongestionReport {
    /// The window, bytes; none where the algorithm sets no bound.
    pub(super) window: Option<u64>,
    /// The least round-trip time seen.
    pub(super) base_rtt_us: f64,
    /// The smoothed delay beyond it; zero where the algorithm has none.
    pub(super) delay_us: f64,
    /// The algorithm's name for its phase.
    pub(super) phase: &'static str,
}

impl CongestionReport {
    pub(super) fn of(snapshot: &CcSnapshot) -> CongestionReport {
        CongestionReport {
            window: (Window(snapshot.cwnd) != Window::UNLIMITED).then_some(snapshot.cwnd),
            base_rtt_us: snapshot.base_rtt.as_us_f64(),
            delay_us: snapshot.delay.as_us_f64(),
            phase: snapshot.phase,
        }
    }
}

/// The most that the link allows, if its rate is known.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Expected {
    pub(super) goodput_gbps: Option<f64>,
    pub(super) messages_per_s: Option<f64>,
    /// The aim for a data packet of 4 KiB when one core drives both ends.
    pub(super) cycles_per_packet: Option<f64>,
}

impl Expected {
    /// The most that a link of this rate allows, when each packet costs `overhead` bytes beyond its payload.
    pub(super) fn on(link: Option<Rate>, test: &Test, overhead: u64) -> Expected {
        let Some(link) = link else { return Expected::default() };
        let messages = link.as_bps() as f64 / 8.0 / test.wire_bytes(overhead) as f64;
        Expected {
            goodput_gbps: Some(messages * test.size as f64 * 8.0 / 1e9),
            messages_per_s: Some(messages),
            cycles_per_packet: None,
        }
    }
}

/// Why nothing is expected, and what to do about it.
const NO_LINK_RATE: &str = "  expected: the rate of this link is not known, and links in memory have none; \
                            say what to compare with: --link RATE, such as --link 100G\n";

/// A whole report.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) weft: &'static str,
    pub(super) test: Test,
    pub(super) port: String,
    pub(super) peer: String,
    pub(super) expected: Expected,
    /// Figures of the sender of the messages; a server does not know them.
    pub(super) client: Option<EndReport>,
    /// Figures of the receiver.
    pub(super) server: Option<EndReport>,
    pub(super) latency: Option<LatencyReport>,
    /// Of the client's first connection.
    pub(super) congestion: Option<CongestionReport>,
    /// Whether one thread drove both ends.
    pub(super) one_core: bool,
    /// Notes on the endpoint and its port.
    pub(super) notices: Vec<String>,
}

impl Report {
    /// The report of a test of which nothing has been seen.
    pub(super) fn new(test: &Test, port: &str, peer: &str, expected: Expected) -> Report {
        Report {
            weft: env!("WEFT_VERSION"),
            test: test.clone(),
            port: port.to_owned(),
            peer: peer.to_owned(),
            expected,
            client: None,
            server: None,
            latency: None,
            congestion: None,
            one_core: false,
            notices: Vec::new(),
        }
    }

    /// The faults of the messages that arrived, if there are any.
    pub(super) fn fault(&self) -> Option<String> {
        let ends = [("client", &self.client), ("server", &self.server)];
        let faults = ends.iter().filter_map(|(who, end)| {
            let end = end.as_ref()?;
            let wrong = end.wrong_messages > 0 || end.wrong_bytes > 0;
            wrong.then(|| {
                format!(
                    "the {who} received {} messages that were not due and {} wrong bytes",
                    end.wrong_messages, end.wrong_bytes
                )
            })
        });
        let faults: Vec<String> = faults.collect();
        (!faults.is_empty()).then(|| faults.join("; "))
    }

    /// The report for people.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}\n{} with {}\n", self.test.describe(), self.port, self.peer);
        for notice in &self.notices {
            let _ = writeln!(text, "note: {notice}");
        }
        self.table(&mut text);
        if let Some(l) = &self.latency {
            let _ = writeln!(
                text,
                "  round trip  min {:.2}  p50 {:.2}  p90 {:.2}  p99 {:.2}  p99.9 {:.2}  max {:.2} µs, mean {:.2} of {}",
                l.min_us, l.p50_us, l.p90_us, l.p99_us, l.p999_us, l.max_us, l.mean_us, l.samples
            );
        }
        self.remarks(&mut text);
        text
    }

    fn table(&self, text: &mut String) {
        let ends: Vec<(&str, &EndReport)> =
            [("client", &self.client), ("server", &self.server)].into_iter().filter_map(named).collect();
        let _ = write!(text, "{:<28} {:>12}", "", "expected");
        for (name, _) in &ends {
            let _ = write!(text, " {name:>12}");
        }
        text.push('\n');
        let mut row =
            |name: &str, decimals: usize, expected: Option<f64>, of: &dyn Fn(&EndReport) -> Option<f64>| {
                let _ = write!(text, "  {name:<26} {:>12}", number(expected, decimals));
                for (_, end) in &ends {
                    let _ = write!(text, " {:>12}", number(of(end), decimals));
                }
                text.push('\n');
            };
        let million = |value: Option<f64>| value.map(|v| v / 1e6);
        let cpu = |of: fn(&CpuReport) -> Option<f64>| move |end: &EndReport| end.cpu.as_ref().and_then(of);
        row("goodput, Gbit/s", 3, self.expected.goodput_gbps, &|end| end.goodput_gbps);
        row("messages, 10⁶/s", 4, million(self.expected.messages_per_s), &|end| {
            million(end.messages_per_s)
        });
        row("data packets, 10⁶/s", 4, None, &|end| million(end.packets_per_s));
        row("busy, %", 1, None, &cpu(|c| Some(c.busy * 100.0)));
        row("CPU ns / data packet", 1, None, &cpu(|c| c.ns_per_packet));
        row("cycles / data packet", 0, self.expected.cycles_per_packet, &cpu(|c| c.cycles_per_packet));
        row("instructions / data packet", 0, None, &cpu(|c| c.instructions_per_packet));
        row("seconds", 3, None, &|end| Some(end.seconds));
    }

    fn remarks(&self, text: &mut String) {
        if self.expected.goodput_gbps.is_none() {
            text.push_str(NO_LINK_RATE);
        }
        for (name, end) in [("client", &self.client), ("server", &self.server)].into_iter().filter_map(named)
        {
            let _ = writeln!(
                text,
                "  {name}: {} messages, {} data packets, {} ACKs, {} sent again, {} timeouts, {} duplicates, \
                 {} trimmed, {} frames lost",
                end.messages,
                end.packets,
                end.acks,
                end.retransmitted,
                end.timeouts,
                end.duplicates,
                end.trimmed,
                end.dropped
            );
            if end.verified_bytes > 0 {
                let _ = writeln!(
                    text,
                    "  {name}: {} bytes checked, {} wrong",
                    end.verified_bytes, end.wrong_bytes
                );
            }
            match end.cpu.as_ref().map(|cpu| cpu.counted_by) {
                Some(CountedBy::ClockRate) => {
                    let _ = writeln!(text, "  {name}: cycles are CPU time times the clock rate");
                }
                Some(CountedBy::User) => {
                    let _ = writeln!(text, "  {name}: cycles and instructions without those in the kernel");
                }
                Some(CountedBy::UserAndKernel) | None => {}
            }
        }
        if let Some(c) = &self.congestion {
            let window = c.window.map_or_else(|| "-".to_owned(), |bytes| format!("{bytes} bytes"));
            let _ = writeln!(
                text,
                "  client: {} at the end: window {window}, least RTT {:.1} µs, delay {:.1} µs, {}",
                self.test.cc, c.base_rtt_us, c.delay_us, c.phase
            );
        }
        if self.one_core {
            text.push_str("  one core drove both ends: the client's column has the CPU of both\n");
        }
    }
}

fn named<'a>((name, end): (&'static str, &'a Option<EndReport>)) -> Option<(&'static str, &'a EndReport)> {
    end.as_ref().map(|end| (name, end))
}

fn number(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |v| format!("{v:.decimals$}"))
}

#[cfg(test)]
mod tests {
    use super::super::mode::Mode;
    use super::super::plan::Limit;
    use super::*;

    fn test() -> Test {
        Test {
            mode: Mode::Throughput,
            size: 4096,
            limit: Limit::Messages(10),
            warmup_us: 0,
            connections: 1,
            depth: 4,
            verify: true,
            payload: 4096,
            room: 4096,
            cc: "nscc".to_owned(),
            credit: false,
        }
    }

    fn report() -> Report {
        let end = EndReport { seconds: 2.0, messages: 10, goodput_gbps: Some(1.5), ..EndReport::default() };
        let expected = Expected::on(Some(Rate::from_gbps(100)), &test(), 122);
        let empty = Report::new(&test(), "udp:127.0.0.1", "127.0.0.2", expected);
        Report { client: Some(end.clone()), server: Some(end), ..empty }
    }

    #[test]
    fn the_expected_goodput_is_the_links_less_the_headers() {
        let expected = report().expected;
        let share = 4096.0 / (4096.0 + 122.0);
        assert!((expected.goodput_gbps.unwrap() - 100.0 * share).abs() < 1e-9);
        assert!((expected.messages_per_s.unwrap() - 100e9 / 8.0 / 4218.0).abs() < 1e-3);
        assert_eq!(Expected::on(None, &test(), 122), Expected::default());
    }

    #[test]
    fn achieved_stands_beside_expected() {
        let text = report().text();
        let goodput = text.lines().find(|line| line.contains("goodput")).unwrap();
        let columns: Vec<&str> = goodput.split_whitespace().collect();
        assert_eq!(columns, ["goodput,", "Gbit/s", "97.108", "1.500", "1.500"]);
        let unknown = Report { expected: Expected::default(), ..report() }.text();
        assert!(unknown.lines().any(|line| line.contains("goodput") && line.contains(" - ")), "{unknown}");
        assert!(unknown.contains("not known") && unknown.contains("--link RATE"), "{unknown}");
        assert!(!text.contains("--link"), "{text}");
    }

    #[test]
    fn a_window_without_a_bound_is_none() {
        let at = |cwnd| CongestionReport::of(&CcSnapshot { cwnd, ..CcSnapshot::default() });
        let said = |cwnd| Report { congestion: Some(at(cwnd)), ..report() }.text();
        assert!(said(40_000).contains("window 40000 bytes, least RTT"), "{}", said(40_000));
        assert!(said(u64::MAX).contains("window -, least RTT"), "{}", said(u64::MAX));
        assert!(serde_json::to_value(at(u64::MAX)).unwrap()["window"].is_null());
    }

    #[test]
    fn wrong_data_is_a_fault() {
        assert_eq!(report().fault(), None);
        let mut bad = report();
        bad.server.as_mut().unwrap().wrong_bytes = 3;
        assert_eq!(
            bad.fault().unwrap(),
            "the server received 0 messages that were not due and 3 wrong bytes"
        );
    }
}
