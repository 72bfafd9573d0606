//! libfabric's calls as a program makes them, through the tables, safe for tests: buffers live as long as the test.

#![allow(dead_code, reason = "not every test file uses all of it")]

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use weft_fi::sys;

/// The longest wait of a test, on a machine that is busy with others.
pub(crate) const BOUND: Duration = Duration::from_secs(60);
/// What tests count while they wait for something that is documented to come within a bound.
const TICK: Duration = Duration::from_millis(10);
/// How many times that bound they wait.
const MARGIN: u32 = 3;
/// A silent peer is missed so long after its last answer, or the first packet to it (docs/libfabric.md).
pub(crate) const SILENCE: Duration = Duration::from_millis(6_300);
/// How often an endpoint asks whether peers are there, and the owner of memory whether it has a request.
pub(crate) const QUESTIONS: Duration = Duration::from_secs(2);
/// The version of libfabric's interface that the tests are written for: 1.17.
const VERSION: u32 = 1 << 16 | 17;

/// What a test asks `fi_getinfo` for.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) caps: u64,
    pub(crate) service: Option<u16>,
    /// The name of the domain, such as that of a server, which then has the address.
    pub(crate) domain: Option<String>,
    /// The type of the endpoint, if it matters.
    pub(crate) kind: sys::fi_ep_type,
    pub(crate) change: fn(&mut sys::fi_info),
}

impl Default for Wish {
    fn default() -> Wish {
        Wish { caps: 0, service: None, domain: None, kind: sys::FI_EP_UNSPEC, change: |_| () }
    }
}

pub(crate) struct Info(pub(crate) *mut sys::fi_info);

/// The info for what is wished, at the loopback address unless a domain is named.
pub(crate) fn getinfo(wish: &Wish) -> Result<Info, i32> {
    let node = if wish.domain.is_some() { None } else { Some(c"127.0.0.1") };
    getinfo_of(wish, VERSION, node, sys::FI_SOURCE)
}

/// The info for what is wished, for a program of this version of libfabric's interface.
pub(crate) fn getinfo_of(wish: &Wish, version: u32, node: Option<&CStr>, flags: u64) -> Result<Info, i32> {
    let service = wish.service.map(|port| CString::new(port.to_string()).unwrap());
    let domain = wish.domain.as_ref().map(|name| CString::new(name.as_str()).unwrap());
    let mut info = null_mut();
    // SAFETY: all pointers are valid, and the hints are new ones with all their parts.
    let answer = unsafe {
        let hints = sys::fi_dupinfo(null());
        (*hints).caps = wish.caps;
        (*(*hints).fabric_attr).prov_name = libc::strdup(c"weft".as_ptr());
        (*(*hints).ep_attr).type_ = wish.kind;
        (wish.change)(&mut *hints);
        let service = service.as_ref().map_or(null(), |text| text.as_ptr());
        let node = node.map_or(null(), CStr::as_ptr);
        if let Some(domain) = &domain {
            (*(*hints).domain_attr).name = libc::strdup(domain.as_ptr());
        }
        let answer = sys::fi_getinfo(version, node, service, flags, hints, &mut info);
        sys::fi_freeinfo(hints);
        answer
    };
    if answer == 0 { Ok(Info(info)) } else { Err(-answer) }
}

impl Info {
    pub(crate) fn get(&self) -> &sys::fi_info {
        // SAFETY: it is one that libfabric has returned.
        unsafe { &*self.0 }
    }
}

impl Info {
    /// Takes the source address away.
    pub(crate) fn clear_source(&mut self) {
        // SAFETY: the info is one that libfabric has returned; the address was allocated for it.
        unsafe {
            libc::free(std::mem::replace(&mut (*self.0).src_addr, null_mut()));
            (*self.0).src_addrlen = 0;
        }
    }

    /// Writes the source address.
    pub(crate) fn set_source(&mut self, ip: [u8; 4], port: u16) {
        let addr = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: port.to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip) },
            sin_zero: [0; 8],
        };
        // SAFETY: the info is one that libfabric has returned, and its address has so many bytes.
        unsafe { (*self.0).src_addr.cast::<libc::sockaddr_in>().write(addr) };
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: nobody else has it.
        unsafe { sys::fi_freeinfo(self.0) };
    }
}

/// The name of an error number, for messages.
pub(crate) fn name(error: i32) -> String {
    // SAFETY: it takes any number.
    unsafe { CStr::from_ptr(sys::fi_strerror(error)) }.to_string_lossy().into_owned()
}

fn checked(what: &str, answer: c_int) {
    assert_eq!(answer, 0, "{what}: {}", name(-answer));
}

macro_rules! table {
    ($object:expr, $table:ident . $function:ident ( $($argument:expr),* )) => {{
        let object = $object;
        // SAFETY: the object is open, and its tables are whole.
        unsafe { ((*(*object).$table).$function.unwrap())(object, $($argument),*) }
    }};
}

/// A completion queue.
pub(crate) struct Cq(pub(crate) *mut sys::fid_cq);

// SAFETY: FI_THREAD_SAFE.
unsafe impl Sync for Cq {}
// SAFETY: as before.
unsafe impl Send for Cq {}

pub(crate) struct Cntr(pub(crate) *mut sys::fid_cntr);

// SAFETY: FI_THREAD_SAFE.
unsafe impl Sync for Cntr {}

impl Cntr {
    /// How many operations have succeeded and failed.
    pub(crate) fn read(&self) -> (u64, u64) {
        (table!(self.0, ops.read()), table!(self.0, ops.readerr()))
    }

    pub(crate) fn wait(&self, threshold: u64, ms: c_int) -> c_int {
        table!(self.0, ops.wait(threshold, ms))
    }
}

/// An endpoint with all that it needs.
pub(crate) struct Side {
    pub(crate) fabric: *mut sys::fid_fabric,
    pub(crate) domain: *mut sys::fid_domain,
    pub(crate) av: *mut sys::fid_av,
    pub(crate) cq: Cq,
    pub(crate) ep: *mut sys::fid_ep,
    /// Counters of messages that were sent and received.
    pub(crate) counters: Vec<Cntr>,
    /// Null without one.
    pub(crate) eq: *mut sys::fid_eq,
}

/// What a side's event queue is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Events {
    /// There is no queue.
    No,
    OfDomain,
    OfEndpoint,
}

// SAFETY: FI_THREAD_SAFE.
unsafe impl Sync for Side {}

/// How a side is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) wait: sys::fi_wait_obj,
    pub(crate) bind: u64,
    pub(crate) queue: usize,
    /// The format of the queue's entries. Only those with tags are read by this module.
    pub(crate) format: sys::fi_cq_format,
    /// The answer to expect of `fi_enable`.
    pub(crate) enabled: c_int,
    /// Whether the endpoint's address is left to the provider.
    pub(crate) anywhere: bool,
    /// The wait object of four counters, of what is sent, received, read and written, if it has any.
    pub(crate) counters: Option<sys::fi_wait_obj>,
    /// Whether there are two more, of what peers read and write.
    pub(crate) of_peers: bool,
    pub(crate) events: Events,
}

impl Default for How {
    fn default() -> How {
        let bind = sys::FI_SEND | sys::FI_RECV;
        How {
            wait: sys::FI_WAIT_FD,
            bind,
            queue: 0,
            format: sys::FI_CQ_FORMAT_TAGGED,
            enabled: 0,
            anywhere: false,
            counters: None,
            of_peers: false,
            events: Events::No,
        }
    }
}

/// Two adjacent pieces as one.
pub(crate) fn one(pieces: &[sys::iovec; 2]) -> (*mut c_void, usize) {
    (pieces[0].iov_base, pieces[0].iov_len + pieces[1].iov_len)
}

/// A message in two pieces.
pub(crate) fn message(
    pieces: &[sys::iovec; 2],
    addr: sys::fi_addr_t,
    context: *mut c_void,
    data: u64,
) -> sys::fi_msg {
    sys::fi_msg { msg_iov: pieces.as_ptr(), desc: null_mut(), iov_count: 2, addr, context, data }
}

pub(crate) fn close(fid: *mut sys::fid) -> c_int {
    // SAFETY: it is open.
    unsafe { ((*(*fid).ops).close.unwrap())(fid) }
}

/// A domain, for tests that open endpoints and queues themselves.
pub(crate) struct Opened {
    pub(crate) fabric: *mut sys::fid_fabric,
    pub(crate) domain: *mut sys::fid_domain,
}

impl Opened {
    pub(crate) fn new(info: &Info) -> Opened {
        let (mut fabric, mut domain) = (null_mut(), null_mut());
        // SAFETY: libfabric fills what it is given a place for.
        let opened = unsafe { sys::fi_fabric(info.get().fabric_attr, &mut fabric, null_mut()) };
        checked("fi_fabric", opened);
        checked("fi_domain", table!(fabric, ops.domain(info.0, &mut domain, null_mut())));
        Opened { fabric, domain }
    }

    /// `fi_endpoint`; an endpoint that was opened is closed again.
    pub(crate) fn endpoint(&self, info: &Info) -> c_int {
        let mut ep = null_mut();
        let answer = table!(self.domain, ops.endpoint(info.0, &mut ep, null_mut()));
        if answer == 0 {
            checked("fi_close", close(ep.cast()));
        }
        answer
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        checked("fi_close", close(self.domain.cast()));
        checked("fi_close", close(self.fabric.cast()));
    }
}

fn open_counter(domain: *mut sys::fid_domain, wait_obj: sys::fi_wait_obj) -> *mut sys::fid_cntr {
    let mut attr = sys::fi_cntr_attr { wait_obj, ..sys::fi_cntr_attr::default() };
    let mut cntr = null_mut();
    checked("fi_cntr_open", table!(domain, ops.cntr_open(&mut attr, &mut cntr, null_mut())));
    cntr
}

impl Side {
    pub(crate) fn open(wish: &Wish, how: How) -> Side {
        let mut info = getinfo(wish).unwrap_or_else(|error| panic!("{wish:?}: {}", name(error)));
        if how.anywhere {
            info.clear_source();
        }
        let (mut fabric, mut domain, mut av, mut cq, mut ep) =
            (null_mut(), null_mut(), null_mut(), null_mut(), null_mut());
        // SAFETY: libfabric fills what it is given a place for.
        let opened = unsafe { sys::fi_fabric(info.get().fabric_attr, &mut fabric, null_mut()) };
        checked("fi_fabric", opened);
        checked("fi_domain", table!(fabric, ops.domain(info.0, &mut domain, null_mut())));
        let mut attr = sys::fi_av_attr::default();
        checked("fi_av_open", table!(domain, ops.av_open(&mut attr, &mut av, null_mut())));
        let (format, wait_obj, size) = (how.format, how.wait, how.queue);
        let mut attr = sys::fi_cq_attr { format, wait_obj, size, ..sys::fi_cq_attr::default() };
        checked("fi_cq_open", table!(domain, ops.cq_open(&mut attr, &mut cq, null_mut())));
        checked("fi_endpoint", table!(domain, ops.endpoint(info.0, &mut ep, null_mut())));
        let mut eq = null_mut();
        if how.events != Events::No {
            let mut attr = sys::fi_eq_attr { wait_obj: sys::FI_WAIT_FD, ..sys::fi_eq_attr::default() };
            checked("fi_eq_open", table!(fabric, ops.eq_open(&mut attr, &mut eq, null_mut())));
            let to = if how.events == Events::OfDomain { domain.cast() } else { ep.cast::<sys::fid>() };
            // SAFETY: both are open.
            checked("bind eq", unsafe { (*(*to).ops).bind.unwrap()(to, eq.cast(), 0) });
        }
        let mut counters = Vec::new();
        let own = [sys::FI_SEND, sys::FI_RECV, sys::FI_READ, sys::FI_WRITE];
        let of_peers = [sys::FI_REMOTE_READ, sys::FI_REMOTE_WRITE];
        for kind in own.into_iter().chain(of_peers.into_iter().filter(|_| how.of_peers)) {
            let Some(wait_obj) = how.counters else { break };
            let cntr = open_counter(domain, wait_obj);
            // SAFETY: the endpoint and what is bound are open.
            let bound = unsafe { (*(*ep).fid.ops).bind.unwrap()(ep.cast(), cntr.cast(), kind) };
            checked("bind cntr", bound);
            counters.push(Cntr(cntr));
        }
        // SAFETY: the endpoint and what is bound are open.
        unsafe {
            let ops = &*(*ep).fid.ops;
            checked("bind av", ops.bind.unwrap()(ep.cast(), av.cast(), 0));
            checked("bind cq", ops.bind.unwrap()(ep.cast(), cq.cast(), how.bind));
            assert_eq!(
                ops.control.unwrap()(ep.cast(), sys::FI_ENABLE as c_int, null_mut()),
                how.enabled,
                "enable"
            );
        }
        Side { fabric, domain, av, cq: Cq(cq), ep, counters, eq }
    }

    /// The endpoint's name.
    pub(crate) fn name(&self) -> [u8; 16] {
        let (mut name, mut len) = ([0; 16], 16);
        // SAFETY: the endpoint is open, and there are so many bytes.
        let answer =
            unsafe { (*(*self.ep).cm).getname.unwrap()(self.ep.cast(), name.as_mut_ptr().cast(), &mut len) };
        checked("fi_getname", answer);
        assert_eq!(len, 16);
        name
    }

    pub(crate) fn insert(&self, name: &[u8; 16]) -> u64 {
        let mut number = 99;
        let done = table!(self.av, ops.insert(name.as_ptr().cast(), 1, &mut number, 0, null_mut()));
        assert_eq!(done, 1);
        number
    }

    /// Calls until it is not told to try again, and reads no completion meanwhile but lets the endpoints work.
    pub(crate) fn post(&self, mut call: impl FnMut() -> isize) {
        let begin = Instant::now();
        loop {
            match call() {
                0 => return,
                again if again == -(sys::FI_EAGAIN as isize) => {}
                error => panic!("{}", name(-error as i32)),
            }
            assert!(begin.elapsed() < BOUND);
            let none = table!(self.cq.0, ops.read(null_mut(), 0));
            assert!(none <= 0);
            std::thread::yield_now();
        }
    }

    pub(crate) fn send(&self, to: u64, bytes: &[u8], tag: Option<u64>, context: usize) {
        let (at, len, context) = (bytes.as_ptr().cast(), bytes.len(), context as *mut c_void);
        self.post(|| match tag {
            Some(tag) => table!(self.ep, tagged.send(at, len, null_mut(), to, tag, context)),
            None => table!(self.ep, msg.send(at, len, null_mut(), to, context)),
        });
    }

    /// Posts a receive for many messages without tags, of anybody.
    pub(crate) fn receive_many(&self, room: *mut c_void, len: usize) {
        let piece = sys::iovec { iov_base: room, iov_len: len };
        let (msg_iov, desc, context) = (&raw const piece, null_mut(), null_mut());
        let many = sys::fi_msg { msg_iov, desc, iov_count: 1, addr: sys::FI_ADDR_UNSPEC, context, data: 0 };
        self.post(|| table!(self.ep, msg.recvmsg(&many, sys::FI_MULTI_RECV)));
    }

    pub(crate) fn receive(&self, room: &mut [u8], from: u64, tags: Option<(u64, u64)>, context: usize) {
        let (at, len, context) = (room.as_mut_ptr().cast(), room.len(), context as *mut c_void);
        self.post(|| match tags {
            Some((tag, ignore)) => {
                table!(self.ep, tagged.recv(at, len, null_mut(), from, tag, ignore, context))
            }
            None => table!(self.ep, msg.recv(at, len, null_mut(), from, context)),
        });
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // A test may have closed it.
        if !self.ep.is_null() {
            checked("fi_close", close(self.ep.cast()));
        }
        for counter in &self.counters {
            checked("fi_close", close(counter.0.cast()));
        }
        let all: [*mut sys::fid; 5] =
            [self.cq.0.cast(), self.av.cast(), self.domain.cast(), self.eq.cast(), self.fabric.cast()];
        for fid in all {
            if !fid.is_null() {
                checked("fi_close", close(fid));
            }
        }
    }
}

/// An entry, and its sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) context: usize,
    pub(crate) flags: u64,
    pub(crate) len: usize,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    pub(crate) source: u64,
}

/// A failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) context: usize,
    pub(crate) error: i32,
    pub(crate) beyond: usize,
}

impl Cq {
    /// The next entry, if there is one.
    pub(crate) fn read(&self) -> Option<Result<Entry, Failed>> {
        let mut entry = sys::fi_cq_tagged_entry::default();
        let mut source = 7;
        let count = table!(self.0, ops.readfrom((&raw mut entry).cast(), 1, &mut source));
        self.result(count, &entry, source)
    }

    /// The next entry, if there is one, and where its message is.
    pub(crate) fn read_at(&self) -> Option<(Result<Entry, Failed>, usize)> {
        let mut entry = sys::fi_cq_tagged_entry::default();
        let mut source = 7;
        let count = table!(self.0, ops.readfrom((&raw mut entry).cast(), 1, &mut source));
        let at = entry.buf.addr();
        self.result(count, &entry, source).map(|result| (result, at))
    }

    /// The next entry that has not failed, if there is one, and where its message is.
    pub(crate) fn read_with_place(&self) -> Option<(Entry, usize)> {
        let mut entry = sys::fi_cq_tagged_entry::default();
        let count = table!(self.0, ops.read((&raw mut entry).cast(), 1));
        let read = self.result(count, &entry, 0)?;
        Some((read.unwrap_or_else(|failed| panic!("{failed:?}")), entry.buf.addr()))
    }

    /// As [`Cq::read`], but sleeps for as many milliseconds.
    pub(crate) fn read_within(&self, ms: c_int) -> Option<Result<Entry, Failed>> {
        let mut entry = sys::fi_cq_tagged_entry::default();
        let mut source = 7;
        let count = table!(self.0, ops.sreadfrom((&raw mut entry).cast(), 1, &mut source, null(), ms));
        self.result(count, &entry, source)
    }

    fn result(
        &self,
        count: isize,
        entry: &sys::fi_cq_tagged_entry,
        source: u64,
    ) -> Option<Result<Entry, Failed>> {
        let &sys::fi_cq_tagged_entry { flags, len, data, tag, .. } = entry;
        match -count {
            -1 => Some(Ok(Entry { context: entry.op_context.addr(), flags, len, data, tag, source })),
            error if error == sys::FI_EAGAIN as isize => None,
            error if error == sys::FI_EAVAIL as isize => {
                let mut entry = sys::fi_cq_err_entry::default();
                let count = table!(self.0, ops.readerr(&mut entry, 0));
                if count == -(sys::FI_EAGAIN as isize) {
                    // Another thread has read it meanwhile.
                    return None;
                }
                assert_eq!(count, 1);
                let (context, beyond) = (entry.op_context.addr(), entry.olen);
                Some(Err(Failed { context, error: entry.err, beyond }))
            }
            error => panic!("{}", name(error as i32)),
        }
    }

    /// The next entry, which must come.
    pub(crate) fn next(&self) -> Result<Entry, Failed> {
        let begin = Instant::now();
        loop {
            if let Some(result) = self.read() {
                return result;
            }
            assert!(begin.elapsed() < BOUND, "no entry");
            std::thread::yield_now();
        }
    }

    /// The next entry, which must come within `documented`, a bound of docs/libfabric.md, and a margin: [`MARGIN`] times as many
    /// sleeps of [`TICK`] as the bound has. On a machine that is busy with others each sleep takes longer.
    pub(crate) fn next_within(&self, documented: Duration) -> Result<Entry, Failed> {
        let ticks = MARGIN * documented.div_duration_f64(TICK).ceil() as u32;
        let entry = (0..ticks).find_map(|_| self.read_within(TICK.as_millis() as c_int));
        entry.unwrap_or_else(|| panic!("no entry within {documented:?}, nor {ticks} sleeps of {TICK:?}"))
    }

    pub(crate) fn descriptor(&self) -> c_int {
        descriptor(self.0.cast())
    }
}

/// The descriptor to wait for an object.
pub(crate) fn descriptor(fid: *mut sys::fid) -> c_int {
    let mut descriptor: c_int = -1;
    // SAFETY: the object is open, and the argument is a place for a descriptor.
    let answer = unsafe {
        (*(*fid).ops).control.unwrap()(fid, sys::FI_GETWAIT as c_int, (&raw mut descriptor).cast())
    };
    checked("FI_GETWAIT", answer);
    descriptor
}

impl Side {
    /// `fi_trywait` on the queue: whether the caller may sleep.
    pub(crate) fn try_wait(&self) -> bool {
        self.try_wait_for(self.cq.0.cast())
    }

    /// As [`Side::try_wait`], on another object.
    pub(crate) fn try_wait_for(&self, mut fid: *mut sys::fid) -> bool {
        match table!(self.fabric, ops.trywait(&mut fid, 1)) {
            0 => true,
            again if again == -sys::FI_EAGAIN => false,
            error => panic!("{}", name(-error)),
        }
    }
}

#[allow(unused_imports, reason = "not every test file uses it")]
pub(crate) use table;

/// Memory that others may read and write until this is dropped, before its side is.
pub(crate) struct Exposed(*mut sys::fid_mr);

impl Exposed {
    pub(crate) fn new(side: &Side, memory: &mut [u8], key: u64) -> Exposed {
        let (mut mr, access) = (null_mut(), sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE);
        // SAFETY: the domain is open, and the memory outlives it.
        let answer = unsafe {
            let reg = (*(*side.domain).mr).reg.unwrap();
            let (at, len) = (memory.as_mut_ptr().cast(), memory.len());
            reg(side.domain.cast(), at, len, access, 0, key, 0, &mut mr, null_mut())
        };
        assert_eq!(answer, 0);
        Exposed(mr)
    }
}

impl Exposed {
    /// Binds a new counter to the memory, with these flags. Returns it, to be closed after the memory is, and the answer.
    pub(crate) fn count(&self, side: &Side, flags: u64) -> (Cntr, c_int) {
        let cntr = open_counter(side.domain, sys::FI_WAIT_UNSPEC);
        // SAFETY: both are open.
        let answer = unsafe { (*(*self.0).fid.ops).bind.unwrap()(self.0.cast(), cntr.cast(), flags) };
        (Cntr(cntr), answer)
    }
}

impl Drop for Exposed {
    fn drop(&mut self) {
        assert_eq!(close(self.0.cast()), 0);
    }
}
