//! Bursts that are meant to overflow a queue of a switch: their lengths, their pacing, and the finding on the fabric.

use super::finding::Finding;
use std::time::Duration;
use weft_cc::Rate;

/// Packets of the first burst. Each burst is twice as long as the one before, because the shortest burst that overflows
/// anything is likely to overflow the switch rather than a queue in this host.
const FIRST_BURST: u16 = 64;
/// Packets of the longest burst.
const LONGEST_BURST: u16 = 1024;
/// Packets of the longest burst through a packet socket without a known rate. One end of a veth pair accepts every
/// packet, and at the other end a ring of 512 packets by default may overflow without a trace at either end.
const LONGEST_UNPACED_BURST: u16 = 256;
/// Bytes of a frame on Ethernet besides the IP packet: preamble, header, check sequence and gap.
const ETHERNET_OVERHEAD: u64 = 8 + 14 + 4 + 12;

/// How much a port shows of dropped and trimmed packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visibility {
    /// The port sends or counts every packet.
    Full,
    /// The kernel drops datagrams that are shorter than their headers say.
    KernelUdp,
    /// Losses behind a packet socket are not reported.
    PacketSocket,
}

/// How bursts are sent and judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    visibility: Visibility,
    /// The rate of this host's link, if known.
    rate: Option<Rate>,
}

/// The number of packets of a burst that were sent, and that arrived whole or trimmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fate {
    pub(super) sent: u16,
    pub(super) whole: u16,
    pub(super) trimmed: u16,
    /// Packets dropped by this host's port.
    pub(super) unsent: u16,
    /// Packets dropped by the port of the answering host.
    pub(super) missed: u16,
}

impl Fate {
    /// Packets that did not arrive.
    fn missing(&self) -> u16 {
        self.sent.saturating_sub(self.whole).saturating_sub(self.trimmed)
    }

    /// Packets that did not arrive although neither port has dropped them.
    fn lost(&self) -> u16 {
        self.missing().saturating_sub(self.unsent).saturating_sub(self.missed)
    }

    /// Whether a longer burst would add nothing. `before` is the fate of the previous burst: one burst with losses
    /// proves nothing, because a packet may be lost where no queue overflows.
    pub(super) fn settles(&self, before: Option<Fate>) -> bool {
        self.trimmed > 0 || (self.lost() > 0 && before.is_some_and(|fate| fate.lost() > 0))
    }
}

impl Burst {
    pub(super) fn new(visibility: Visibility, rate: Option<Rate>) -> Burst {
        Burst { visibility, rate }
    }

    /// The number of packets of each burst, in order.
    pub(super) fn sizes(self) -> impl Iterator<Item = u16> {
        let unpaced = self.visibility == Visibility::PacketSocket && self.rate.is_none();
        let most = if unpaced { LONGEST_UNPACED_BURST } else { LONGEST_BURST };
        std::iter::successors(Some(FIRST_BURST), |size| size.checked_mul(2))
            .take_while(move |size| *size <= most)
    }

    /// The time between two packets of `length` bytes at the rate of this host's link; zero if that is unknown.
    pub(super) fn gap(self, length: usize) -> Duration {
        let span = self.rate.map(|rate| rate.time_for(length as u64 + ETHERNET_OVERHEAD));
        span.map_or(Duration::ZERO, |span| Duration::from_nanos(span.as_ps() / 1000))
    }

    /// The finding on the fabric from the fate of the longest burst.
    pub(super) fn judge(self, fate: Fate) -> Finding {
        const CHECK: &str = "trimming";
        let (missing, seen) = (fate.missing(), describe(&fate));
        if fate.trimmed > 0 {
            return Finding::ok(CHECK, format!("the fabric trims: {seen}"));
        }
        if missing == 0 {
            let longer =
                if fate.sent < LONGEST_BURST { ", or say --link RATE for longer bursts" } else { "" };
            let mend = format!("run it from several hosts to one at the same time{longer}");
            return Finding::warn(CHECK, format!("not seen, nothing overflowed: {seen}"), mend);
        }
        if fate.lost() == 0 {
            let seen = format!("not seen, only ports at the ends overflowed: {seen}");
            return Finding::warn(CHECK, seen, "say --link RATE, the rate of the slower one of both links");
        }
        match self.visibility {
            Visibility::KernelUdp => Finding::warn(
                CHECK,
                format!("not known, kernel UDP hides trimmed packets: {seen}"),
                "sudo weft doctor --path IP/MAC --port dpdk:net_af_packet0,iface=NAME --ip IP    (at both ends)",
            ),
            Visibility::PacketSocket => Finding::bad(
                CHECK,
                format!("the fabric, or the host behind its packet socket, drops: {seen}"),
                format!(
                    "say --link RATE for a burst that the host's link carries; if it stays so, {ENABLE_TRIMMING}"
                ),
            ),
            Visibility::Full => Finding::bad(CHECK, format!("the fabric drops: {seen}"), ENABLE_TRIMMING),
        }
    }
}

const ENABLE_TRIMMING: &str =
    "switch trimming on for DSCP 8 (trimmed packets: DSCP 16, 18 at the last hop), or use --trim off";

fn describe(fate: &Fate) -> String {
    let Fate { sent, whole, trimmed, unsent, missed } = fate;
    let mut text = format!(
        "of {sent} packets at once {whole} arrived whole, {trimmed} trimmed, {} not at all",
        fate.missing()
    );
    for (count, whose) in [(unsent, "this host's port"), (missed, "the other host's port")] {
        if *count > 0 {
            text += &format!("; {whose} dropped {count}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    fn fate(whole: u16, trimmed: u16, unsent: u16, missed: u16) -> Fate {
        Fate { sent: 100, whole, trimmed, unsent, missed }
    }

    #[test]
    fn the_finding_follows_from_the_fate_and_the_port() {
        let state = |visibility, fate| Burst::new(visibility, None).judge(fate).state;
        for (visibility, dropping) in [
            (Visibility::Full, State::Bad),
            (Visibility::PacketSocket, State::Bad),
            (Visibility::KernelUdp, State::Warn),
        ] {
            assert_eq!(state(visibility, fate(60, 40, 0, 0)), State::Ok, "{visibility:?}");
            assert_eq!(state(visibility, fate(100, 0, 0, 0)), State::Warn, "{visibility:?}");
            assert_eq!(state(visibility, fate(60, 0, 0, 0)), dropping, "{visibility:?}");
            assert_eq!(
                state(visibility, fate(60, 0, 10, 30)),
                State::Warn,
                "the ends have dropped all: {visibility:?}"
            );
        }
        let finding = Burst::new(Visibility::Full, None).judge(fate(60, 0, 10, 20));
        let seen = "the fabric drops: of 100 packets at once 60 arrived whole, 0 trimmed, 40 not at all; \
                    this host's port dropped 10; the other host's port dropped 20";
        assert_eq!((finding.state, finding.seen.as_str()), (State::Bad, seen));
    }

    #[test]
    fn losses_in_one_burst_only_are_no_overflow() {
        let (good, poor, trimmed) = (fate(100, 0, 0, 0), fate(99, 0, 0, 0), fate(99, 1, 0, 0));
        assert!(!good.settles(None) && !poor.settles(None) && !poor.settles(Some(good)));
        assert!(!good.settles(Some(poor)) && poor.settles(Some(poor)));
        assert!(trimmed.settles(None), "that leaves no doubt");
        assert!(!fate(90, 0, 10, 0).settles(Some(poor)), "what a port drops says nothing of the fabric");
    }

    #[test]
    fn bursts_double_and_are_paced_at_the_rate_of_the_link() {
        let sizes = |visibility, rate| Burst::new(visibility, rate).sizes().collect::<Vec<u16>>();
        let rate = Some(Rate::from_bps(200_000_000));
        assert_eq!(sizes(Visibility::Full, None), [64, 128, 256, 512, 1024]);
        assert_eq!(sizes(Visibility::PacketSocket, None), [64, 128, 256]);
        assert_eq!(sizes(Visibility::PacketSocket, rate), [64, 128, 256, 512, 1024]);
        assert_eq!(Burst::new(Visibility::Full, rate).gap(4962), Duration::from_micros(200));
        assert_eq!(Burst::new(Visibility::Full, None).gap(4962), Duration::ZERO);
    }
}
