//! The DSCPs of UET's packet classes. Every value is the operator's choice: no standard assigns one.

/// Number of priorities that data packets can have.
pub const PRIORITIES: usize = 8;

/// The priority of a data packet, 0 to 7. Switches that tell priorities apart send those of a higher number first. Control
/// packets and trimmed packets have none: their class goes before all data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Priority(u8);

impl Priority {
    /// The priority of data for which nothing is said.
    pub const LOWEST: Priority = Priority(0);

    /// The priority `number`; `None` if it is above 7.
    #[inline]
    pub const fn new(number: u8) -> Option<Priority> {
        if (number as usize) < PRIORITIES { Some(Priority(number)) } else { None }
    }

    /// Its number, 0 to 7.
    #[inline]
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// The DSCPs of the fabric's classes, 6 bits each.
///
/// The default values are those of a public simulator; a network configures its own, the same on all switches and
/// hosts. `trimmed_last_hop` may equal `trimmed` if switches do not know whether they are the last hop; all other
/// values must differ.
///
/// A trimmed packet has no priority, so a switch needs one queue for each priority in use and one for the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DscpClasses {
    /// Data that switches may trim, by the number of its [`Priority`].
    pub trimmable: [u8; PRIORITIES],
    /// Data that a switch trimmed.
    pub trimmed: u8,
    /// Data that the switch before the receiver trimmed.
    pub trimmed_last_hop: u8,
    /// Acknowledgements, NACKs and control packets.
    pub control: u8,
}

impl Default for DscpClasses {
    fn default() -> DscpClasses {
        let trimmable = [8, 9, 10, 11, 12, 13, 14, 15];
        DscpClasses { trimmable, trimmed: 16, trimmed_last_hop: 18, control: 46 }
    }
}

/// The class of a packet, from its DSCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PacketClass {
    /// Data of this priority that switches may trim.
    Trimmable(Priority),
    /// Data that a switch inside the fabric trimmed.
    Trimmed,
    /// Data that the switch before the receiver trimmed.
    TrimmedLastHop,
    /// Acknowledgements, NACKs and control packets.
    Control,
    /// Any other DSCP.
    Other(u8),
}

/// Where in the network a packet lost its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TrimPoint {
    /// At a switch inside the fabric.
    Fabric,
    /// At the switch before the receiver: the receiver's own link is the bottleneck.
    LastHop,
}

/// Errors in a set of classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClassError {
    /// A DSCP is wider than six bits.
    #[error("DSCP {0} does not fit in six bits")]
    TooWide(u8),
    /// Two classes that must differ have the same DSCP.
    #[error("DSCP {0} names two classes")]
    Ambiguous(u8),
}

impl DscpClasses {
    /// Checks that every value is a DSCP and that the classes can be told apart.
    ///
    /// # Errors
    /// The first value that is too wide or ambiguous.
    pub fn validate(&self) -> Result<(), ClassError> {
        let last_hop = (self.trimmed_last_hop != self.trimmed).then_some(self.trimmed_last_hop);
        let others = [self.trimmed, self.control].into_iter().chain(last_hop);
        let mut seen = 0u64;
        for dscp in self.trimmable.into_iter().chain(others) {
            if dscp > 63 {
                return Err(ClassError::TooWide(dscp));
            }
            if seen & 1 << dscp != 0 {
                return Err(ClassError::Ambiguous(dscp));
            }
            seen |= 1 << dscp;
        }
        Ok(())
    }

    /// The class that `dscp` stands for.
    #[inline]
    pub const fn classify(&self, dscp: u8) -> PacketClass {
        if dscp == self.trimmable[0] {
            PacketClass::Trimmable(Priority::LOWEST)
        } else if dscp == self.control {
            PacketClass::Control
        } else if dscp == self.trimmed {
            PacketClass::Trimmed
        } else if dscp == self.trimmed_last_hop {
            PacketClass::TrimmedLastHop
        } else {
            self.higher_priority(dscp)
        }
    }

    /// The class of a DSCP that is not one of data of the lowest priority, trimmed packets or control.
    const fn higher_priority(&self, dscp: u8) -> PacketClass {
        let mut number = 1;
        while number < PRIORITIES {
            if dscp == self.trimmable[number] {
                return PacketClass::Trimmable(Priority(number as u8));
            }
            number += 1;
        }
        PacketClass::Other(dscp)
    }

    /// The DSCP of `class`.
    #[inline]
    pub const fn dscp(&self, class: PacketClass) -> u8 {
        match class {
            PacketClass::Trimmable(priority) => self.trimmable[priority.0 as usize],
            PacketClass::Trimmed => self.trimmed,
            PacketClass::TrimmedLastHop => self.trimmed_last_hop,
            PacketClass::Control => self.control,
            PacketClass::Other(dscp) => dscp,
        }
    }
}

impl PacketClass {
    /// Where packets of this class were trimmed; `None` if they are not trimmed.
    #[inline]
    pub const fn trim_point(self) -> Option<TrimPoint> {
        match self {
            PacketClass::Trimmed => Some(TrimPoint::Fabric),
            PacketClass::TrimmedLastHop => Some(TrimPoint::LastHop),
            _ => None,
        }
    }
}

impl TrimPoint {
    /// The class of packets trimmed here.
    #[inline]
    pub const fn class(self) -> PacketClass {
        match self {
            TrimPoint::Fabric => PacketClass::Trimmed,
            TrimPoint::LastHop => PacketClass::TrimmedLastHop,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dscp_has_a_class_that_maps_back_to_it() {
        let c = DscpClasses::default();
        assert_eq!(c.validate(), Ok(()));
        for dscp in 0..64 {
            assert_eq!(c.dscp(c.classify(dscp)), dscp);
        }
        assert_eq!(c.classify(16).trim_point(), Some(TrimPoint::Fabric));
        assert_eq!(c.classify(18).trim_point(), Some(TrimPoint::LastHop));
        assert_eq!(c.classify(8).trim_point(), None);
        assert_eq!(c.classify(0), PacketClass::Other(0));
        let numbers = (0..64).filter_map(|dscp| match c.classify(dscp) {
            PacketClass::Trimmable(priority) => Some((dscp, priority.number())),
            _ => None,
        });
        assert!(numbers.eq((0..8).map(|number| (8 + number, number))));
        assert_eq!((Priority::new(7), Priority::new(8)), (Some(Priority(7)), None));
    }

    #[test]
    fn sets_of_ambiguous_or_wide_dscps_are_refused() {
        let d = DscpClasses::default();
        assert_eq!(DscpClasses { control: 64, ..d }.validate(), Err(ClassError::TooWide(64)));
        assert_eq!(DscpClasses { trimmed: 8, ..d }.validate(), Err(ClassError::Ambiguous(8)));
        assert_eq!(DscpClasses { trimmed: 15, ..d }.validate(), Err(ClassError::Ambiguous(15)));
        let trimmable = [0, 1, 2, 3, 4, 5, 6, 0];
        assert_eq!(DscpClasses { trimmable, ..d }.validate(), Err(ClassError::Ambiguous(0)));
        assert_eq!(DscpClasses { control: 18, ..d }.validate(), Err(ClassError::Ambiguous(18)));
        assert_eq!(DscpClasses { trimmed_last_hop: 16, ..d }.validate(), Ok(()));
    }
}
