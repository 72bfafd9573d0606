//! How many of the bytes in flight have arrived, as an initiator knows it from two sources.

/// Bytes of one PDC that have arrived at its target.
///
/// CACK and SACK name packets by PSN, but not more than 64 beyond the first missing one. The target's total
/// (`rcvd_bytes`) counts all of them, in nominal packet sizes rounded up to 256 B, but not every ACK carries it. Windows
/// count packets in bytes of a third kind: payload and the overhead that the fabric has. What the total knows beyond the
/// PSNs is therefore computed in nominal bytes and converted each time; nothing converted is added up, so that no error
/// grows.
// In the order of use.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Arrived {
    /// Bytes that have arrived, as windows count them.
    received: u64,
    /// Those of them that belong to packets known by PSN.
    named: u64,
    /// The target's total, nominal bytes.
    reported: u64,
    /// The part of the total that belongs to packets known by PSN, nominal bytes.
    explained: u64,
    /// Nominal size of a packet less the bytes that windows count it for.
    excess: i64,
}

impl Arrived {
    /// Nothing has arrived. The nominal size of a packet is `excess` bytes more than windows count.
    pub(super) fn new(excess: i32) -> Arrived {
        Arrived { excess: i64::from(excess), ..Arrived::default() }
    }

    /// Bytes that have arrived in packets not known by PSN.
    #[inline]
    pub(super) fn unnamed(&self) -> u64 {
        self.received.saturating_sub(self.named)
    }

    /// `packets` packets with data, which windows count for `bytes`, are now known by PSN to have arrived. `carried` of
    /// the bytes went to the target; the others came back from it.
    #[inline]
    pub(super) fn on_named(&mut self, bytes: u64, carried: u64, packets: u32) {
        self.named += bytes;
        self.explained =
            self.explained.wrapping_add(carried).wrapping_add_signed(self.excess * i64::from(packets));
    }

    /// The target reports its total, in units of 256 B modulo 2²⁴. `in_order` says that it has received nothing beyond
    /// the first missing packet.
    #[inline]
    pub(super) fn on_report(&mut self, rcvd_bytes: u32, in_order: bool) {
        let units = rcvd_bytes.wrapping_sub((self.reported >> 8) as u32) & 0xff_ffff;
        // More than half the circle ahead is behind: a later acknowledgement has overtaken this one.
        if units >= 1 << 23 {
            return;
        }
        self.reported += u64::from(units) << 8;
        if in_order {
            // CACK names all that the target has, so any difference is one of counting or rounding.
            self.explained = self.reported;
        }
    }

    /// Bytes newly received, after all news of an acknowledgement; `bytes` in `packets` packets are outstanding.
    #[inline]
    pub(super) fn news(&mut self, bytes: u64, packets: u32) -> u64 {
        let ahead = match self.reported.wrapping_sub(self.explained) as i64 {
            ..=0 => 0,
            ahead => self.convert(ahead as u64, bytes, packets),
        };
        let received = self.received.max(self.named + ahead);
        received - core::mem::replace(&mut self.received, received)
    }

    /// What `nominal` bytes count for in windows, at the mean packet size of the `bytes` outstanding in `packets`
    /// packets; at most `bytes`, because a target cannot receive more than was sent.
    #[inline(never)]
    fn convert(&self, nominal: u64, bytes: u64, packets: u32) -> u64 {
        let outstanding = (bytes as i64 + self.excess * i64::from(packets)).max(1) as u64;
        // 32,640 packets at most: the product fits.
        nominal.min(outstanding) * bytes / outstanding
    }

    /// All packets are known by PSN to have arrived: any difference between the counts is an error of counting.
    #[inline]
    pub(super) fn settle(&mut self) {
        (self.named, self.explained) = (self.received, self.reported);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOMINAL: u64 = 4096 + 104;
    const COUNTED: u64 = 4096 + 64;

    fn units(nominal: u64) -> u32 {
        (nominal.div_ceil(256) & 0xff_ffff) as u32
    }

    #[test]
    fn counts_do_not_drift_over_100_gb() {
        let mut arrived = Arrived::new(40);
        let (mut packets, mut sum) = (0, 0);
        while packets * 4096 < 100_000_000_000 {
            // Four packets more by PSN; of the following 100 the target has received between none and 75.
            packets += 4;
            arrived.on_named(4 * COUNTED, 4 * COUNTED, 4);
            let beyond = packets / 4 % 76;
            arrived.on_report(units((packets + beyond) * NOMINAL), beyond == 0);
            sum += arrived.news(100 * COUNTED, 100);
            assert!(arrived.unnamed() <= 75 * COUNTED + 256, "after {packets} packets");
        }
        arrived.on_named(75 * COUNTED, 75 * COUNTED, 75);
        packets += 75;
        arrived.on_report(units(packets * NOMINAL), true);
        sum += arrived.news(0, 0);
        assert!(sum.abs_diff(packets * COUNTED) < 256, "{sum} of {}", packets * COUNTED);
    }

    #[test]
    fn bytes_beyond_the_named_packets_are_converted() {
        let mut arrived = Arrived::new(40);
        arrived.on_report(units(10 * NOMINAL), false);
        let news = arrived.news(20 * COUNTED, 20);
        assert!((10 * COUNTED..10 * COUNTED + 256).contains(&news), "{news}");
        arrived.on_named(10 * COUNTED, 10 * COUNTED, 10);
        arrived.on_report(units(10 * NOMINAL), true);
        assert_eq!(arrived.news(10 * COUNTED, 10), 0, "they were counted before");
    }

    #[test]
    fn a_target_that_reports_nothing_is_known_by_psn() {
        let mut arrived = Arrived::new(40);
        arrived.on_named(3 * COUNTED, 3 * COUNTED, 3);
        assert_eq!(arrived.news(COUNTED, 1), 3 * COUNTED);
        assert_eq!(arrived.unnamed(), 0);
    }

    #[test]
    fn a_target_that_counts_otherwise_is_corrected_whenever_all_has_arrived_in_order() {
        let mut arrived = Arrived::new(40);
        let (mut packets, mut sum) = (0, 0);
        for _ in 0..1_000 {
            packets += 4;
            arrived.on_named(4 * COUNTED, 4 * COUNTED, 4);
            // 18 B more a packet than nominal.
            arrived.on_report(units(packets * (NOMINAL + 18)), true);
            sum += arrived.news(10 * COUNTED, 10);
            assert_eq!(arrived.unnamed(), 0);
        }
        assert_eq!(sum, packets * COUNTED);
    }

    #[test]
    fn reports_beyond_what_was_sent_free_no_more_than_that() {
        let mut arrived = Arrived::new(-18);
        arrived.on_report(0x40_0000, false);
        assert_eq!(arrived.news(3 * COUNTED, 3), 3 * COUNTED);
        arrived.on_report(0, false);
        assert_eq!(arrived.news(3 * COUNTED, 3), 0, "the last report is older");
    }
}
