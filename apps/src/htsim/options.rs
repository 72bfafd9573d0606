//! The options of `htsim_uec`: their words, values and defaults.

use crate::Failure;
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

/// Bytes of headers that every packet has there, and the size of its control packets.
pub(super) const HEADER: u32 = 64;

/// The sender's congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    Nscc,
    Dctcp,
    Constant,
}

impl Sender {
    /// Its name for `--cc`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Sender::Nscc => "nscc",
            Sender::Dctcp => "dctcp",
            Sender::Constant => "constant",
        }
    }
}

/// Everything that a command line may say, with the defaults of `htsim_uec`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Options {
    pub(super) matrix: Option<PathBuf>,
    pub(super) topology: Option<PathBuf>,
    /// 3 if not given.
    pub(super) tiers: Option<u32>,
    pub(super) nodes: Option<u32>,
    /// µs.
    pub(super) end: u32,
    pub(super) seed: u64,
    /// Mbit/s.
    pub(super) linkspeed: u64,
    /// Bytes on the wire.
    pub(super) mtu: u32,
    /// Picoseconds; 1 µs if not given.
    pub(super) hop_latency: Option<u64>,
    /// Picoseconds; none if not given.
    pub(super) switch_latency: Option<u64>,
    /// Packets.
    pub(super) queue: Option<u32>,
    pub(super) queue_bdps: Option<u32>,
    /// Where marking begins and is certain, packets (`-ecn`); 0.2 and 0.8 of the bandwidth-delay product if not given.
    pub(super) ecn: Option<(u32, u32)>,
    /// Whether switches mark above half of the queue, whatever `-ecn` says (`-strat ecmp_host_ecn` and `reactive_ecn`).
    pub(super) mark_above_half: bool,
    /// Whether switches choose ports by their queues (`-strat ecmp_ar`).
    pub(super) adaptive: bool,
    /// Whether they do so for parts of flows, not for packets (`-ar_granularity flow`).
    pub(super) flowlets: bool,
    /// The gap after which a flow may change its port, picoseconds; 10 µs if not given.
    pub(super) sticky: Option<u64>,
    adaptive_method: bool,
    adaptive_granularity: bool,
    /// Packets.
    pub(super) cwnd: Option<u32>,
    pub(super) paths: u16,
    pub(super) balancer: &'static str,
    pub(super) sender_algorithm: Sender,
    pub(super) sender: bool,
    pub(super) receiver: bool,
    pub(super) oversubscribed: bool,
    pub(super) never_oversubscribed: bool,
    pub(super) increase: Option<f64>,
    pub(super) decrease: Option<f64>,
    pub(super) gain: Option<f64>,
    /// Picoseconds.
    pub(super) target: Option<u64>,
    pub(super) qa_gate: Option<u32>,
    pub(super) sack_threshold: u32,
    pub(super) trim: bool,
    pub(super) sleek: bool,
    pub(super) accurate_base_rtt: bool,
    pub(super) base_rtt_from_nack: bool,
    pub(super) connection_reuse: bool,
    pub(super) failed: u32,
    /// Options that write files or change what is logged, which is left out.
    logging: Vec<&'static str>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            matrix: None,
            topology: None,
            tiers: None,
            nodes: None,
            end: 1_000,
            seed: 13,
            linkspeed: 100_000,
            mtu: 4_150,
            hop_latency: None,
            switch_latency: None,
            queue: None,
            queue_bdps: None,
            ecn: None,
            mark_above_half: false,
            adaptive: false,
            flowlets: false,
            sticky: None,
            adaptive_method: false,
            adaptive_granularity: false,
            cwnd: None,
            paths: 64,
            balancer: "mixed",
            sender_algorithm: Sender::Nscc,
            sender: true,
            receiver: false,
            oversubscribed: false,
            never_oversubscribed: false,
            increase: None,
            decrease: None,
            gain: None,
            target: None,
            qa_gate: None,
            sack_threshold: 16_384,
            trim: true,
            sleek: false,
            accurate_base_rtt: false,
            base_rtt_from_nack: true,
            connection_reuse: false,
            failed: 0,
            logging: Vec::new(),
        }
    }
}

/// Options, the values that follow them, and what they mean: the help text, and the list of known options.
const KNOWN: &[(&str, &str, &str)] = &[
    ("-tm", "FILE", "connection matrix; standard input without it"),
    ("-topo", "FILE", "topology; without it a fat tree of the matrix's hosts"),
    ("-tiers", "2|3", "tiers of that fat tree [3]"),
    ("-nodes", "N", "number of hosts, which must be the matrix's"),
    ("-end", "US", "end of the run, µs [1000]"),
    ("-seed", "N", "seed of everything random [13]"),
    ("-linkspeed", "MBPS", "speed of links, Mbit/s; with -topo that of its hosts [100000]"),
    ("-mtu", "BYTES", "size of packets on the wire, headers of 64 bytes included [4150]"),
    ("-hop_latency", "US", "latency of links, µs, without -topo [1]"),
    ("-switch_latency", "US", "latency of switches, µs, without -topo [0]"),
    ("-q", "PACKETS", "data queue of each port, packets"),
    ("-queue_size_bdp_factor", "N", "the same in bandwidth-delay products [1, or 5 with -disable_trim]"),
    (
        "-ecn",
        "LOW HIGH",
        "marking begins, and is certain, packets [0.2 and 0.8 of the bandwidth-delay product]",
    ),
    ("-cwnd", "PACKETS", "first window of senders [1.5 bandwidth-delay products]"),
    ("-paths", "N", "entropies of each flow, 1 to 10000 [64]"),
    ("-load_balancing_algo", "NAME", "bitmap, reps, oblivious or mixed [mixed]"),
    ("-sender_cc_only", "", "senders control congestion, receivers do not"),
    ("-receiver_cc_only", "", "receivers control congestion, senders do not"),
    ("-sender_cc", "", "senders control congestion (they do from the start)"),
    ("-receiver_cc", "", "receivers control congestion as well"),
    ("-sender_cc_algo", "NAME", "nscc, dctcp or constant [nscc]"),
    ("-oversubscribed_cc", "", "receivers react to bottlenecks inside the fabric"),
    ("-force_disable_oversubscribed_cc", "", "they do not, even if -topo is oversubscribed"),
    ("-Ai", "SHARE", "first increase of that reaction [0.01]"),
    ("-Md", "FACTOR", "strength of its decrease, 0 to 1 [0.5]"),
    ("-alpha", "GAIN", "gain of its average of marks, 0 to 1 [0.5]"),
    ("-target_q_delay", "US", "target of nscc, µs [0.75 RTT, or 1 RTT with -disable_trim]"),
    ("-qa_gate", "N", "quick adapt of nscc below the largest window / 2^N [3]"),
    ("-sack_threshold", "BYTES", "bytes between acknowledgements [16384]"),
    ("-disable_trim", "", "switches drop packets that do not fit"),
    ("-trimsize", "BYTES", "size of a trimmed packet: 64"),
    ("-sleek", "", "senders infer losses; with -disable_trim weft's always do"),
    ("-enable_accurate_base_rtt", "", "flows begin with the base RTT of their own pod or of the fabric"),
    ("-disable_base_rtt_update_on_nack", "", "NACKs do not lower nscc's base RTT"),
    ("-conn_reuse", "", "flows of one id are messages of one connection, which has one line"),
    (
        "-failed",
        "N",
        "links at 25 % of their speed: N from cores down, or all of N upper switches of two tiers [0]",
    ),
    ("-strat", "NAME", "ecmp_host, ecmp_host_ecn, reactive_ecn or ecmp_ar [ecmp_host]"),
    ("-ar_method", "queue", "what ecmp_ar compares"),
    ("-ar_granularity", "packet|flow", "what ecmp_ar chooses a port for [packet]"),
    ("-ar_sticky_delta", "US", "gap after which a flow may change its port, with -ar_granularity flow [10]"),
    ("-planes", "1", "planes of the fabric"),
    ("-queue_type", "composite", "kind of switch queue"),
    ("-host_queue_type", "fair_prio", "kind of host queue"),
    ("-o", "FILE", "log file: none is written"),
    ("-log", "flow_events", "what is logged"),
    ("-logtime", "MS", "time between entries of the log"),
    ("-logtime_us", "US", "the same in µs"),
];

/// Options that are refused, each with the reason.
const REFUSED: &[(&str, &str)] = &[
    ("-pcie", "weft's hosts have no model of PCIe"),
    ("-debug", "expected weft run with --trace, whose command this prints"),
];

/// The text of `weft htsim --help`.
pub(super) fn help() -> String {
    let mut text = String::from(
        "The command line of htsim_uec (uet-htsim, commit 40ccb05), over weft's simulator.\n\n\
         Usage: weft htsim [OPTION [VALUE]]…, or a link named htsim_uec to weft\n\n\
         Prints the command of weft run that does the same, a line for each flow that finishes, in order of time, and\n\
         a line of packet counts. Exit status: 0 when the run was made, 1 when it could not be, 2 for options that make\n\
         no sense, 130 or 143 when a signal ended it. docs/htsim.md says what differs.\n\nOptions:\n",
    );
    for (option, value, meaning) in KNOWN {
        let head = format!("{option} {value}");
        text += &format!("  {head:<34} {meaning}\n");
    }
    text
}

fn refuse(option: &str, what: impl std::fmt::Display) -> Failure {
    Failure::Usage(format!("{option}: {what}"))
}

/// The words not read yet.
struct Words<'a> {
    words: std::slice::Iter<'a, OsString>,
}

impl<'a> Words<'a> {
    /// The next word; `None` at the end.
    fn next(&mut self) -> Result<Option<&'a str>, Failure> {
        let Some(word) = self.words.next() else { return Ok(None) };
        let text = word.to_str().ok_or_else(|| refuse(&word.to_string_lossy(), "expected UTF-8 text"))?;
        Ok(Some(text))
    }

    fn value(&mut self, option: &str, expected: &str) -> Result<&'a str, Failure> {
        self.next()?.ok_or_else(|| refuse(option, format_args!("expected {expected} after it")))
    }

    fn path(&mut self, option: &str) -> Result<PathBuf, Failure> {
        let word = self.words.next().filter(|word| !word.is_empty());
        word.map(PathBuf::from).ok_or_else(|| refuse(option, "expected a file after it"))
    }

    /// A whole number in a range.
    fn whole<T>(&mut self, option: &str, least: T, most: T) -> Result<T, Failure>
    where
        T: FromStr + PartialOrd + Copy + std::fmt::Display,
    {
        let expected = format!("a whole number from {least} to {most}");
        let word = self.value(option, &expected)?;
        let digits = word.bytes().all(|byte| byte.is_ascii_digit());
        let number = word.parse::<T>().ok().filter(|n| digits && *n >= least && *n <= most);
        number.ok_or_else(|| refuse(option, format_args!("`{word}`, expected {expected}")))
    }

    /// A number of µs as picoseconds.
    fn micros(&mut self, option: &str, least: u64) -> Result<u64, Failure> {
        const EXPECTED: &str = "a time in µs with at most six decimals, such as 0.5";
        let word = self.value(option, EXPECTED)?;
        let ps =
            weft_cc::units::scaled(word, 1_000_000).filter(|ps| (least..=1_000_000_000_000).contains(ps));
        ps.ok_or_else(|| refuse(option, format_args!("`{word}`, expected {EXPECTED}")))
    }

    fn share(&mut self, option: &str) -> Result<f64, Failure> {
        const EXPECTED: &str = "a number from 0 to 1, such as 0.5";
        let word = self.value(option, EXPECTED)?;
        let plain = word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let number = word.parse::<f64>().ok().filter(|n| plain && (0.0..=1.0).contains(n));
        number.ok_or_else(|| refuse(option, format_args!("`{word}`, expected {EXPECTED}")))
    }

    /// One of `choices`; those of `others` are refused for a reason.
    fn choice(
        &mut self,
        option: &str,
        choices: &[&'static str],
        others: &[&str],
        why: &str,
    ) -> Result<&'static str, Failure> {
        let expected = choices.join(", ");
        let word = self.value(option, &expected)?;
        if others.contains(&word) {
            return Err(refuse(option, format_args!("`{word}`: {why}; expected one of: {expected}")));
        }
        let known = choices.iter().find(|choice| **choice == word);
        known
            .copied()
            .ok_or_else(|| refuse(option, format_args!("unknown `{word}`; expected one of: {expected}")))
    }
}

/// Values of `-strat` that are refused, with the reason.
const IN_TURN: &[&str] = &["rr_ecmp", "ecmp_host_ar", "ecmp_rr"];
const NOT_IN_TURN: &str =
    "switches here do not take ports in turn, nor replace a hash by the length of queues now and then";
/// Values of `-ar_method` that are refused, with the reason.
const NOT_QUEUES: &[&str] = &["pause", "bandwidth", "pqb", "pq", "pb", "qb"];
const QUEUES_ONLY: &str = "switches here compare queues only";

impl Options {
    /// Reads the words of the command line; `None` if they ask for help. Of an option that occurs twice the last value
    /// counts.
    ///
    /// # Errors
    /// An unknown or refused option, or a value that it cannot have.
    pub(super) fn parse(words: &[OsString]) -> Result<Option<Options>, Failure> {
        let mut options = Options::default();
        let mut words = Words { words: words.iter() };
        while let Some(option) = words.next()? {
            if ["-h", "-help", "--help"].contains(&option) {
                return Ok(None);
            }
            options.read(option, &mut words)?;
        }
        options.check()?;
        Ok(Some(options))
    }

    fn read(&mut self, option: &str, words: &mut Words<'_>) -> Result<(), Failure> {
        let known = KNOWN.iter().find(|(name, ..)| *name == option);
        let Some((option, ..)) = known else {
            let refused = REFUSED.iter().find(|(name, _)| *name == option);
            return Err(match refused {
                Some((_, why)) => refuse(option, why),
                None => Failure::Usage(format!("unknown option '{option}' (see weft htsim --help)")),
            });
        };
        self.read_fabric(option, words)?;
        self.read_control(option, words)?;
        self.read_rest(option, words)
    }

    /// Options of hosts, switches and links.
    fn read_fabric(&mut self, option: &str, words: &mut Words<'_>) -> Result<(), Failure> {
        match option {
            "-topo" => self.topology = Some(words.path(option)?),
            "-tiers" => self.tiers = Some(words.whole(option, 2, 3)?),
            "-nodes" => self.nodes = Some(words.whole(option, 1, u32::MAX)?),
            "-linkspeed" => self.linkspeed = words.whole(option, 1, 100_000_000)?,
            "-mtu" => self.mtu = words.whole(option, 64 + HEADER, 16_383 + HEADER)?,
            "-hop_latency" => self.hop_latency = Some(words.micros(option, 1)?),
            "-switch_latency" => self.switch_latency = Some(words.micros(option, 0)?),
            "-q" => self.queue = Some(words.whole(option, 1, 1_000_000)?),
            "-queue_size_bdp_factor" => self.queue_bdps = Some(words.whole(option, 1, 1_000)?),
            "-ecn" => {
                let (low, high) = (words.whole(option, 0, 1_000_000)?, words.whole(option, 0, 1_000_000)?);
                self.ecn = Some((low, high));
            }
            "-disable_trim" => self.trim = false,
            "-trimsize" => _ = words.whole(option, HEADER, HEADER)?,
            "-failed" => self.failed = words.whole(option, 0, 1_000_000)?,
            "-planes" => _ = words.whole(option, 1, 1)?,
            "-strat" => {
                let known = ["ecmp_host", "ecmp_host_ecn", "reactive_ecn", "ecmp_ar"];
                let strategy = words.choice(option, &known, IN_TURN, NOT_IN_TURN)?;
                self.adaptive = strategy == "ecmp_ar";
                self.mark_above_half = ["ecmp_host_ecn", "reactive_ecn"].contains(&strategy);
                if self.adaptive {
                    // A later -paths counts, as there.
                    self.paths = 1;
                }
            }
            "-ar_method" => {
                words.choice(option, &["queue"], NOT_QUEUES, QUEUES_ONLY)?;
                self.adaptive_method = true;
            }
            "-ar_granularity" => {
                self.flowlets = words.choice(option, &["packet", "flow"], &[], "")? == "flow";
                self.adaptive_granularity = true;
            }
            "-ar_sticky_delta" => self.sticky = Some(words.micros(option, 1)?),
            "-queue_type" => {
                let others = ["composite_ecn", "aeolus", "aeolus_ecn"];
                words.choice(option, &["composite"], &others, "weft's switches have no such queue")?;
            }
            "-host_queue_type" => {
                words.choice(
                    option,
                    &["fair_prio"],
                    &["swift", "prio"],
                    "weft's hosts have no such queue",
                )?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Options of congestion control and load balancing.
    fn read_control(&mut self, option: &str, words: &mut Words<'_>) -> Result<(), Failure> {
        match option {
            "-cwnd" => self.cwnd = Some(words.whole(option, 1, 500_000)?),
            "-paths" => self.paths = words.whole(option, 1, 10_000)?,
            "-load_balancing_algo" => {
                let known = ["bitmap", "reps", "oblivious", "mixed"];
                self.balancer =
                    words.choice(option, &known, &["reps_legacy"], "weft has the new REPS only")?;
            }
            "-sender_cc_only" => {
                (self.sender, self.receiver, self.oversubscribed) = (true, false, false);
            }
            "-receiver_cc_only" => {
                (self.sender, self.receiver, self.oversubscribed) = (false, true, false);
            }
            "-sender_cc" => (self.sender, self.oversubscribed) = (true, false),
            "-receiver_cc" => self.receiver = true,
            "-sender_cc_algo" => {
                self.sender = true;
                self.sender_algorithm = match words.choice(option, &["nscc", "dctcp", "constant"], &[], "")? {
                    "dctcp" => Sender::Dctcp,
                    "constant" => Sender::Constant,
                    _ => Sender::Nscc,
                };
            }
            "-oversubscribed_cc" => self.oversubscribed = true,
            "-force_disable_oversubscribed_cc" => {
                (self.oversubscribed, self.never_oversubscribed) = (false, true);
            }
            "-Ai" => self.increase = Some(words.share(option)?),
            "-Md" => self.decrease = Some(words.share(option)?),
            "-alpha" => self.gain = Some(words.share(option)?),
            "-target_q_delay" => self.target = Some(words.micros(option, 1)?),
            "-qa_gate" => self.qa_gate = Some(words.whole(option, 0, 31)?),
            "-sack_threshold" => self.sack_threshold = words.whole(option, 1, u32::MAX)?,
            "-sleek" => self.sleek = true,
            "-enable_accurate_base_rtt" => self.accurate_base_rtt = true,
            "-disable_base_rtt_update_on_nack" => self.base_rtt_from_nack = false,
            _ => {}
        }
        Ok(())
    }

    fn read_rest(&mut self, option: &str, words: &mut Words<'_>) -> Result<(), Failure> {
        match option {
            "-tm" => self.matrix = Some(words.path(option)?),
            "-end" => self.end = words.whole(option, 1, u32::MAX)?,
            "-seed" => self.seed = words.whole(option, 0, u64::MAX)?,
            "-conn_reuse" => self.connection_reuse = true,
            "-o" => {
                words.path(option)?;
                self.logging.push("-o");
            }
            "-log" => {
                let others =
                    ["sink", "nic", "tor_downqueue", "tor_upqueue", "switch", "traffic", "queue_usage"];
                let why = "expected weft run with --sample, whose command this prints";
                words.choice(option, &["flow_events"], &others, why)?;
                self.logging.push("-log");
            }
            "-logtime" => {
                words.micros(option, 1)?;
                self.logging.push("-logtime");
            }
            "-logtime_us" => {
                words.micros(option, 1)?;
                self.logging.push("-logtime_us");
            }
            _ => {}
        }
        Ok(())
    }

    /// Refuses options that contradict each other, or that have no effect without another one.
    fn check(&self) -> Result<(), Failure> {
        if let Some((low, high)) = self.ecn {
            if low > high {
                return Err(refuse("-ecn", format_args!("`{low} {high}`, expected LOW not above HIGH")));
            }
            if let Some(queue) = self.queue.filter(|queue| high > *queue) {
                return Err(refuse(
                    "-ecn",
                    format_args!("`{high}`, expected at most {queue}, the queue of -q"),
                ));
            }
        }
        if self.queue.is_some() && self.queue_bdps.is_some() {
            return Err(refuse("-queue_size_bdp_factor", "has no effect with -q"));
        }
        if self.oversubscribed && !self.receiver {
            return Err(refuse(
                "-oversubscribed_cc",
                "has no effect without -receiver_cc or -receiver_cc_only",
            ));
        }
        self.check_routing()?;
        let nscc = self.sender && self.sender_algorithm == Sender::Nscc;
        let of_nscc = [
            ("-target_q_delay", self.target.is_some()),
            ("-qa_gate", self.qa_gate.is_some()),
            ("-disable_base_rtt_update_on_nack", !self.base_rtt_from_nack),
        ];
        match of_nscc.iter().find(|(_, given)| *given && !nscc) {
            Some((option, _)) => Err(refuse(option, "has no effect without nscc at the senders")),
            None => Ok(()),
        }
    }

    /// Refuses options of adaptive routing that have no effect.
    fn check_routing(&self) -> Result<(), Failure> {
        let of_adaptive = [
            ("-ar_method", self.adaptive_method),
            ("-ar_granularity", self.adaptive_granularity),
            ("-ar_sticky_delta", self.sticky.is_some()),
        ];
        if let Some((option, _)) = of_adaptive.iter().find(|(_, given)| *given && !self.adaptive) {
            return Err(refuse(option, "has no effect without -strat ecmp_ar"));
        }
        match self.sticky {
            Some(_) if !self.flowlets => {
                Err(refuse("-ar_sticky_delta", "has no effect without -ar_granularity flow"))
            }
            _ => Ok(()),
        }
    }

    /// Whether a connection has one line for all its messages.
    pub(super) fn reuses_connections(&self) -> bool {
        self.connection_reuse
    }

    /// Notes for the user on the given options that have no effect.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> =
            self.logging.iter().map(|option| format!("{option}: no log is written")).collect();
        if self.cwnd.is_some() && !self.sender {
            notes.push("-cwnd: senders have no window, so it has no effect, as in htsim_uec".to_owned());
        }
        if self.ecn.is_some() && self.mark_above_half {
            notes.push(
                "-ecn: has no effect with this -strat, which marks above half of the queue, as in htsim_uec"
                    .to_owned(),
            );
        }
        if self.sleek && self.trim {
            notes.push(
                "-sleek: has no effect without -disable_trim, as trimmed packets tell of losses".to_owned(),
            );
        }
        let of_trees = [
            ("-tiers", self.tiers.is_some()),
            ("-hop_latency", self.hop_latency.is_some()),
            ("-switch_latency", self.switch_latency.is_some()),
        ];
        let given = of_trees.iter().filter(|(_, given)| *given && self.topology.is_some());
        notes.extend(given.map(|(option, _)| format!("{option}: has no effect with -topo, as in htsim_uec")));
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Option<Options>, Failure> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        Options::parse(&words)
    }

    #[test]
    fn options_begin_with_the_defaults_of_the_program() {
        let options = parse("-tm a.cm").unwrap().unwrap();
        assert_eq!(options, Options { matrix: Some("a.cm".into()), ..Options::default() });
    }

    #[test]
    fn later_words_on_senders_and_receivers_count() {
        let roles = |line| {
            let options = parse(line).unwrap().unwrap();
            (options.sender, options.receiver)
        };
        assert_eq!(roles(""), (true, false));
        assert_eq!(roles("-receiver_cc"), (true, true));
        assert_eq!(roles("-receiver_cc_only"), (false, true));
        assert_eq!(roles("-receiver_cc_only -sender_cc"), (true, true));
        assert_eq!(roles("-receiver_cc -sender_cc_only"), (true, false));
        assert_eq!(roles("-receiver_cc_only -sender_cc_algo dctcp"), (true, true));
    }

    #[test]
    fn marking_above_half_of_the_queue_does_not_depend_on_the_order_of_words() {
        for line in ["-strat ecmp_host_ecn -ecn 10 40", "-ecn 10 40 -strat reactive_ecn"] {
            let options = parse(line).unwrap().unwrap();
            assert!(options.mark_above_half, "{line}");
            assert!(options.notes()[0].starts_with("-ecn: has no effect with this -strat"), "{line}");
        }
    }

    #[test]
    fn adaptive_routing_has_one_entropy_unless_paths_follow() {
        assert_eq!(parse("-paths 8 -strat ecmp_ar").unwrap().unwrap().paths, 1);
        assert_eq!(parse("-strat ecmp_ar -paths 8").unwrap().unwrap().paths, 8);
    }

    #[test]
    fn every_known_option_is_read() {
        for (option, value, _) in KNOWN {
            let (value, more) = match *option {
                "-ecn" => ("1 2", ""),
                "-tiers" => ("2", ""),
                "-load_balancing_algo" => ("reps", ""),
                "-sender_cc_algo" => ("constant", ""),
                "-strat" => ("ecmp_host", ""),
                "-ar_method" => ("queue", "-strat ecmp_ar"),
                "-ar_granularity" => ("packet", "-strat ecmp_ar"),
                "-ar_sticky_delta" => ("7", "-strat ecmp_ar -ar_granularity flow"),
                "-trimsize" => ("64", ""),
                "-mtu" => ("1500", ""),
                "-Ai" | "-Md" | "-alpha" => ("0.25", ""),
                "-oversubscribed_cc" => ("", "-receiver_cc"),
                _ if value.is_empty() => ("", ""),
                "-planes" | "-queue_type" | "-host_queue_type" | "-log" => (*value, ""),
                _ => ("7", ""),
            };
            // A word that an option does not take as its value would be an unknown option.
            let line = format!("{more} {option} {value}");
            assert!(parse(&line).is_ok(), "{line}: {:?}", parse(&line));
        }
    }

    #[test]
    fn wrong_words_are_named() {
        for (line, expected) in [
            ("-paths", "-paths: expected a whole number from 1 to 10000 after it"),
            ("-paths 0", "-paths: `0`, expected a whole number from 1 to 10000"),
            ("-paths +3", "-paths: `+3`, expected a whole number from 1 to 10000"),
            ("-end 1e3", "-end: `1e3`, expected a whole number"),
            ("-turbo", "unknown option '-turbo' (see weft htsim --help)"),
            ("all", "unknown option 'all' (see weft htsim --help)"),
            ("-ecn 5", "-ecn: expected a whole number from 0 to 1000000 after it"),
            ("-ecn 5 4", "-ecn: `5 4`, expected LOW not above HIGH"),
            ("-ecn 5 9 -q 8", "-ecn: `9`, expected at most 8, the queue of -q"),
            ("-q 8 -queue_size_bdp_factor 2", "-queue_size_bdp_factor: has no effect with -q"),
            ("-strat ecmp_rr", "-strat: `ecmp_rr`: switches here do not take ports in turn"),
            ("-strat ecmp_ar -ar_method pqb", "-ar_method: `pqb`: switches here compare queues only"),
            ("-ar_granularity flow", "-ar_granularity: has no effect without -strat ecmp_ar"),
            (
                "-strat ecmp_ar -ar_sticky_delta 3",
                "-ar_sticky_delta: has no effect without -ar_granularity flow",
            ),
            ("-strat perm", "-strat: unknown `perm`; expected one of: ecmp_host,"),
            ("-load_balancing_algo reps_legacy", "-load_balancing_algo: `reps_legacy`: weft has"),
            ("-planes 2", "-planes: `2`, expected a whole number from 1 to 1"),
            ("-trimsize 128", "-trimsize: `128`, expected a whole number from 64 to 64"),
            ("-pcie 1.1", "-pcie: weft's hosts have no model of PCIe"),
            ("-oversubscribed_cc", "-oversubscribed_cc: has no effect without -receiver_cc"),
            ("-receiver_cc_only -qa_gate 2", "-qa_gate: has no effect without nscc"),
            ("-hop_latency -1", "-hop_latency: `-1`, expected a time in µs"),
            ("-Md 1.5", "-Md: `1.5`, expected a number from 0 to 1"),
        ] {
            let message = parse(line).expect_err(line).to_string();
            assert!(message.starts_with(expected), "{line}: {message}");
        }
    }
}
