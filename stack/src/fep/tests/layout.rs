//! Checks which fields of an endpoint share cache lines.

use core::mem::offset_of;

use crate::fep::Fep;
use crate::fep::core::Core;
use crate::fep::initiator::Initiator;
use crate::fep::process::Processes;
use crate::fep::target::Target;

fn line(offset: usize) -> usize {
    offset / 64
}

#[test]
fn the_fields_that_a_packet_needs_share_cache_lines() {
    let core = offset_of!(Fep, core);
    let initiator = offset_of!(Fep, initiator);
    let target = offset_of!(Fep, target);
    assert_eq!(line(core + offset_of!(Core, config)), line(core + offset_of!(Core, control) + 31));
    assert_eq!(line(core + offset_of!(Core, wheel)), line(core + offset_of!(Core, wheel) + 15));
    // A data packet on its way out: the queue without its capacity, and the start of each table.
    let (ready, sends) = (offset_of!(Initiator, ready), offset_of!(Initiator, sends));
    assert_eq!(line(initiator + ready + 8) + 1, line(initiator + sends + 23));
    // The end of the initiator, the start of the target.
    let delivered = initiator + offset_of!(Initiator, delivered);
    assert_eq!(line(delivered), line(target + offset_of!(Target, pdcs) + 23));
    // The receives of process 0 begin a line, as their order expects.
    let receives = target + offset_of!(Target, processes) + offset_of!(Processes, zero);
    assert_eq!(receives % 64, 0);
}
