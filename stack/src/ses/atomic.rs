//! Atomic operations on a target's memory: what each does to each datatype.
//!
//! Values lie in memory, and travel behind the atomic extension, with their lowest byte first; the operands in a
//! compare-and-swap extension are numbers of 16 bytes, of which the datatype uses the low ones.

use crate::wire::ses::{AtomicOp, AtomicType, ReturnCode};

/// Whether the operation exists for the datatype.
pub fn supports(op: AtomicOp, datatype: AtomicType) -> bool {
    let Some(size) = datatype.size() else { return false };
    let (mut value, operand) = ([0; 16], [0; 16]);
    let swap = op.has_operands().then_some((0, 0));
    let operand = if op.has_operands() || op == AtomicOp::READ { &[][..] } else { &operand[..size] };
    apply(op, datatype, &mut value[..size], operand, swap).is_ok()
}

/// Performs `op` on each value of `memory`, with the operand at the same place of `operands`; or with `swap`, the values to
/// compare with and to store, on the only one.
///
/// # Errors
/// The return code of a target that does not perform it; nothing has changed then.
pub fn apply(
    op: AtomicOp,
    datatype: AtomicType,
    memory: &mut [u8],
    operands: &[u8],
    swap: Option<(u128, u128)>,
) -> Result<(), ReturnCode> {
    let call = Call { op, memory, operands, swap };
    match datatype {
        AtomicType::INT8 => call.run::<i8>(),
        AtomicType::UINT8 => call.run::<u8>(),
        AtomicType::INT16 => call.run::<i16>(),
        AtomicType::UINT16 => call.run::<u16>(),
        AtomicType::INT32 => call.run::<i32>(),
        AtomicType::UINT32 => call.run::<u32>(),
        AtomicType::INT64 => call.run::<i64>(),
        AtomicType::UINT64 => call.run::<u64>(),
        AtomicType::INT128 => call.run::<i128>(),
        AtomicType::UINT128 => call.run::<u128>(),
        AtomicType::FLOAT => call.run::<f32>(),
        AtomicType::DOUBLE => call.run::<f64>(),
        AtomicType::FLOAT_COMPLEX => call.run::<Complex<f32>>(),
        AtomicType::DOUBLE_COMPLEX => call.run::<Complex<f64>>(),
        _ => Err(ReturnCode::AMO_UNSUPPORTED_DT),
    }
}

struct Call<'a> {
    op: AtomicOp,
    memory: &'a mut [u8],
    operands: &'a [u8],
    swap: Option<(u128, u128)>,
}

impl Call<'_> {
    fn run<T: Value>(self) -> Result<(), ReturnCode> {
        if !self.memory.len().is_multiple_of(T::SIZE) || self.memory.is_empty() {
            return Err(ReturnCode::AMO_UNSUPPORTED_SIZE);
        }
        if let Some((compare, swap)) = self.swap {
            if self.memory.len() != T::SIZE {
                return Err(ReturnCode::AMO_UNSUPPORTED_SIZE);
            }
            let stored = T::read(self.memory);
            let (compare, swap) = (T::of_bits(compare), T::of_bits(swap));
            stored.swapped(self.op, compare, swap).ok_or(ReturnCode::AMO_UNSUPPORTED_OP)?.write(self.memory);
            return Ok(());
        }
        if self.op == AtomicOp::READ {
            return Ok(());
        }
        if self.operands.len() != self.memory.len() {
            return Err(ReturnCode::AMO_UNSUPPORTED_SIZE);
        }
        // Whether the operation exists depends on the datatype alone, so that the first value tells.
        for (stored, operand) in self.memory.chunks_mut(T::SIZE).zip(self.operands.chunks(T::SIZE)) {
            let result = T::read(stored).combined(self.op, T::read(operand));
            result.ok_or(ReturnCode::AMO_UNSUPPORTED_OP)?.write(stored);
        }
        Ok(())
    }
}

/// A value of a datatype.
trait Value: Copy {
    const SIZE: usize;

    /// The value in the first bytes, of which there are enough.
    fn read(bytes: &[u8]) -> Self;

    fn write(self, bytes: &mut [u8]);

    /// The value in the low bytes of a number.
    fn of_bits(bits: u128) -> Self {
        Self::read(&bits.to_le_bytes())
    }

    /// What `op` makes of this value and `operand`; `None` if there is no such operation on the datatype.
    fn combined(self, op: AtomicOp, operand: Self) -> Option<Self>;

    /// What `op` makes of this value.
    fn swapped(self, op: AtomicOp, compare: Self, swap: Self) -> Option<Self>;
}

/// The bytes of a value, at the start of `bytes`.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[..N]);
    array
}

/// What a compare-and-swap operation makes of `stored`. The value to compare with stands on the left.
fn swapped<T: PartialOrd>(op: AtomicOp, stored: T, compare: &T, swap: T) -> Option<T> {
    let holds = match op {
        AtomicOp::COMPARE_SWAP => *compare == stored,
        AtomicOp::COMPARE_SWAP_NE => *compare != stored,
        AtomicOp::COMPARE_SWAP_LE => *compare <= stored,
        AtomicOp::COMPARE_SWAP_LT => *compare < stored,
        AtomicOp::COMPARE_SWAP_GE => *compare >= stored,
        AtomicOp::COMPARE_SWAP_GT => *compare > stored,
        _ => return None,
    };
    Some(if holds { swap } else { stored })
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl Value for $int {
            const SIZE: usize = size_of::<$int>();

            fn read(bytes: &[u8]) -> $int {
                <$int>::from_le_bytes(array(bytes))
            }

            fn write(self, bytes: &mut [u8]) {
                bytes[..Self::SIZE].copy_from_slice(&self.to_le_bytes());
            }

            fn combined(self, op: AtomicOp, operand: $int) -> Option<$int> {
                Some(match op {
                    AtomicOp::MIN => self.min(operand),
                    AtomicOp::MAX => self.max(operand),
                    AtomicOp::SUM => self.wrapping_add(operand),
                    AtomicOp::DIFF => self.wrapping_sub(operand),
                    AtomicOp::PROD => self.wrapping_mul(operand),
                    AtomicOp::LOR => (self != 0 || operand != 0).into(),
                    AtomicOp::LAND => (self != 0 && operand != 0).into(),
                    AtomicOp::LXOR => ((self != 0) != (operand != 0)).into(),
                    AtomicOp::BOR => self | operand,
                    AtomicOp::BAND => self & operand,
                    AtomicOp::BXOR => self ^ operand,
                    AtomicOp::WRITE => operand,
                    _ => return None,
                })
            }

            fn swapped(self, op: AtomicOp, compare: $int, swap: $int) -> Option<$int> {
                match op {
                    AtomicOp::MASKED_SWAP => Some(swap & compare | self & !compare),
                    _ => swapped(op, self, &compare, swap),
                }
            }
        }
    )*};
}

integers!(i8, u8, i16, u16, i32, u32, i64, u64, i128, u128);

macro_rules! floats {
    ($($float:ty),*) => {$(
        impl Value for $float {
            const SIZE: usize = size_of::<$float>();

            fn read(bytes: &[u8]) -> $float {
                <$float>::from_le_bytes(array(bytes))
            }

            fn write(self, bytes: &mut [u8]) {
                bytes[..Self::SIZE].copy_from_slice(&self.to_le_bytes());
            }

            fn combined(self, op: AtomicOp, operand: $float) -> Option<$float> {
                let truth = |holds: bool| if holds { 1.0 } else { 0.0 };
                Some(match op {
                    // A NaN replaces nothing.
                    AtomicOp::MIN => if operand < self { operand } else { self },
                    AtomicOp::MAX => if operand > self { operand } else { self },
                    AtomicOp::SUM => self + operand,
                    AtomicOp::DIFF => self - operand,
                    AtomicOp::PROD => self * operand,
                    AtomicOp::LOR => truth(self != 0.0 || operand != 0.0),
                    AtomicOp::LAND => truth(self != 0.0 && operand != 0.0),
                    AtomicOp::LXOR => truth((self != 0.0) != (operand != 0.0)),
                    AtomicOp::WRITE => operand,
                    _ => return None,
                })
            }

            fn swapped(self, op: AtomicOp, compare: $float, swap: $float) -> Option<$float> {
                swapped(op, self, &compare, swap)
            }
        }

        impl Value for Complex<$float> {
            const SIZE: usize = 2 * size_of::<$float>();

            fn read(bytes: &[u8]) -> Self {
                let (real, imaginary) = bytes.split_at(size_of::<$float>());
                Complex { real: Value::read(real), imaginary: Value::read(imaginary) }
            }

            fn write(self, bytes: &mut [u8]) {
                let (real, imaginary) = bytes.split_at_mut(size_of::<$float>());
                self.real.write(real);
                self.imaginary.write(imaginary);
            }

            fn combined(self, op: AtomicOp, operand: Self) -> Option<Self> {
                let zero = Complex { real: 0.0, imaginary: 0.0 };
                let truth = |holds: bool| Complex { real: if holds { 1.0 } else { 0.0 }, ..zero };
                let (a, b) = (self, operand);
                Some(match op {
                    AtomicOp::SUM => Complex { real: a.real + b.real, imaginary: a.imaginary + b.imaginary },
                    AtomicOp::DIFF => Complex { real: a.real - b.real, imaginary: a.imaginary - b.imaginary },
                    AtomicOp::PROD => Complex {
                        real: a.real * b.real - a.imaginary * b.imaginary,
                        imaginary: a.real * b.imaginary + a.imaginary * b.real,
                    },
                    AtomicOp::LOR => truth(a != zero || b != zero),
                    AtomicOp::LAND => truth(a != zero && b != zero),
                    AtomicOp::LXOR => truth((a != zero) != (b != zero)),
                    AtomicOp::WRITE => b,
                    _ => return None,
                })
            }

            /// Complex numbers have no order.
            fn swapped(self, op: AtomicOp, compare: Self, swap: Self) -> Option<Self> {
                let holds = match op {
                    AtomicOp::COMPARE_SWAP => compare == self,
                    AtomicOp::COMPARE_SWAP_NE => compare != self,
                    _ => return None,
                };
                Some(if holds { swap } else { self })
            }
        }
    )*};
}

floats!(f32, f64);

#[derive(Clone, Copy, PartialEq)]
struct Complex<T> {
    real: T,
    imaginary: T,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(op: AtomicOp, datatype: AtomicType, memory: &[u8], operands: &[u8]) -> Result<Vec<u8>, ReturnCode> {
        let mut memory = memory.to_vec();
        apply(op, datatype, &mut memory, operands, None).map(|()| memory)
    }

    #[test]
    fn integers_wrap_and_each_value_meets_its_own_operand() {
        let (a, b) = ([255, 1, 7], [2, 3, 0]);
        let of = |op| on(op, AtomicType::UINT8, &a, &b).unwrap();
        assert_eq!(of(AtomicOp::SUM), [1, 4, 7]);
        assert_eq!(of(AtomicOp::DIFF), [253, 254, 7]);
        assert_eq!(of(AtomicOp::PROD), [254, 3, 0]);
        assert_eq!(of(AtomicOp::MIN), [2, 1, 0]);
        assert_eq!(of(AtomicOp::MAX), [255, 3, 7]);
        assert_eq!(of(AtomicOp::LAND), [1, 1, 0]);
        assert_eq!(of(AtomicOp::LOR), [1, 1, 1]);
        assert_eq!(of(AtomicOp::LXOR), [0, 0, 1]);
        assert_eq!(of(AtomicOp::BAND), [2, 1, 0]);
        assert_eq!(of(AtomicOp::BOR), [255, 3, 7]);
        assert_eq!(of(AtomicOp::BXOR), [253, 2, 7]);
        assert_eq!(of(AtomicOp::WRITE), b);
        assert_eq!(on(AtomicOp::READ, AtomicType::UINT8, &a, &[]).unwrap(), a);
        assert_eq!(on(AtomicOp::MIN, AtomicType::INT8, &a, &b).unwrap(), [255, 1, 0], "-1 is less than 2");
    }

    #[test]
    fn values_have_their_lowest_byte_first() {
        assert_eq!(
            on(AtomicOp::SUM, AtomicType::UINT32, &[255, 0, 0, 0], &[1, 0, 0, 0]).unwrap(),
            [0, 1, 0, 0]
        );
        let doubles = |values: [f64; 2]| values.map(f64::to_le_bytes).concat();
        let (a, b) = (doubles([1.5, -2.0]), doubles([0.25, 4.0]));
        assert_eq!(on(AtomicOp::SUM, AtomicType::DOUBLE, &a, &b).unwrap(), doubles([1.75, 2.0]));
        assert_eq!(on(AtomicOp::PROD, AtomicType::DOUBLE_COMPLEX, &a, &b).unwrap(), doubles([8.375, 5.5]));
    }

    #[test]
    fn swaps_compare_from_the_left() {
        let swap = |op, stored: i16, compare: i16| {
            let mut memory = stored.to_le_bytes();
            let operands = (u128::from(compare as u16), 9);
            apply(op, AtomicType::INT16, &mut memory, &[], Some(operands)).unwrap();
            i16::from_le_bytes(memory) == 9
        };
        for (compare, stored) in [(-1, 1), (1, 1), (2, 1)] {
            assert_eq!(swap(AtomicOp::COMPARE_SWAP, stored, compare), compare == stored);
            assert_eq!(swap(AtomicOp::COMPARE_SWAP_NE, stored, compare), compare != stored);
            assert_eq!(swap(AtomicOp::COMPARE_SWAP_LE, stored, compare), compare <= stored);
            assert_eq!(swap(AtomicOp::COMPARE_SWAP_LT, stored, compare), compare < stored);
            assert_eq!(swap(AtomicOp::COMPARE_SWAP_GE, stored, compare), compare >= stored);
            assert_eq!(swap(AtomicOp::COMPARE_SWAP_GT, stored, compare), compare > stored);
        }
        let mut memory = [0b1100];
        apply(AtomicOp::MASKED_SWAP, AtomicType::UINT8, &mut memory, &[], Some((0b1010, 0b0011))).unwrap();
        assert_eq!(memory, [0b0110]);
    }

    #[test]
    fn what_does_not_exist_is_refused_and_changes_nothing() {
        let refused =
            |op, datatype, memory: &[u8], operands: &[u8]| on(op, datatype, memory, operands).unwrap_err();
        let (unsupported, size) = (ReturnCode::AMO_UNSUPPORTED_OP, ReturnCode::AMO_UNSUPPORTED_SIZE);
        assert_eq!(refused(AtomicOp::BXOR, AtomicType::FLOAT, &[1; 4], &[2; 4]), unsupported);
        assert_eq!(refused(AtomicOp(0x14), AtomicType::INT8, &[1], &[2]), unsupported);
        assert_eq!(refused(AtomicOp::COMPARE_SWAP, AtomicType::INT8, &[1], &[2]), unsupported);
        assert_eq!(refused(AtomicOp::SUM, AtomicType::INT16, &[1; 3], &[2; 3]), size);
        assert_eq!(refused(AtomicOp::SUM, AtomicType::INT16, &[1; 4], &[2; 2]), size);
        assert_eq!(refused(AtomicOp::SUM, AtomicType::INT8, &[], &[]), size);
        assert_eq!(
            refused(AtomicOp::SUM, AtomicType(0x0e), &[1; 16], &[2; 16]),
            ReturnCode::AMO_UNSUPPORTED_DT
        );
        assert!(supports(AtomicOp::MASKED_SWAP, AtomicType::UINT128));
        assert!(!supports(AtomicOp::COMPARE_SWAP_LT, AtomicType::FLOAT_COMPLEX));
        assert!(
            !supports(AtomicOp::SUM, AtomicType(0x11))
                && supports(AtomicOp::READ, AtomicType::DOUBLE_COMPLEX)
        );
    }
}
