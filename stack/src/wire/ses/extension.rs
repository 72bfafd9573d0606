//! Extension headers, which some opcodes put between a request and its payload.
//!
//! A parsed frame keeps them at the start of the payload: code that handles a rendezvous or an atomic splits them off
//! with [`Extension::decode`].

use super::Opcode;
use crate::wire::bytes::{be32, be64, be128, head, put, room};
use crate::wire::error::{HeaderName, WireError, fits};

/// Operation of an atomic, 8 bits. Unknown codes are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicOp(pub u8);

impl AtomicOp {
    /// The smaller value.
    pub const MIN: AtomicOp = AtomicOp(0x00);
    /// The larger value.
    pub const MAX: AtomicOp = AtomicOp(0x01);
    /// The sum.
    pub const SUM: AtomicOp = AtomicOp(0x02);
    /// The value less the operand.
    pub const DIFF: AtomicOp = AtomicOp(0x03);
    /// The product.
    pub const PROD: AtomicOp = AtomicOp(0x04);
    /// Logical or: 1 or 0.
    pub const LOR: AtomicOp = AtomicOp(0x05);
    /// Logical and: 1 or 0.
    pub const LAND: AtomicOp = AtomicOp(0x06);
    /// Or, bit by bit.
    pub const BOR: AtomicOp = AtomicOp(0x07);
    /// And, bit by bit.
    pub const BAND: AtomicOp = AtomicOp(0x08);
    /// Logical exclusive or: 1 or 0.
    pub const LXOR: AtomicOp = AtomicOp(0x09);
    /// Exclusive or, bit by bit.
    pub const BXOR: AtomicOp = AtomicOp(0x0a);
    /// The value as it is, without an operand.
    pub const READ: AtomicOp = AtomicOp(0x0b);
    /// The operand.
    pub const WRITE: AtomicOp = AtomicOp(0x0c);
    /// Compare and swap if not equal.
    pub const COMPARE_SWAP_NE: AtomicOp = AtomicOp(0x0e);
    /// Compare and swap if the operand is less or equal.
    pub const COMPARE_SWAP_LE: AtomicOp = AtomicOp(0x0f);
    /// Compare and swap if the operand is less.
    pub const COMPARE_SWAP_LT: AtomicOp = AtomicOp(0x10);
    /// Compare and swap if the operand is greater or equal.
    pub const COMPARE_SWAP_GE: AtomicOp = AtomicOp(0x11);
    /// Compare and swap if the operand is greater.
    pub const COMPARE_SWAP_GT: AtomicOp = AtomicOp(0x12);
    /// Compare and swap if equal: the first of the operations with two operands.
    pub const COMPARE_SWAP: AtomicOp = AtomicOp(0x0d);
    /// Swap masked bits: the last of the operations with two operands.
    pub const MASKED_SWAP: AtomicOp = AtomicOp(0x13);

    /// Whether the operation carries two operands in a [`CompareSwapExtension`].
    #[inline]
    pub const fn has_operands(self) -> bool {
        self.0 >= AtomicOp::COMPARE_SWAP.0 && self.0 <= AtomicOp::MASKED_SWAP.0
    }
}

/// Datatype of an atomic, 8 bits. Unknown codes are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicType(pub u8);

impl AtomicType {
    /// Signed, 8 bits.
    pub const INT8: AtomicType = AtomicType(0x00);
    /// Unsigned, 8 bits.
    pub const UINT8: AtomicType = AtomicType(0x01);
    /// Signed, 16 bits.
    pub const INT16: AtomicType = AtomicType(0x02);
    /// Unsigned, 16 bits.
    pub const UINT16: AtomicType = AtomicType(0x03);
    /// Signed, 32 bits.
    pub const INT32: AtomicType = AtomicType(0x04);
    /// Unsigned, 32 bits.
    pub const UINT32: AtomicType = AtomicType(0x05);
    /// Signed, 64 bits.
    pub const INT64: AtomicType = AtomicType(0x06);
    /// Unsigned, 64 bits.
    pub const UINT64: AtomicType = AtomicType(0x07);
    /// Signed, 128 bits.
    pub const INT128: AtomicType = AtomicType(0x08);
    /// Unsigned, 128 bits.
    pub const UINT128: AtomicType = AtomicType(0x09);
    /// IEEE 754, 32 bits.
    pub const FLOAT: AtomicType = AtomicType(0x0a);
    /// IEEE 754, 64 bits.
    pub const DOUBLE: AtomicType = AtomicType(0x0b);
    /// Real and imaginary part of 32 bits each.
    pub const FLOAT_COMPLEX: AtomicType = AtomicType(0x0c);
    /// Real and imaginary part of 64 bits each.
    pub const DOUBLE_COMPLEX: AtomicType = AtomicType(0x0d);

    /// Bytes of a value; `None` if weft does not know the datatype: long doubles differ between machines, and there is no
    /// arithmetic of the 16-bit floats.
    pub const fn size(self) -> Option<usize> {
        Some(match self {
            AtomicType::INT8 | AtomicType::UINT8 => 1,
            AtomicType::INT16 | AtomicType::UINT16 => 2,
            AtomicType::INT32 | AtomicType::UINT32 | AtomicType::FLOAT => 4,
            AtomicType::INT64 | AtomicType::UINT64 | AtomicType::DOUBLE | AtomicType::FLOAT_COMPLEX => 8,
            AtomicType::INT128 | AtomicType::UINT128 | AtomicType::DOUBLE_COMPLEX => 16,
            _ => return None,
        })
    }
}

/// Rendezvous extension, 24 B: where the target fetches the part of the message that was not sent eagerly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RendezvousExtension {
    /// Number of the message's bytes that come with the request.
    pub eager_length: u32,
    /// Generation of the resource index.
    pub ri_generation: u8,
    /// Process on the initiator, 12 bits.
    pub pid_on_fep: u16,
    /// Queue of the initiator, 12 bits.
    pub resource_index: u16,
    /// Offset in the initiator's buffer.
    pub buffer_offset: u64,
    /// The initiator's memory key.
    pub memory_key: u64,
}

impl RendezvousExtension {
    /// Bytes of the header.
    pub const LEN: usize = 24;

    /// Reads the extension that starts `bytes`.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<RendezvousExtension, WireError> {
        let b: &[u8; Self::LEN] = head(bytes, HeaderName::SesRendezvous)?;
        let word = be32(b, 4);
        Ok(RendezvousExtension {
            eager_length: be32(b, 0),
            ri_generation: (word >> 24) as u8,
            pid_on_fep: (word >> 12 & 0xfff) as u16,
            resource_index: (word & 0xfff) as u16,
            buffer_offset: be64(b, 8),
            memory_key: be64(b, 16),
        })
    }

    /// Writes the extension; returns its length.
    ///
    /// # Errors
    /// No room; a value too wide.
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, WireError> {
        fits(HeaderName::SesRendezvous, 5, "pid_on_fep", u64::from(self.pid_on_fep), 12)?;
        fits(HeaderName::SesRendezvous, 6, "resource_index", u64::from(self.resource_index), 12)?;
        let b: &mut [u8; Self::LEN] = room(buf, HeaderName::SesRendezvous)?;
        let word = u32::from(self.ri_generation) << 24
            | u32::from(self.pid_on_fep) << 12
            | u32::from(self.resource_index);
        put(b, 0, self.eager_length.to_be_bytes());
        put(b, 4, word.to_be_bytes());
        put(b, 8, self.buffer_offset.to_be_bytes());
        put(b, 16, self.memory_key.to_be_bytes());
        Ok(Self::LEN)
    }
}

/// Atomic extension, 4 B; the last byte is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicExtension {
    /// The operation on the target's memory.
    pub op: AtomicOp,
    /// Datatype, 8 bits; unknown codes are kept.
    pub datatype: u8,
    /// Semantic control, 8 bits; unknown codes are kept.
    pub semantic: u8,
}

impl AtomicExtension {
    /// Bytes of the header.
    pub const LEN: usize = 4;

    /// Reads the extension that starts `bytes`.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<AtomicExtension, WireError> {
        let b: &[u8; Self::LEN] = head(bytes, HeaderName::SesAtomic)?;
        Ok(AtomicExtension { op: AtomicOp(b[0]), datatype: b[1], semantic: b[2] })
    }

    /// Writes the extension; returns its length.
    ///
    /// # Errors
    /// [`WireError::NoRoom`].
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, WireError> {
        let b: &mut [u8; Self::LEN] = room(buf, HeaderName::SesAtomic)?;
        *b = [self.op.0, self.datatype, self.semantic, 0];
        Ok(Self::LEN)
    }
}

/// Compare-and-swap extension, 36 B: the atomic extension and two operands of 16 B, of which the datatype may use a
/// part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompareSwapExtension {
    /// The operation, for which [`AtomicOp::has_operands`] holds.
    pub atomic: AtomicExtension,
    /// The value to compare with, as 16 big-endian bytes.
    pub compare: u128,
    /// The value to store, as 16 big-endian bytes.
    pub swap: u128,
}

impl CompareSwapExtension {
    /// Bytes of the header.
    pub const LEN: usize = 36;

    /// Reads the extension that starts `bytes`.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<CompareSwapExtension, WireError> {
        let b: &[u8; Self::LEN] = head(bytes, HeaderName::SesAtomic)?;
        let atomic = AtomicExtension::parse(b)?;
        Ok(CompareSwapExtension { atomic, compare: be128(b, 4), swap: be128(b, 20) })
    }

    /// Writes the extension; returns its length.
    ///
    /// # Errors
    /// No room; an operation that has no operands.
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, WireError> {
        if !self.atomic.op.has_operands() {
            let expected = "an operation with two operands";
            return Err(WireError::Inconsistent { header: HeaderName::SesAtomic, offset: 0, expected });
        }
        let b: &mut [u8; Self::LEN] = room(buf, HeaderName::SesAtomic)?;
        self.atomic.emit(b)?;
        put(b, 4, self.compare.to_be_bytes());
        put(b, 20, self.swap.to_be_bytes());
        Ok(Self::LEN)
    }
}

/// Any extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    /// Extension of the rendezvous opcodes.
    Rendezvous(RendezvousExtension),
    /// Extension of the atomic opcodes.
    Atomic(AtomicExtension),
    /// Extension of the atomic opcodes for operations with two operands.
    CompareSwap(CompareSwapExtension),
}

impl Extension {
    /// Splits the extension that `opcode` implies off `payload`; `None` if it implies none.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    pub fn decode(opcode: Opcode, payload: &[u8]) -> Result<(Option<Extension>, &[u8]), WireError> {
        let extension = match opcode {
            Opcode::RENDEZVOUS_SEND | Opcode::RENDEZVOUS_TSEND => {
                Extension::Rendezvous(RendezvousExtension::parse(payload)?)
            }
            Opcode::ATOMIC | Opcode::FETCHING_ATOMIC | Opcode::TSEND_ATOMIC | Opcode::TSEND_FETCH_ATOMIC => {
                let atomic = AtomicExtension::parse(payload)?;
                if atomic.op.has_operands() {
                    Extension::CompareSwap(CompareSwapExtension::parse(payload)?)
                } else {
                    Extension::Atomic(atomic)
                }
            }
            _ => return Ok((None, payload)),
        };
        Ok((Some(extension), &payload[extension.encoded_len()..]))
    }

    /// Bytes that [`Extension::emit`] writes.
    pub const fn encoded_len(&self) -> usize {
        match self {
            Extension::Rendezvous(_) => RendezvousExtension::LEN,
            Extension::Atomic(_) => AtomicExtension::LEN,
            Extension::CompareSwap(_) => CompareSwapExtension::LEN,
        }
    }

    /// Writes the extension; returns its length.
    ///
    /// # Errors
    /// No room; a value too wide; a contradiction, such as a plain atomic extension for an operation
    /// that needs operands.
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, WireError> {
        match self {
            Extension::Rendezvous(e) => e.emit(buf),
            Extension::Atomic(e) if e.op.has_operands() => Err(WireError::Inconsistent {
                header: HeaderName::SesAtomic,
                offset: 0,
                expected: "an operation without operands",
            }),
            Extension::Atomic(e) => e.emit(buf),
            Extension::CompareSwap(e) => e.emit(buf),
        }
    }
}
