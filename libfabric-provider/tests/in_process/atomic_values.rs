//! Every atomic operation on every datatype that there is, by the definitions of fi_atomic(3).

use std::ffi::{c_int, c_void};
use std::ops::{Add, Mul, Sub};
use std::ptr::{null, null_mut};
use std::time::Instant;

use crate::common::fabric::{BOUND, Exposed, Failed, How, Side, Wish, table};
use crate::common::inside;
use crate::common::server::servers;
use weft_fi::sys;

const KEY: u64 = 77;
const DATATYPES: [sys::fi_datatype; 14] = [
    sys::FI_INT8,
    sys::FI_UINT8,
    sys::FI_INT16,
    sys::FI_UINT16,
    sys::FI_INT32,
    sys::FI_UINT32,
    sys::FI_INT64,
    sys::FI_UINT64,
    sys::FI_FLOAT,
    sys::FI_DOUBLE,
    sys::FI_FLOAT_COMPLEX,
    sys::FI_DOUBLE_COMPLEX,
    sys::FI_LONG_DOUBLE,
    sys::FI_LONG_DOUBLE_COMPLEX,
];
const OPS: [sys::fi_op; 19] = [
    sys::FI_MIN,
    sys::FI_MAX,
    sys::FI_SUM,
    sys::FI_PROD,
    sys::FI_LOR,
    sys::FI_LAND,
    sys::FI_BOR,
    sys::FI_BAND,
    sys::FI_LXOR,
    sys::FI_BXOR,
    sys::FI_ATOMIC_READ,
    sys::FI_ATOMIC_WRITE,
    sys::FI_CSWAP,
    sys::FI_CSWAP_NE,
    sys::FI_CSWAP_LE,
    sys::FI_CSWAP_LT,
    sys::FI_CSWAP_GE,
    sys::FI_CSWAP_GT,
    sys::FI_MSWAP,
];

/// The calls of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Write,
    ReadWrite,
    CompareWrite,
}

/// What fi_atomic(3) says that a value becomes, by the value, the operand and the one to compare with.
type Becomes<T> = fn(T, T, T) -> T;

/// Operations that all values have, those of complex numbers too.
fn of_all<T: Number>(op: sys::fi_op) -> Option<Becomes<T>> {
    Some(match op {
        sys::FI_SUM => |old, new, _| old.plus(new),
        sys::FI_PROD => |old, new, _| old.times(new),
        sys::FI_LOR => |old, new, _| T::truth(old.is_true() || new.is_true()),
        sys::FI_LAND => |old, new, _| T::truth(old.is_true() && new.is_true()),
        sys::FI_LXOR => |old, new, _| T::truth(old.is_true() != new.is_true()),
        sys::FI_ATOMIC_READ => |old, _, _| old,
        sys::FI_ATOMIC_WRITE => |_, new, _| new,
        sys::FI_CSWAP => |old, new, compare| if compare == old { new } else { old },
        sys::FI_CSWAP_NE => |old, new, compare| if compare != old { new } else { old },
        _ => return None,
    })
}

/// Those of values that have an order.
fn of_ordered<T: Number + PartialOrd>(op: sys::fi_op) -> Option<Becomes<T>> {
    Some(match op {
        sys::FI_MIN => |old, new, _| if new < old { new } else { old },
        sys::FI_MAX => |old, new, _| if new > old { new } else { old },
        sys::FI_CSWAP_LE => |old, new, compare| if compare <= old { new } else { old },
        sys::FI_CSWAP_LT => |old, new, compare| if compare < old { new } else { old },
        sys::FI_CSWAP_GE => |old, new, compare| if compare >= old { new } else { old },
        sys::FI_CSWAP_GT => |old, new, compare| if compare > old { new } else { old },
        _ => return of_all(op),
    })
}

trait Number: Copy + PartialEq {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn is_true(self) -> bool;
    fn truth(truth: bool) -> Self;
    /// Values at which operations could go wrong.
    fn samples() -> Vec<Self>;
    fn read(bytes: &[u8]) -> Self;
    fn write(self) -> Vec<u8>;
    fn is_nan(self) -> bool {
        false
    }
    /// Whether it is the value that was expected, by its bits unless it is no number.
    fn is(self, expected: Self) -> bool {
        self.write() == expected.write() || (self.is_nan() && expected.is_nan())
    }
}

macro_rules! integers {
    ($($type:ty)*) => { $(
        impl Number for $type {
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn is_true(self) -> bool {
                self != 0
            }
            fn truth(truth: bool) -> Self {
                Self::from(truth)
            }
            fn samples() -> Vec<Self> {
                vec![0, 1, 2, 0x5a, Self::MAX, Self::MIN, Self::MAX / 3, !0]
            }
            fn read(bytes: &[u8]) -> Self {
                Self::from_ne_bytes(bytes.try_into().unwrap())
            }
            fn write(self) -> Vec<u8> {
                self.to_ne_bytes().to_vec()
            }
        }
    )* };
}

integers! { i8 u8 i16 u16 i32 u32 i64 u64 }

macro_rules! floats {
    ($($type:ty)*) => { $(
        impl Number for $type {
            fn plus(self, other: Self) -> Self {
                self + other
            }
            fn times(self, other: Self) -> Self {
                self * other
            }
            fn is_true(self) -> bool {
                self != 0.0
            }
            fn is_nan(self) -> bool {
                <$type>::is_nan(self)
            }
            fn truth(truth: bool) -> Self {
                if truth { 1.0 } else { 0.0 }
            }
            fn samples() -> Vec<Self> {
                vec![0.0, 1.0, -1.5, 0.1, Self::MAX, Self::MIN_POSITIVE, Self::INFINITY, Self::NAN]
            }
            fn read(bytes: &[u8]) -> Self {
                Self::from_ne_bytes(bytes.try_into().unwrap())
            }
            fn write(self) -> Vec<u8> {
                self.to_ne_bytes().to_vec()
            }
        }
    )* };
}

floats! { f32 f64 }

/// A complex number: its real and its imaginary part.
#[derive(Clone, Copy, PartialEq)]
struct Complex<T>(T, T);

impl<T: Number + Add<Output = T> + Sub<Output = T> + Mul<Output = T>> Number for Complex<T> {
    fn plus(self, other: Self) -> Self {
        Complex(self.0 + other.0, self.1 + other.1)
    }
    fn times(self, other: Self) -> Self {
        Complex(self.0 * other.0 - self.1 * other.1, self.0 * other.1 + self.1 * other.0)
    }
    fn is_true(self) -> bool {
        self.0.is_true() || self.1.is_true()
    }
    fn truth(truth: bool) -> Self {
        Complex(T::truth(truth), T::truth(false))
    }
    fn samples() -> Vec<Self> {
        // Products of the others have parts that are numbers.
        let parts = &T::samples()[..4];
        let pairs = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 3), (3, 2), (2, 0), (0, 3)];
        pairs.into_iter().map(|(real, imaginary)| Complex(parts[real], parts[imaginary])).collect()
    }
    fn read(bytes: &[u8]) -> Self {
        let (real, imaginary) = bytes.split_at(bytes.len() / 2);
        Complex(T::read(real), T::read(imaginary))
    }
    fn write(self) -> Vec<u8> {
        [self.0.write(), self.1.write()].concat()
    }
}

/// Two endpoints, and memory of the second that the first may access.
struct Pair {
    a: Side,
    b: Side,
    to_b: u64,
    /// How many samples of each datatype there are.
    samples: usize,
}

impl Pair {
    fn open(domains: [Option<String>; 2], samples: usize) -> Pair {
        let caps = sys::FI_MSG | sys::FI_ATOMIC;
        let [a, b] =
            domains.map(|domain| Side::open(&Wish { caps, domain, ..Wish::default() }, How::default()));
        let (to_b, _) = (a.insert(&b.name()), b.insert(&a.name()));
        Pair { a, b, to_b, samples }
    }

    /// Whether the call, and the query of the domain, say that there is such an operation.
    fn has(&self, datatype: sys::fi_datatype, op: sys::fi_op, family: Family) -> bool {
        let (ep, mut count) = (self.a.ep, 0);
        let (call, flags) = match family {
            Family::Write => (table!(ep, atomic.writevalid(datatype, op, &mut count)), 0),
            Family::ReadWrite => {
                (table!(ep, atomic.readwritevalid(datatype, op, &mut count)), sys::FI_FETCH_ATOMIC)
            }
            Family::CompareWrite => {
                (table!(ep, atomic.compwritevalid(datatype, op, &mut count)), sys::FI_COMPARE_ATOMIC)
            }
        };
        let mut attr = sys::fi_atomic_attr::default();
        let query = table!(self.a.domain, ops.query_atomic(datatype, op, &mut attr, flags));
        assert_eq!(call, query, "datatype {datatype}, operation {op}, {family:?}");
        let no: c_int = -(sys::FI_EOPNOTSUPP as c_int);
        assert!(call == 0 || call == no, "datatype {datatype}, operation {op}, {family:?}: {call}");
        assert!(call != 0 || (attr.count == count && count >= 1));
        call == 0
    }

    /// Makes the call, and returns what it fetches once it is complete.
    fn call(
        &self,
        (datatype, op, family): (sys::fi_datatype, sys::fi_op, Family),
        count: usize,
        operands: &[u8],
        compare: &[u8],
    ) -> Result<Vec<u8>, isize> {
        let (ep, to) = (self.a.ep, self.to_b);
        let mut fetched = vec![0u8; operands.len()];
        let [operands, compare]: [*const c_void; 2] = [operands.as_ptr().cast(), compare.as_ptr().cast()];
        let (none, result): (*mut c_void, *mut c_void) = (null_mut(), fetched.as_mut_ptr().cast());
        let mut refused = 0;
        let again = -(sys::FI_EAGAIN as isize);
        self.a.post(|| {
            let answer = match family {
                Family::Write => {
                    table!(ep, atomic.write(operands, count, none, to, 0, KEY, datatype, op, none))
                }
                Family::ReadWrite => {
                    table!(
                        ep,
                        atomic.readwrite(operands, count, none, result, none, to, 0, KEY, datatype, op, none)
                    )
                }
                Family::CompareWrite => table!(
                    ep,
                    atomic.compwrite(
                        operands, count, none, compare, none, result, none, to, 0, KEY, datatype, op, none
                    )
                ),
            };
            refused = if answer == again { 0 } else { answer };
            if answer == again { again } else { 0 }
        });
        if refused != 0 {
            return Err(refused);
        }
        let begin = Instant::now();
        loop {
            assert_eq!(self.b.cq.read(), None);
            match self.a.cq.read() {
                Some(done) => break done.map(|_| fetched).map_err(|Failed { error, .. }| -(error as isize)),
                None => assert!(begin.elapsed() < BOUND, "no entry"),
            }
            std::thread::yield_now();
        }
    }

    /// Makes all calls of an operation with all pairs of samples, and compares what they do with `becomes`.
    fn compare<T: Number>(
        &self,
        datatype: sys::fi_datatype,
        op: sys::fi_op,
        becomes: Option<Becomes<T>>,
        memory: &mut [u8],
    ) {
        let samples = &T::samples()[..self.samples];
        let pairs: Vec<(T, T)> =
            samples.iter().flat_map(|old| samples.iter().map(move |new| (*old, *new))).collect();
        let size = size_of::<T>();
        let compares = op >= sys::FI_CSWAP;
        for family in [Family::Write, Family::ReadWrite, Family::CompareWrite] {
            let suits = match family {
                Family::Write => !compares && op != sys::FI_ATOMIC_READ,
                Family::ReadWrite => !compares,
                Family::CompareWrite => compares,
            };
            let what = format!("datatype {datatype}, operation {op}, {family:?}");
            assert_eq!(self.has(datatype, op, family), suits && becomes.is_some(), "{what}");
            let Some(becomes) = becomes.filter(|_| suits) else {
                let no = -(sys::FI_EOPNOTSUPP as isize);
                let operand = samples[0].write();
                let refused = self.call((datatype, op, family), 1, &operand, &operand);
                assert_eq!(refused, Err(no), "{what}");
                continue;
            };
            // Operations that compare take one value.
            let at_once = if compares { 1 } else { pairs.len() };
            for compare in if compares { samples } else { &samples[..1] } {
                for some in pairs.chunks(at_once) {
                    let olds: Vec<u8> = some.iter().flat_map(|(old, _)| old.write()).collect();
                    let news: Vec<u8> = some.iter().flat_map(|(_, new)| new.write()).collect();
                    memory[..olds.len()].copy_from_slice(&olds);
                    let call = (datatype, op, family);
                    let fetched = self.call(call, some.len(), &news, &compare.write()).unwrap();
                    for (n, (old, new)) in some.iter().enumerate() {
                        let at = n * size..(n + 1) * size;
                        // SAFETY: the bytes are there; the endpoint has written to them.
                        let bytes = at.clone().map(|at| unsafe { memory.as_ptr().add(at).read_volatile() });
                        let is = T::read(&bytes.collect::<Vec<u8>>());
                        let expected = becomes(*old, *new, *compare);
                        assert!(
                            is.is(expected),
                            "{what}, pair {n}: {:?} is not {:?}",
                            is.write(),
                            expected.write()
                        );
                        if family != Family::Write {
                            assert_eq!(fetched[at], old.write()[..], "{what}, pair {n}");
                        }
                    }
                }
            }
        }
    }
}

fn every_operation_on_every_datatype(domains: [Option<String>; 2], samples: usize) {
    let pair = Pair::open(domains, samples);
    let mut memory = vec![0u8; 1024];
    let _exposed = Exposed::new(&pair.b, &mut memory, KEY);
    for datatype in DATATYPES {
        for op in OPS {
            macro_rules! integer {
                ($type:ty) => {{
                    let becomes: Option<Becomes<$type>> = match op {
                        sys::FI_BOR => Some(|old, new, _| old | new),
                        sys::FI_BAND => Some(|old, new, _| old & new),
                        sys::FI_BXOR => Some(|old, new, _| old ^ new),
                        sys::FI_MSWAP => Some(|old, new, compare| (new & compare) | (old & !compare)),
                        _ => of_ordered(op),
                    };
                    pair.compare::<$type>(datatype, op, becomes, &mut memory)
                }};
            }
            match datatype {
                sys::FI_INT8 => integer!(i8),
                sys::FI_UINT8 => integer!(u8),
                sys::FI_INT16 => integer!(i16),
                sys::FI_UINT16 => integer!(u16),
                sys::FI_INT32 => integer!(i32),
                sys::FI_UINT32 => integer!(u32),
                sys::FI_INT64 => integer!(i64),
                sys::FI_UINT64 => integer!(u64),
                sys::FI_FLOAT => pair.compare::<f32>(datatype, op, of_ordered(op), &mut memory),
                sys::FI_DOUBLE => pair.compare::<f64>(datatype, op, of_ordered(op), &mut memory),
                sys::FI_FLOAT_COMPLEX => {
                    pair.compare::<Complex<f32>>(datatype, op, of_all(op), &mut memory);
                }
                sys::FI_DOUBLE_COMPLEX => {
                    pair.compare::<Complex<f64>>(datatype, op, of_all(op), &mut memory);
                }
                // Rust has no such type, and its layout differs between machines.
                _ => pair.compare::<Complex<f64>>(datatype, op, None, &mut memory),
            }
        }
    }
}

const PLAIN: &str = "every_operation_on_every_datatype_does_what_libfabric_says_or_is_refused";
const SERVED: &str = "so_does_each_through_servers";

#[test]
fn every_operation_on_every_datatype_does_what_libfabric_says_or_is_refused() {
    if inside(PLAIN) {
        every_operation_on_every_datatype([None, None], 8);
    }
}

#[test]
fn too_many_values_and_reads_without_operands_get_the_answers_of_the_manual() {
    if !inside("too_many_values_and_reads_without_operands_get_the_answers_of_the_manual") {
        return;
    }
    let pair = Pair::open([None, None], 1);
    let (ep, to) = (pair.a.ep, pair.to_b);
    let u64s = sys::FI_UINT64;
    let mut most = 0;
    assert_eq!(table!(ep, atomic.writevalid(u64s, sys::FI_SUM, &mut most)), 0);
    let too_long = Err(-(sys::FI_EMSGSIZE as isize));
    let sums = vec![1u8; (most + 1) * 8];
    assert_eq!(pair.call((u64s, sys::FI_SUM, Family::Write), most + 1, &sums, &[]), too_long);
    let swaps = [1u8; 16];
    assert_eq!(pair.call((u64s, sys::FI_CSWAP, Family::CompareWrite), 2, &swaps, &swaps), too_long);

    let mut memory = 0x1234_5678_u64.to_ne_bytes();
    let _mr = Exposed::new(&pair.b, &mut memory, KEY);
    let mut fetched = [0u64; 2];
    let results = fetched.each_mut().map(|place| sys::fi_ioc { addr: (&raw mut *place).cast(), count: 1 });
    let (none, op): (*mut c_void, _) = (null_mut(), sys::FI_ATOMIC_READ);
    pair.a.post(|| {
        let result = results.as_ptr().cast_mut();
        table!(
            ep,
            atomic.readwritev(null(), null_mut(), 1, result, null_mut(), 1, to, 0, KEY, u64s, op, none)
        )
    });
    let place = sys::fi_rma_ioc { addr: 0, count: 1, key: KEY };
    let message = sys::fi_msg_atomic {
        msg_iov: null(),
        desc: null_mut(),
        iov_count: 1,
        addr: to,
        rma_iov: &place,
        rma_iov_count: 1,
        datatype: u64s,
        op,
        context: none,
        data: 0,
    };
    pair.a.post(|| {
        let result = results[1..].as_ptr().cast_mut();
        table!(ep, atomic.readwritemsg(&message, result, null_mut(), 1, sys::FI_COMPLETION))
    });
    let begin = Instant::now();
    let mut done = 0;
    while done < 2 {
        assert_eq!(pair.b.cq.read(), None);
        done += usize::from(pair.a.cq.read().is_some_and(|entry| entry.is_ok()));
        assert!(begin.elapsed() < BOUND, "no entry");
    }
    assert_eq!(fetched, [0x1234_5678; 2]);
}

#[test]
fn so_does_each_through_servers() {
    if inside(SERVED) {
        let directory = tempfile::tempdir().unwrap();
        let servers = servers(&directory, 60);
        // Fewer, since each call takes longer.
        every_operation_on_every_datatype([Some(servers[0].name()), Some(servers[1].name())], 3);
    }
}
