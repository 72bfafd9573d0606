//! An endpoint of any provider of libfabric: tagged messages for the flows, and short ones without tags for words between
//! ranks.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use weft_fi::sys;

use crate::Failure;

/// The version of libfabric's interface that this is written for: 1.17.
const VERSION: u32 = 1 << 16 | 17;
/// Receives for words. Providers keep those that come meanwhile.
const WORD_RECEIVES: usize = 64;
const WORD_LEN: usize = 8;
const LONGEST_NAME: usize = 256;
/// The most entries of a completion queue that are asked for.
const MOST_ENTRIES: usize = 1 << 16;

/// Calls a function of an object's table.
macro_rules! call {
    ($object:expr, $table:ident . $function:ident ( $($argument:expr),* )) => {{
        let object = $object;
        // SAFETY: the object is open, libfabric fills all its tables, and the arguments are those that it asks for.
        unsafe { (*(*object).$table).$function.map(|function| function(object, $($argument),*)) }
    }};
}

/// A word from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// This rank sends flows to the other one, and asks whether it is there.
    Hello(u32),
    /// This rank is there.
    Here(u32),
    /// This flow has arrived.
    Arrived(u32),
}

impl Word {
    fn bytes(self) -> [u8; WORD_LEN] {
        let (kind, number) = match self {
            Word::Hello(rank) => (0u32, rank),
            Word::Here(rank) => (1, rank),
            Word::Arrived(flow) => (2, flow),
        };
        (u64::from(kind) << 32 | u64::from(number)).to_be_bytes()
    }

    fn parse(bytes: [u8; WORD_LEN]) -> Option<Word> {
        let both = u64::from_be_bytes(bytes);
        match (both >> 32, both as u32) {
            (0, rank) => Some(Word::Hello(rank)),
            (1, rank) => Some(Word::Here(rank)),
            (2, flow) => Some(Word::Arrived(flow)),
            _ => None,
        }
    }
}

/// What has happened at the endpoint.
pub(crate) enum Event {
    Word(Word),
    /// The message of this receive has arrived: its tag, and its bytes.
    Received(u64, Vec<u8>),
    /// A message to this rank, or a receive, has failed.
    Failed(Option<u32>, String),
}

/// What waits until the provider takes it.
enum Waiting {
    Message { slot: usize, to: u32, tag: u64 },
    Word { to: u32, word: Word },
}

/// The memory that libfabric may use for an operation, whose address is its context.
type Context = UnsafeCell<[*mut c_void; 8]>;

/// What is sent or received under a context.
enum Operation {
    Free,
    Word([u8; WORD_LEN]),
    Receive { room: Vec<u8>, tag: u64 },
    Send { bytes: Arc<Vec<u8>>, to: u32 },
}

/// An endpoint, and what it needs.
pub(crate) struct Fabric {
    info: *mut sys::fi_info,
    fabric: *mut sys::fid_fabric,
    domain: *mut sys::fid_domain,
    av: *mut sys::fid_av,
    cq: *mut sys::fid_cq,
    ep: *mut sys::fid_ep,
    peers: Vec<sys::fi_addr_t>,
    contexts: Box<[Context]>,
    operations: Vec<Operation>,
    free: Vec<usize>,
    waiting: VecDeque<Waiting>,
}

impl Fabric {
    /// An endpoint of `provider` for so many receives and sends at the same time, of messages of up to `longest` bytes.
    pub(crate) fn open(
        provider: &str,
        receives: usize,
        sends: usize,
        longest: u64,
    ) -> Result<Fabric, Failure> {
        let info = choose(provider, receives + WORD_RECEIVES, longest)?;
        let slots = WORD_RECEIVES + receives + sends;
        let mut fabric = Fabric {
            info,
            fabric: null_mut(),
            domain: null_mut(),
            av: null_mut(),
            cq: null_mut(),
            ep: null_mut(),
            peers: Vec::new(),
            contexts: (0..slots).map(|_| Context::new([null_mut(); 8])).collect(),
            operations: (0..slots).map(|_| Operation::Free).collect(),
            free: (0..slots).rev().collect(),
            waiting: VecDeque::new(),
        };
        fabric.build(slots)?;
        for _ in 0..WORD_RECEIVES {
            fabric.listen()?;
        }
        Ok(fabric)
    }

    fn build(&mut self, slots: usize) -> Result<(), Failure> {
        // SAFETY: the info is one that libfabric has returned, and there is a place for the fabric.
        let answer = unsafe { sys::fi_fabric((*self.info).fabric_attr, &mut self.fabric, null_mut()) };
        checked("fi_fabric", Some(answer))?;
        checked("fi_domain", call!(self.fabric, ops.domain(self.info, &mut self.domain, null_mut())))?;
        let mut attr = sys::fi_av_attr::default();
        checked("fi_av_open", call!(self.domain, ops.av_open(&mut attr, &mut self.av, null_mut())))?;
        let (format, wait_obj) = (sys::FI_CQ_FORMAT_TAGGED, sys::FI_WAIT_NONE);
        let size = (2 * slots).min(MOST_ENTRIES);
        let mut attr = sys::fi_cq_attr { format, wait_obj, size, ..sys::fi_cq_attr::default() };
        checked("fi_cq_open", call!(self.domain, ops.cq_open(&mut attr, &mut self.cq, null_mut())))?;
        checked("fi_endpoint", call!(self.domain, ops.endpoint(self.info, &mut self.ep, null_mut())))?;
        // SAFETY: the endpoint and what is bound to it are open.
        unsafe {
            let ops = &*(*self.ep).fid.ops;
            let bind = |fid, flags| ops.bind.map(|bind| bind(self.ep.cast(), fid, flags));
            checked("fi_ep_bind", bind(self.av.cast(), 0))?;
            checked("fi_ep_bind", bind(self.cq.cast(), sys::FI_TRANSMIT | sys::FI_RECV))?;
            let enable =
                ops.control.map(|control| control(self.ep.cast(), sys::FI_ENABLE as c_int, null_mut()));
            checked("fi_enable", enable)
        }
    }

    /// The provider, as libfabric names it.
    pub(crate) fn provider(&self) -> String {
        // SAFETY: the info is one that libfabric has returned, with the provider's name.
        unsafe { CStr::from_ptr((*(*self.info).fabric_attr).prov_name) }.to_string_lossy().into_owned()
    }

    /// The endpoint's name.
    pub(crate) fn name(&self) -> Result<Vec<u8>, Failure> {
        let (mut name, mut len) = (vec![0u8; LONGEST_NAME], LONGEST_NAME);
        // SAFETY: the endpoint is open, and there are so many bytes.
        let answer = unsafe {
            let getname = (*(*self.ep).cm).getname;
            getname.map(|getname| getname(self.ep.cast(), name.as_mut_ptr().cast(), &mut len))
        };
        checked("fi_getname", answer)?;
        name.truncate(len);
        Ok(name)
    }

    /// Gets to know all ranks.
    pub(crate) fn know(&mut self, names: &[Vec<u8>]) -> Result<(), Failure> {
        for (rank, name) in names.iter().enumerate() {
            let mut number = sys::FI_ADDR_NOTAVAIL;
            let done = call!(self.av, ops.insert(name.as_ptr().cast(), 1, &mut number, 0, null_mut()));
            if done != Some(1) {
                return Err(Failure::Run(format!("fi_av_insert: rank {rank}'s address is refused")));
            }
            self.peers.push(number);
        }
        Ok(())
    }

    /// Takes a context for an operation.
    fn take(&mut self, operation: Operation) -> Result<usize, Failure> {
        let slot = self.free.pop().ok_or_else(|| Failure::Run("more operations than flows".to_owned()))?;
        self.operations[slot] = operation;
        Ok(slot)
    }

    fn context(&self, slot: usize) -> *mut c_void {
        self.contexts[slot].get().cast()
    }

    /// The place of a context.
    fn slot_of(&self, context: *mut c_void) -> Option<usize> {
        let begin = self.contexts.as_ptr().addr();
        let slot = context.addr().checked_sub(begin)? / size_of::<Context>();
        Some(slot).filter(|slot| *slot < self.contexts.len())
    }

    fn listen(&mut self) -> Result<(), Failure> {
        let slot = self.take(Operation::Word([0; WORD_LEN]))?;
        let context = self.context(slot);
        let Operation::Word(bytes) = &mut self.operations[slot] else {
            unreachable!("it has just been put there")
        };
        let at = bytes.as_mut_ptr().cast();
        let any = sys::FI_ADDR_UNSPEC;
        checked_size("fi_recv", call!(self.ep, msg.recv(at, WORD_LEN, null_mut(), any, context)))
    }

    /// Posts a receive for the message with this tag.
    pub(crate) fn receive(&mut self, len: usize, tag: u64) -> Result<(), Failure> {
        // Pages of zeros, which take memory when they are written to.
        let slot = self.take(Operation::Receive { room: vec![0u8; len], tag })?;
        let context = self.context(slot);
        let Operation::Receive { room, .. } = &mut self.operations[slot] else {
            unreachable!("as in listen")
        };
        let (at, any) = (room.as_mut_ptr().cast(), sys::FI_ADDR_UNSPEC);
        let posted = call!(self.ep, tagged.recv(at, len, null_mut(), any, tag, 0, context));
        checked_size("fi_trecv", posted)
    }

    /// Sends a message with this tag, as soon as the provider takes it.
    pub(crate) fn send(&mut self, to: u32, bytes: Arc<Vec<u8>>, tag: u64) -> Result<(), Failure> {
        let slot = self.take(Operation::Send { bytes, to })?;
        self.waiting.push_back(Waiting::Message { slot, to, tag });
        self.push().map_err(|(to, what)| Failure::Run(format!("a message to rank {to}: {what}")))
    }

    /// Sends a word, as soon as the provider takes it.
    pub(crate) fn say(&mut self, to: u32, word: Word) -> Result<(), Failure> {
        // Words say who has sent them.
        if to as usize >= self.peers.len() {
            let ranks = self.peers.len();
            return Err(Failure::Run(format!(
                "a word of rank {to} has arrived, but there are {ranks} ranks"
            )));
        }
        self.waiting.push_back(Waiting::Word { to, word });
        self.push().map_err(|(to, what)| Failure::Run(format!("a word to rank {to}: {what}")))
    }

    /// Hands over what waits, as much of it as the provider takes.
    fn push(&mut self) -> Result<(), (u32, String)> {
        while let Some(first) = self.waiting.front() {
            let (to, answer) = match *first {
                Waiting::Word { to, word } => {
                    let bytes = word.bytes();
                    let at = bytes.as_ptr().cast();
                    (to, call!(self.ep, msg.inject(at, WORD_LEN, self.peers[to as usize])))
                }
                Waiting::Message { slot, to, tag } => {
                    let Operation::Send { bytes, .. } = &self.operations[slot] else {
                        unreachable!("it is kept")
                    };
                    let (at, len, context) = (bytes.as_ptr().cast(), bytes.len(), self.context(slot));
                    let peer = self.peers[to as usize];
                    (to, call!(self.ep, tagged.send(at, len, null_mut(), peer, tag, context)))
                }
            };
            match answer {
                Some(0) => drop(self.waiting.pop_front()),
                Some(again) if again == -(sys::FI_EAGAIN as isize) => break,
                Some(error) => return Err((to, strerror(-error as c_int))),
                None => return Err((to, "the provider cannot send".to_owned())),
            }
        }
        Ok(())
    }

    /// The next event, if there is one.
    pub(crate) fn poll(&mut self) -> Result<Option<Event>, Failure> {
        if let Err((to, what)) = self.push() {
            return Ok(Some(Event::Failed(Some(to), what)));
        }
        loop {
            let mut entry = sys::fi_cq_tagged_entry::default();
            let count =
                call!(self.cq, ops.read((&raw mut entry).cast(), 1)).unwrap_or(-(sys::FI_ENOSYS as isize));
            match count {
                1 => {
                    if let Some(event) = self.ended(&entry)? {
                        return Ok(Some(event));
                    }
                }
                0 => return Ok(None),
                again if again == -(sys::FI_EAGAIN as isize) => return Ok(None),
                error if error == -(sys::FI_EAVAIL as isize) => return self.failed().map(Some),
                error => return Err(Failure::Run(format!("fi_cq_read: {}", strerror(-error as c_int)))),
            }
        }
    }

    /// An operation has ended well. Sends tell nothing: the receiver says when a message has arrived.
    fn ended(&mut self, entry: &sys::fi_cq_tagged_entry) -> Result<Option<Event>, Failure> {
        let slot = self
            .slot_of(entry.op_context)
            .ok_or_else(|| Failure::Run("fi_cq_read: an entry of no operation".to_owned()))?;
        let operation = std::mem::replace(&mut self.operations[slot], Operation::Free);
        self.free.push(slot);
        match operation {
            Operation::Word(bytes) => {
                self.listen()?;
                let word = Word::parse(bytes).filter(|_| entry.len == WORD_LEN);
                let unknown = || Failure::Run("a message of another program has arrived".to_owned());
                word.map(|word| Some(Event::Word(word))).ok_or_else(unknown)
            }
            Operation::Receive { mut room, tag } => {
                room.truncate(entry.len);
                Ok(Some(Event::Received(tag, room)))
            }
            Operation::Send { .. } | Operation::Free => Ok(None),
        }
    }

    fn failed(&mut self) -> Result<Event, Failure> {
        let mut entry = sys::fi_cq_err_entry::default();
        let count = call!(self.cq, ops.readerr(&mut entry, 0));
        if count != Some(1) {
            return Err(Failure::Run("fi_cq_readerr: no entry, though fi_cq_read says so".to_owned()));
        }
        // The operation stays, as the run is over: nobody may use its memory.
        let operation = self.slot_of(entry.op_context).map(|slot| &self.operations[slot]);
        let to = match operation {
            Some(Operation::Send { to, .. }) => Some(*to),
            _ => None,
        };
        Ok(Event::Failed(to, strerror(entry.err)))
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        for fid in [
            self.ep.cast::<sys::fid>(),
            self.cq.cast(),
            self.av.cast(),
            self.domain.cast(),
            self.fabric.cast(),
        ] {
            if !fid.is_null() {
                // SAFETY: it is open, and nobody uses it any more. What cannot be closed ends with the process.
                unsafe { (*(*fid).ops).close.map(|close| close(fid)) };
            }
        }
        // SAFETY: it is one that libfabric has returned.
        unsafe { sys::fi_freeinfo(self.info) };
    }
}

/// The first endpoint that the provider offers.
fn choose(provider: &str, receives: usize, longest: u64) -> Result<*mut sys::fi_info, Failure> {
    let name =
        CString::new(provider).map_err(|_| Failure::Usage("--provider: a zero in a name".to_owned()))?;
    let ask = |size: usize| {
        let mut info = null_mut();
        // SAFETY: the hints are new ones with all their parts; there is a place for the answer.
        let answer = unsafe {
            let hints = sys::fi_dupinfo(null());
            (*hints).caps = sys::FI_MSG | sys::FI_TAGGED;
            (*hints).mode = sys::FI_CONTEXT | sys::FI_CONTEXT2;
            (*(*hints).ep_attr).type_ = sys::FI_EP_RDM;
            (*(*hints).domain_attr).threading = sys::FI_THREAD_DOMAIN;
            (*(*hints).rx_attr).size = size;
            (*(*hints).fabric_attr).prov_name = libc::strdup(name.as_ptr());
            let answer = sys::fi_getinfo(VERSION, null(), null(), 0, hints, &mut info);
            sys::fi_freeinfo(hints);
            answer
        };
        if answer == 0 { Ok(info) } else { Err(strerror(-answer)) }
    };
    let info = ask(0).map_err(|what| {
        Failure::Run(format!(
            "{provider} offers no endpoint for tagged messages (fi_info -p {provider} -t FI_EP_RDM): {what}"
        ))
    })?;
    // SAFETY: libfabric has returned it, with all its parts.
    let (offered, most) = unsafe { ((*(*info).rx_attr).size, (*(*info).ep_attr).max_msg_size as u64) };
    if longest > most {
        // SAFETY: nobody else has it.
        unsafe { sys::fi_freeinfo(info) };
        return Err(Failure::Run(format!(
            "a flow has {longest} bytes; expected at most {most} with {provider}"
        )));
    }
    if receives <= offered {
        return Ok(info);
    }
    // SAFETY: nobody else has it.
    unsafe { sys::fi_freeinfo(info) };
    ask(receives).map_err(|_| {
        let most = offered.saturating_sub(WORD_RECEIVES);
        let needed = receives - WORD_RECEIVES;
        Failure::Run(format!("{needed} flows arrive at this rank; expected at most {most} with {provider}"))
    })
}

fn strerror(error: c_int) -> String {
    // SAFETY: it takes any number, and returns a text that stays.
    unsafe { CStr::from_ptr(sys::fi_strerror(error)) }.to_string_lossy().into_owned()
}

fn checked(function: &str, answer: Option<c_int>) -> Result<(), Failure> {
    match answer {
        Some(0) => Ok(()),
        Some(error) => Err(Failure::Run(format!("{function}: {}", strerror(error.abs())))),
        None => Err(Failure::Run(format!("{function}: the provider has no such function"))),
    }
}

fn checked_size(function: &str, answer: Option<isize>) -> Result<(), Failure> {
    checked(function, answer.map(|answer| answer as c_int))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_were_written() {
        for word in [Word::Hello(0), Word::Here(3), Word::Arrived(u32::MAX)] {
            assert_eq!(Word::parse(word.bytes()), Some(word));
        }
        assert_eq!(Word::parse([9; WORD_LEN]), None);
    }
}
