//! Requests that access the memory of a process: reads, writes and atomic operations.
//!
//! None of them meets a receive. Each takes a place in the order of the messages of its PDC when its first packet arrives,
//! so that those behind it need not wait. A request that is refused for its key, its rights or its range changes nothing.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;

use super::access::{Accessed, Written};
use super::api::Completion;
use super::config::Limits;
use super::core::Core;
use super::memory;
use super::peer_usage::{PeerUsage, leaves_as_much};
use super::process::Processes;
use super::target::{error_or_busy, may_store, pass_over};
use super::target_pdc::TargetPdc;
use crate::buffer::Buffer;
use crate::packet::{Addr, Payload};
use crate::pdc::Answer;
use crate::ses::{Arrived, FEW_INCOMPLETE, MessageName, Part, Refusal, Source, apply, respond};
use crate::table::Key;
use crate::wire::pds::{NackCode, PdcId, Psn};
use crate::wire::ses::{
    AtomicExtension, AtomicOp, AtomicType, Extension, Opcode, Placement, RequestFlags, ReturnCode,
    StandardRequest,
};

/// Results that wait for the application beyond which no further write is announced.
const ANNOUNCEMENTS: usize = 1 << 16;

/// Writes of which a part has arrived.
#[derive(Debug, Default)]
pub(super) struct Writes {
    /// By PDC and message.
    under_way: BTreeMap<(u16, u16), UnderWay>,
    /// How many each PDC has.
    pdcs: BTreeMap<u16, u32>,
    /// How many count for each peer, and for all together.
    peers: BTreeMap<Addr, u32>,
    all: u64,
    /// Processes that are closed, and have writes here: those up to this one have been looked at.
    closing: BTreeMap<u16, Option<(u16, u16)>>,
}

/// The memory that looking at a write touches, bytes, and ending it: it is taken out of trees, and its rest is refused.
const LOOK: i64 = 64;
const END: i64 = 1 << 10;

#[derive(Debug)]
struct UnderWay {
    peer: Addr,
    process: u16,
    total: u32,
    arrived: Arrived,
    /// The value to announce, if there is one and it has arrived.
    data: Option<u64>,
    /// Whether it counts for its peer. The few do not that each PDC may have.
    counts: bool,
}

impl Writes {
    /// Whether a write that begins now with packet `psn` of `pdc` and is not complete counts for its peer. `None` if there may be
    /// none.
    fn place_for(&self, limits: &Limits, pdc: &TargetPdc, psn: Psn) -> Option<bool> {
        let of_pdc = self.of(pdc.rx.id);
        // As with stored responses the first packet that is missing is admitted whatever others take: what has begun behind it
        // may not end before. Only few, though, as all that a peer sends may come in order.
        if psn == pdc.rx.expected() && of_pdc < FEW_INCOMPLETE.into() {
            return Some(false);
        }
        let wanted = self.peers.get(&pdc.rx.peer).copied().unwrap_or(0) + 1;
        let may = of_pdc < pdc.order.most_incomplete().into()
            && wanted <= limits.unexpected_messages_per_peer
            && leaves_as_much(limits.unexpected_messages as u64, self.all, 1, wanted.into());
        may.then_some(true)
    }

    /// How many a PDC has.
    pub(super) fn of(&self, pdc: PdcId) -> u32 {
        self.pdcs.get(&pdc.0).copied().unwrap_or(0)
    }

    fn begin(&mut self, name: (u16, u16), write: UnderWay) {
        *self.pdcs.entry(name.0).or_default() += 1;
        if write.counts {
            *self.peers.entry(write.peer).or_default() += 1;
            self.all += 1;
        }
        self.under_way.insert(name, write);
    }

    fn end(&mut self, name: (u16, u16)) -> Option<UnderWay> {
        let write = self.under_way.remove(&name)?;
        decrement(&mut self.pdcs, name.0);
        if write.counts {
            decrement(&mut self.peers, write.peer);
            self.all -= 1;
        }
        Some(write)
    }

    /// Forgets those of `pdc`, which is closed.
    pub(super) fn forget(&mut self, pdc: PdcId) {
        while let Some((&name, _)) = self.under_way.range((pdc.0, 0)..=(pdc.0, u16::MAX)).next() {
            self.end(name);
        }
    }

    /// Those to `process`, which is closed, are to end by [`Writes::clear_away`]. No further ones begin.
    pub(super) fn close(&mut self, process: u16) {
        if !self.under_way.is_empty() {
            self.closing.insert(process, None);
        }
    }

    /// Ends those to `process`, which is closed, until that has touched `budget` bytes of memory, which are taken from it. Hands their
    /// names to `refuse`. Returns whether none is left.
    pub(super) fn clear_away(
        &mut self,
        process: u16,
        budget: &mut i64,
        mut refuse: impl FnMut(MessageName),
    ) -> bool {
        let Some(&(mut last)) = self.closing.get(&process) else { return true };
        loop {
            let from = last.map_or(Bound::Unbounded, Bound::Excluded);
            let Some((&name, write)) = self.under_way.range((from, Bound::Unbounded)).next() else { break };
            if *budget <= 0 {
                self.closing.insert(process, last);
                return false;
            }
            *budget -= LOOK;
            if write.process == process {
                self.end(name);
                refuse((PdcId(name.0), name.1));
                *budget -= END;
            }
            last = Some(name);
        }
        self.closing.remove(&process);
        true
    }

    /// Bytes of heap held, about: nodes of trees are not full.
    pub(super) fn heap_bytes(&self) -> u64 {
        let each = size_of::<((u16, u16), UnderWay)>() + size_of::<(Addr, u32)>() + size_of::<(u16, u32)>();
        let arrived = self.under_way.values().map(|write| write.arrived.heap_bytes());
        (self.under_way.len() * each) as u64 + arrived.sum::<u64>()
    }
}

/// There is one less of those that `of` counts.
fn decrement<K: Ord>(counts: &mut BTreeMap<K, u32>, of: K) {
    if let Entry::Occupied(mut count) = counts.entry(of) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

/// Takes in packet `psn` of `pdc`, which accesses the memory of a process.
///
/// # Errors
/// It is refused, with an error or until there is room.
#[inline(never)]
pub(super) fn admit_access(
    core: &mut Core,
    processes: &mut Processes,
    usage: &mut PeerUsage,
    pdc: &mut TargetPdc,
    psn: Psn,
    header: &StandardRequest,
    payload: Payload<'_>,
) -> Result<(), Refusal> {
    match header.opcode {
        Opcode::READ => admit_read(core, processes, usage, pdc, psn, header, payload),
        Opcode::WRITE => admit_write(core, processes, usage, pdc, psn, header, payload),
        _ => admit_atomic(core, processes, usage, pdc, psn, header, payload),
    }
}

/// Where the memory is that a request of `pdc` accesses.
///
/// # Errors
/// The return code to answer with.
fn find(processes: &Processes, pdc: &TargetPdc, header: &StandardRequest) -> Result<(Key, u32), ReturnCode> {
    if !processes.is_open(header.pid_on_fep) {
        return Err(ReturnCode::BAD_PID);
    }
    if !processes.is_of_job(header) {
        return Err(ReturnCode::BAD_JOB_ID);
    }
    processes.memory.as_deref().ok_or(ReturnCode::BAD_MKEY)?.find(pdc.rx.peer, header)
}

/// Stores the answer to packet `psn`, which reads the memory of a process: its bytes, or an error.
fn admit_read(
    core: &Core,
    processes: &mut Processes,
    usage: &mut PeerUsage,
    pdc: &mut TargetPdc,
    psn: Psn,
    header: &StandardRequest,
    payload: Payload<'_>,
) -> Result<(), Refusal> {
    let found = memory::check(header, payload, core.config.mtu).and_then(|()| find(processes, pdc, header));
    let (answer, read) = match found {
        Ok((memory, offset)) => {
            (Answer::Memory { header: memory::header(header), memory, offset }, Some(memory))
        }
        Err(code) => (Answer::Plain(respond(header, code, 0)), None),
    };
    if !may_store(core, usage, pdc, psn, answer.cost()) {
        return Err(Refusal::Busy(NackCode::NO_GTD_DEL_AVAIL));
    }
    // It meets no receive: messages behind it wait only until it is admitted. One that is refused here comes again, and
    // takes its place in the order then.
    pass_over(&mut processes.room, pdc, psn, header);
    usage.store(pdc, psn, answer);
    if let (Some(place), Some(memory), true) =
        (read, processes.memory.as_deref_mut(), memory::is_last(header))
    {
        memory.count(place, |accessed| accessed.reads += 1);
    }
    Ok(())
}

/// Puts the payload of packet `psn`, a part of a write, where it belongs.
fn admit_write(
    core: &mut Core,
    processes: &mut Processes,
    usage: &mut PeerUsage,
    pdc: &mut TargetPdc,
    psn: Psn,
    header: &StandardRequest,
    payload: Payload<'_>,
) -> Result<(), Refusal> {
    let part = Part::of_write(header, payload)?;
    let (peer, name) = (pdc.rx.peer, (pdc.rx.id.0, header.msg_id));
    let found = match find(processes, pdc, header) {
        // The memory was not there for an earlier packet of it.
        Ok(_) if pdc.has_refused(header.msg_id, psn) => Err(ReturnCode::BAD_MKEY),
        found => found,
    };
    let begun = processes.memory.as_deref().and_then(|memory| memory.writes.under_way.get(&name));
    let (place, at) = match found {
        Ok(place) => place,
        Err(code) => {
            let is_new = begun.is_none() && !pdc.has_refused(header.msg_id, psn);
            let refusal = error_or_busy(core, usage, pdc, (psn, payload.len()), header, code);
            if matches!(refusal, Refusal::Unsupported(_)) {
                if is_new {
                    pass_over(&mut processes.room, pdc, psn, header);
                }
                processes.memory.as_deref_mut().and_then(|memory| memory.writes.end(name));
            }
            return Err(refusal);
        }
    };
    let announced = match header.placement {
        Placement::Start { header_data } if header.flags.has(RequestFlags::HEADER_DATA) => Some(header_data),
        _ => None,
    };
    if announced.or(begun.and_then(|write| write.data)).is_some() {
        let is_welcome = processes.memory.as_deref().is_none_or(|memory| memory.may_announce(place));
        if !is_welcome || core.completions.len() >= ANNOUNCEMENTS {
            return Err(Refusal::Busy(NackCode::NO_SES_MSG_AVAIL));
        }
    }
    let is_new = begun.is_none();
    let Some(memory) = processes.memory.as_deref_mut() else {
        return Err(Refusal::Unsupported(ReturnCode::BAD_MKEY));
    };
    let (offset, end, total) = part.extent();
    let (done, data) = if part.is_whole() && is_new {
        (true, announced)
    } else {
        if is_new {
            let Some(counts) = memory.writes.place_for(&core.config.limits, pdc, psn) else {
                return Err(Refusal::Busy(NackCode::NO_SES_MSG_AVAIL));
            };
            let (process, arrived) = (header.pid_on_fep, Arrived::default());
            memory.writes.begin(name, UnderWay { peer, process, total, arrived, data: None, counts });
            pass_over(&mut processes.room, pdc, psn, header);
        }
        let Some(write) = memory.writes.under_way.get_mut(&name) else { return Ok(()) };
        if write.total != total || !write.arrived.add(total, offset, end, &pdc.order) {
            return Err(Refusal::Malformed(
                "a part of a write that does not fit the others, or is too far ahead",
            ));
        }
        write.data = write.data.or(announced);
        (write.arrived.is_all(total), write.data)
    };
    if let Some(buffer) = memory.get_mut(place) {
        // The whole write lies in the memory, which has less than 4 GiB.
        buffer.place(at + offset, payload);
    }
    if !done {
        return Ok(());
    }
    memory.count(place, |accessed| accessed.writes += 1);
    match is_new && part.is_whole() {
        true => pass_over(&mut processes.room, pdc, psn, header),
        false => drop(memory.writes.end(name)),
    }
    if let Some(data) = data {
        memory.announce(place);
        core.completions.push_back(Completion::Written(Written {
            process: header.pid_on_fep,
            source: Source::of_message(peer, header.initiator),
            key: header.match_bits,
            offset: header.buffer_offset,
            len: total,
            data,
        }));
    }
    Ok(())
}

/// An atomic operation that can be done.
struct Plan {
    memory: Key,
    at: u32,
    op: AtomicOp,
    datatype: AtomicType,
    swap: Option<(u128, u128)>,
    operands: Vec<u8>,
}

/// Performs the atomic operation of packet `psn`, and stores what it fetches, or the error.
fn admit_atomic(
    core: &mut Core,
    processes: &mut Processes,
    usage: &mut PeerUsage,
    pdc: &mut TargetPdc,
    psn: Psn,
    header: &StandardRequest,
    payload: Payload<'_>,
) -> Result<(), Refusal> {
    let fetches = header.opcode == Opcode::FETCHING_ATOMIC;
    let plan = plan(core.config.mtu, processes, pdc, header, payload);
    let error = Answer::PLAIN_COST;
    // Before anything is done: what is refused comes again, and must not be done twice.
    if fetches {
        let data = u64::from(header.request_length.min(core.config.mtu));
        if !may_store(core, usage, pdc, psn, error + data) {
            return Err(Refusal::Busy(NackCode::NO_GTD_DEL_AVAIL));
        }
    }
    let done = plan.and_then(|plan| perform(processes, header, &plan));
    // One that fails has changed nothing, and may come again.
    if done.is_err() && !may_store(core, usage, pdc, psn, error) {
        return Err(Refusal::Busy(NackCode::NO_GTD_DEL_AVAIL));
    }
    pass_over(&mut processes.room, pdc, psn, header);
    match done {
        Ok(data) if fetches => {
            let (header, data) = (memory::header(header), Box::new(data));
            usage.store(pdc, psn, Answer::Fetched { header, data });
        }
        Ok(_) => {}
        Err(code) => usage.store(pdc, psn, Answer::Plain(respond(header, code, 0))),
    }
    Ok(())
}

/// # Errors
/// The return code to answer with.
fn plan(
    mtu: u32,
    processes: &Processes,
    pdc: &TargetPdc,
    header: &StandardRequest,
    payload: Payload<'_>,
) -> Result<Plan, ReturnCode> {
    if !header.flags.has(RequestFlags::WHOLE_MESSAGE) {
        return Err(ReturnCode::OP_VIOLATION);
    }
    if header.request_length > mtu {
        return Err(ReturnCode::AMO_UNSUPPORTED_SIZE);
    }
    let (memory, at) = find(processes, pdc, header)?;
    let mut bytes = vec![0; payload.len() as usize];
    match payload {
        Payload::Bytes(payload) => bytes.copy_from_slice(payload),
        Payload::Region(payload) => payload.copy_to(&mut bytes),
        // A packet of a simulation without payloads.
        Payload::Virtual(_) => return Err(ReturnCode::UNSUPPORTED_OP),
    }
    let Ok((Some(extension), operands)) = Extension::decode(header.opcode, &bytes) else {
        return Err(ReturnCode::OP_VIOLATION);
    };
    let (AtomicExtension { op, datatype, .. }, swap) = match extension {
        Extension::Atomic(atomic) => (atomic, None),
        Extension::CompareSwap(swap) => (swap.atomic, Some((swap.compare, swap.swap))),
        Extension::Rendezvous(_) => return Err(ReturnCode::OP_VIOLATION),
    };
    // One that only fetches is a read.
    let only_fetches = header.opcode == Opcode::FETCHING_ATOMIC && op == AtomicOp::READ;
    if !only_fetches && !processes.memory.as_deref().is_some_and(|exposed| exposed.may_change(memory)) {
        return Err(ReturnCode::PERM_VIOLATION);
    }
    let operands = operands.to_vec();
    Ok(Plan { memory, at, op, datatype: AtomicType(datatype), swap, operands })
}

/// Performs an operation. Returns what the memory held before.
///
/// # Errors
/// The return code to answer with; nothing has changed then.
fn perform(processes: &mut Processes, header: &StandardRequest, plan: &Plan) -> Result<Buffer, ReturnCode> {
    let memory = processes.memory.as_deref_mut().and_then(|memory| memory.get_for_atomics(plan.memory));
    let (buffer, lock) = memory.ok_or(ReturnCode::BAD_MKEY)?;
    let mut before = vec![0; header.request_length as usize];
    match buffer.payload(plan.at, header.request_length) {
        Payload::Bytes(bytes) => before.copy_from_slice(bytes),
        Payload::Region(bytes) => bytes.copy_to(&mut before),
        Payload::Virtual(_) => {}
    }
    let mut after = before.clone();
    apply(plan.op, plan.datatype, &mut after, &plan.operands, plan.swap)?;
    if after != before {
        buffer.place(plan.at, Payload::Bytes(&after));
    }
    drop(lock);
    let count = |accessed: &mut Accessed| match header.opcode {
        _ if plan.op == AtomicOp::READ => accessed.reads += 1,
        Opcode::FETCHING_ATOMIC => accessed.fetches += 1,
        _ => accessed.writes += 1,
    };
    if let Some(memory) = processes.memory.as_deref_mut() {
        memory.count(plan.memory, count);
    }
    Ok(Buffer::Heap(before))
}
