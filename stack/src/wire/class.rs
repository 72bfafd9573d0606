//! The DSCPs of UET's packet classes. Every value is the operator's choice: no standard assigns one.

/// The DSCPs of the fabric's classes, 6 bits each.
///
/// The default values are those of a public simulator; a network configures its own, the same on all switches and
/// hosts. `trimmed_last_hop` may equal `trimmed` if switches do not know whether they are the last hop; all other
/// values must differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DscpClasses {
    /// Data that switches may trim.
    pub trimmable: u8,
    /// Data that a switch trimmed.
    pub trimmed: u8,
    /// Data that the switch before the receiver trimmed.
    pub trimmed_last_hop: u8,
    /// Acknowledgements, NACKs and control packets.
    pub control: u8,
}

impl Default for DscpClasses {
    fn default() -> DscpClasses {
        DscpClasses { trimmable: 8, trimmed: 16, trimmed_last_hop: 18, control: 46 }
    }
}

/// The class of a packet, from its DSCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PacketClass {
    /// Data that switches may trim.
    Trimmable,
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
        let all = [self.trimmable, self.trimmed, self.control, self.trimmed_last_hop];
        if let Some(&wide) = all.iter().find(|d| **d > 63) {
            return Err(ClassError::TooWide(wide));
        }
        let clash = |a: u8, b: u8| if a == b { Err(ClassError::Ambiguous(a)) } else { Ok(()) };
        clash(self.trimmable, self.trimmed)?;
        clash(self.trimmable, self.control)?;
        clash(self.trimmed, self.control)?;
        clash(self.trimmable, self.trimmed_last_hop)?;
        clash(self.control, self.trimmed_last_hop)
    }

    /// The class that `dscp` stands for.
    #[inline]
    pub const fn classify(&self, dscp: u8) -> PacketClass {
        if dscp == self.trimmable {
            PacketClass::Trimmable
        } else if dscp == self.control {
            PacketClass::Control
        } else if dscp == self.trimmed {
            PacketClass::Trimmed
        } else if dscp == self.trimmed_last_hop {
            PacketClass::TrimmedLastHop
        } else {
            PacketClass::Other(dscp)
        }
    }

    /// The DSCP of `class`.
    #[inline]
    pub const fn dscp(&self, class: PacketClass) -> u8 {
        match class {
            PacketClass::Trimmable => self.trimmable,
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
    }

    #[test]
    fn sets_of_ambiguous_or_wide_dscps_are_refused() {
        let d = DscpClasses::default();
        assert_eq!(DscpClasses { control: 64, ..d }.validate(), Err(ClassError::TooWide(64)));
        assert_eq!(DscpClasses { trimmed: 8, ..d }.validate(), Err(ClassError::Ambiguous(8)));
        assert_eq!(DscpClasses { control: 18, ..d }.validate(), Err(ClassError::Ambiguous(18)));
        assert_eq!(DscpClasses { trimmed_last_hop: 16, ..d }.validate(), Ok(()));
    }
}
