//! Accesses of the other side's memory: writes, reads, additions and swaps, of several pieces and places.

use super::*;

pub(super) const KEY: u64 = 7;
/// Exposed memory: slots that are written and read, and behind them counters, and words that are compared and swapped.
pub(super) const SLOTS: usize = 64;
pub(super) const SLOT: usize = LONGEST;
pub(super) const COUNTERS: usize = 4;
pub(super) const WORDS: usize = 16;
pub(super) const MEMORY: usize = SLOTS * SLOT + (COUNTERS + WORDS) * 8;
/// An access has at most so many pieces of local memory, and so many of remote memory.
pub(super) const PIECES: usize = 4;
/// A place of an access that has more bytes takes several packets wherever endpoints are.
pub(super) const LONG: usize = 12_000;
/// The kinds of accesses, of which each seed has some that succeed. First those of writes, then those of reads in the same order.
pub(super) const KINDS: [&str; 10] = [
    "long writes",
    "writes from several pieces",
    "writes to several places",
    "long reads",
    "reads to several pieces",
    "reads from several places",
    "additions",
    "additions that fetch",
    "swaps of a value that is equal",
    "swaps of one that is not",
];
/// Where kinds begin in that list.
pub(super) const WRITES: usize = 0;
pub(super) const READS: usize = 3;
pub(super) const COUNTS: usize = 6;
pub(super) const SWAPS: usize = 8;

/// The bytes that a write has left, by its number and its length.
pub(super) type Written = (u64, usize);

/// The content that a slot has before the first write to it.
pub(super) fn at_first(slot: usize) -> Written {
    ((slot as u64 + 1) << 40, LENGTHS[slot % LENGTHS.len()])
}

/// A slot of the other side's memory: its last write, and whether an access is under way to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) written: Written,
    pub(super) busy: bool,
}

/// The part of a write that goes to one slot: its content, and the content before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    pub(super) slot: usize,
    pub(super) written: Written,
    pub(super) before: Written,
}

/// The part of a read that comes from one slot: so many bytes from `begin` on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    pub(super) slot: usize,
    pub(super) begin: usize,
    pub(super) len: usize,
}

impl Player {
    /// An access that chance decides; a write is of `len` bytes.
    pub(super) fn access(&mut self, random: &mut Random, id: u64, len: usize) {
        let (counter, word) = (random.below(COUNTERS as u64) as usize, random.below(WORDS as u64) as usize);
        let yes = random.below(2) == 0;
        match random.below(4) {
            0 => self.write(random, id, len, yes),
            1 => self.read(random),
            2 => self.count(counter, yes),
            _ => self.swap(random, word, yes),
        }
    }

    /// One slot of the other side, or several, drawn from those that no access is under way to, as far as there are any.
    pub(super) fn idle_slots(&self, random: &mut Random) -> Vec<usize> {
        let mut idle: Vec<usize> = (0..SLOTS).filter(|slot| !self.slots[*slot].busy).collect();
        let count = idle.len().min(several(random));
        (0..count).map(|_| idle.swap_remove(random.below(idle.len() as u64) as usize)).collect()
    }

    /// Writes to some slots, from some pieces of memory.
    pub(super) fn write(&mut self, random: &mut Random, id: u64, len: usize, announce: bool) {
        let slots = self.idle_slots(random);
        if slots.is_empty() {
            return;
        }
        let (lens, count) = (cut(random, len, slots.len()), several(random));
        let pieces = cut(random, len, count);
        let part = |((number, slot), len): ((u64, usize), usize)| Write {
            slot,
            written: (number << 32 | id, len),
            before: self.slots[slot].written,
        };
        let writes: Vec<Write> = (0..).zip(slots).zip(lens).map(part).collect();
        let bytes: Vec<u8> =
            writes.iter().flat_map(|write| content(write.written.0, write.written.1)).collect();
        let bytes = turned(&bytes, pieces.iter());
        let place = |write: &Write| sys::fi_rma_iov {
            addr: (write.slot * SLOT) as u64,
            len: write.written.1,
            key: KEY,
        };
        let places: Vec<_> = writes.iter().map(place).collect();
        let (ep, to, before, lens) = (self.side.ep, self.other, self.next, pieces.clone());
        self.post(Operation::Write { id, writes, pieces }, bytes, |_, at, context| {
            let (iov, addr, none) = (in_pieces(at, &lens), places[0].addr, null_mut());
            match (places.len(), iov.len()) {
                (1, 1) if announce => {
                    table!(ep, rma.writedata(at.cast(), len, none, id, to, addr, KEY, context))
                }
                (1, 1) => table!(ep, rma.write(at.cast(), len, null_mut(), to, addr, KEY, context)),
                (1, count) if !announce => {
                    table!(ep, rma.writev(iov.as_ptr(), null_mut(), count, to, addr, KEY, context))
                }
                _ => {
                    let data = if announce { sys::FI_REMOTE_CQ_DATA } else { 0 };
                    let message = of_places(&iov, &places, to, context, id);
                    table!(ep, rma.writemsg(&message, sys::FI_COMPLETION | data))
                }
            }
        });
        if announce && self.next != before {
            self.announcing.push(id);
        }
    }

    /// Reads a slot, or parts of several ones, to some pieces of memory.
    pub(super) fn read(&mut self, random: &mut Random) {
        let slots = self.idle_slots(random);
        if slots.is_empty() {
            return;
        }
        let most = LONGEST / slots.len();
        let mut part = |slot: usize| {
            let (_, whole) = self.slots[slot].written;
            let len = whole.min(most);
            Read { slot, begin: random.below((whole - len + 1) as u64) as usize, len }
        };
        let reads: Vec<Read> = slots.into_iter().map(&mut part).collect();
        let place = |read: &Read| sys::fi_rma_iov {
            addr: (read.slot * SLOT + read.begin) as u64,
            len: read.len,
            key: KEY,
        };
        let places: Vec<_> = reads.iter().map(place).collect();
        let (len, count) = (reads.iter().map(|read| read.len).sum(), several(random));
        let pieces = cut(random, len, count);
        let (ep, to, lens) = (self.side.ep, self.other, pieces.clone());
        // No bytes that are read are all like these.
        let room = vec![0xee; len];
        self.post(Operation::Read { reads, pieces }, room, |_, at, context| {
            let (iov, addr, none) = (in_pieces(at, &lens), places[0].addr, null_mut());
            match (places.len(), iov.len()) {
                (1, 1) => table!(ep, rma.read(at.cast(), len, none, to, addr, KEY, context)),
                (1, count) => {
                    table!(ep, rma.readv(iov.as_ptr(), null_mut(), count, to, addr, KEY, context))
                }
                _ => {
                    let message = of_places(&iov, &places, to, context, 0);
                    table!(ep, rma.readmsg(&message, sys::FI_COMPLETION))
                }
            }
        });
    }

    /// Whether this is what a part of a read finds.
    pub(super) fn is_read(&self, read: &Read, bytes: &[u8]) -> bool {
        let (id, len) = self.slots[read.slot].written;
        bytes == &content(id, len)[read.begin..read.begin + read.len]
    }

    /// How many parts of a read have found what they should, before the first one that has not.
    pub(super) fn count_read(&self, reads: &[Read], pieces: &[usize], bytes: &[u8]) -> usize {
        let bytes = turned(bytes, pieces.iter().rev());
        let mut rest = &bytes[..];
        let is_read = |read: &&Read| {
            let (part, behind) = rest.split_at(read.len);
            rest = behind;
            self.is_read(read, part)
        };
        reads.iter().take_while(is_read).count()
    }

    /// An access of the kinds from `first` on has succeeded.
    pub(super) fn count_kinds(
        &mut self,
        first: usize,
        lens: impl ExactSizeIterator<Item = usize>,
        pieces: usize,
    ) {
        let (places, longest) = (lens.len(), lens.max());
        for (number, is_one) in [longest > Some(LONG), pieces > 1, places > 1].into_iter().enumerate() {
            self.kinds[first + number] += usize::from(is_one);
        }
    }

    /// Compares a word of the other side with its value, or with another one, and swaps it if it is equal.
    pub(super) fn swap(&mut self, random: &mut Random, word: usize, is_equal: bool) {
        let (now, busy) = self.words[word];
        if busy {
            return;
        }
        let compare = if is_equal { now } else { now ^ 1 << random.below(64) };
        let value = random.next();
        let (ep, to, addr) = (self.side.ep, self.other, word_at(word) as u64);
        let [operand, compared]: [*const c_void; 2] =
            [(&raw const value).cast(), (&raw const compare).cast()];
        self.post(Operation::Swap { word, compare, value }, vec![0; 8], |_, at, context| {
            let (result, none, kind, op) = (at.cast(), null_mut(), sys::FI_UINT64, sys::FI_CSWAP);
            table!(
                ep,
                atomic.compwrite(
                    operand, 1, none, compared, none, result, none, to, addr, KEY, kind, op, context
                )
            )
        });
    }

    /// Adds 1 to a counter of the other side.
    pub(super) fn count(&mut self, counter: usize, fetches: bool) {
        let (ep, to, addr) = (self.side.ep, self.other, counter_at(counter) as u64);
        let one = 1u64;
        let operand: *const c_void = (&raw const one).cast();
        self.post(Operation::Count { fetches, counter }, vec![0; 8], |_, at, context| match fetches {
            true => table!(
                ep,
                atomic.readwrite(
                    operand,
                    1,
                    null_mut(),
                    at.cast(),
                    null_mut(),
                    to,
                    addr,
                    KEY,
                    sys::FI_UINT64,
                    sys::FI_SUM,
                    context
                )
            ),
            false => {
                table!(
                    ep,
                    atomic.write(operand, 1, null_mut(), to, addr, KEY, sys::FI_UINT64, sys::FI_SUM, context)
                )
            }
        });
    }
}

/// Where a counter is in the memory of its side, and a word.
pub(super) fn counter_at(counter: usize) -> usize {
    SLOTS * SLOT + 8 * counter
}

pub(super) fn word_at(word: usize) -> usize {
    counter_at(COUNTERS + word)
}

/// The number of pieces or places of an access: as often one as several.
pub(super) fn several(random: &mut Random) -> usize {
    if random.below(2) == 0 { 1 } else { 2 + random.below(PIECES as u64 - 1) as usize }
}

/// Cuts so many bytes into `count` parts of at least 8, or into fewer if they are too few for that.
pub(super) fn cut(random: &mut Random, len: usize, count: usize) -> Vec<usize> {
    let count = count.min(len / 8).max(1);
    let most = len / count;
    let mut lens: Vec<usize> = (1..count).map(|_| 8 + random.below(most as u64 - 7) as usize).collect();
    lens.push(len - lens.iter().sum::<usize>());
    lens
}

/// Memory in pieces of these lengths, of which each lies before the one before it.
pub(super) fn in_pieces(at: *mut u8, lens: &[usize]) -> Vec<sys::iovec> {
    let mut begin: usize = lens.iter().sum();
    let piece = |len: &usize| {
        begin -= len;
        sys::iovec { iov_base: at.wrapping_add(begin).cast(), iov_len: *len }
    };
    lens.iter().map(piece).collect()
}

/// Bytes that are in pieces of these lengths, with the pieces in the opposite order.
pub(super) fn turned<'a>(bytes: &[u8], lens: impl Iterator<Item = &'a usize>) -> Vec<u8> {
    let (mut pieces, mut rest) = (Vec::new(), bytes);
    for len in lens {
        let (piece, behind) = rest.split_at(*len);
        pieces.push(piece);
        rest = behind;
    }
    pieces.reverse();
    pieces.concat()
}

/// An access of several places, with `data` if its flags say so.
pub(super) fn of_places(
    iov: &[sys::iovec],
    places: &[sys::fi_rma_iov],
    addr: u64,
    context: *mut c_void,
    data: u64,
) -> sys::fi_msg_rma {
    sys::fi_msg_rma {
        msg_iov: iov.as_ptr(),
        desc: null_mut(),
        iov_count: iov.len(),
        addr,
        rma_iov: places.as_ptr(),
        rma_iov_count: places.len(),
        context,
        data,
    }
}

/// Whether these bytes are in the slot.
pub(super) fn is_there(memory: &[u8], slot: usize, (id, len): Written) -> bool {
    peek(memory, slot * SLOT, len) == content(id, len)
}

/// Reads a number that others may write meanwhile.
pub(super) fn number_at(memory: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(peek(memory, at, 8).try_into().unwrap())
}

/// Memory in two adjacent pieces.
pub(super) fn halves(at: *mut u8, len: usize) -> [sys::iovec; 2] {
    let piece = |begin: usize, end: usize| sys::iovec {
        iov_base: at.wrapping_add(begin).cast(),
        iov_len: end - begin,
    };
    [piece(0, len / 2), piece(len / 2, len)]
}

/// Reads bytes that others may write meanwhile.
pub(super) fn peek(memory: &[u8], begin: usize, len: usize) -> Vec<u8> {
    // SAFETY: the bytes are there.
    (begin..begin + len).map(|at| unsafe { memory.as_ptr().add(at).read_volatile() }).collect()
}
