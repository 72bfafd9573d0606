//! Every field of the hints of `fi_getinfo` is honoured or refused: for each there is a value with which the provider is
//! offered, and one with which it is not.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ptr::null_mut;

use crate::common::fabric::{Opened, Wish, close, getinfo, getinfo_of, name};
use crate::common::{inside, inside_with};
use weft_fi::sys;

type Change = fn(&mut sys::fi_info);

/// What a field does.
enum Refuses {
    /// This value is refused.
    Value(Change),
    /// Every value is honoured, because of this.
    Nothing(&'static str),
}

struct Field {
    name: &'static str,
    fits: Change,
    refuses: Refuses,
}

/// A field of a part of the hints, or of the hints themselves, with a value that fits and another one or a reason.
macro_rules! field {
    (@set $part:ident.$field:ident = $value:expr) => {
        // SAFETY: new hints have all their parts.
        |hints| unsafe { (*hints.$part).$field = $value }
    };
    ($part:ident.$field:ident: $fits:expr, never: $why:literal) => {
        Field {
            name: concat!(stringify!($part), ".", stringify!($field)),
            fits: field!(@set $part.$field = $fits),
            refuses: Refuses::Nothing($why),
        }
    };
    ($part:ident.$field:ident: $fits:expr, not $differs:expr) => {
        Field {
            name: concat!(stringify!($part), ".", stringify!($field)),
            fits: field!(@set $part.$field = $fits),
            refuses: Refuses::Value(field!(@set $part.$field = $differs)),
        }
    };
}

fn text(text: &std::ffi::CStr) -> *mut std::ffi::c_char {
    // SAFETY: the text ends with a zero; libfabric frees the copy.
    unsafe { libc::strdup(text.as_ptr()) }
}

fn address(family: i32) -> *mut libc::c_void {
    // SAFETY: the bytes are enough for both kinds of addresses, and are written before they are read.
    unsafe {
        let at = libc::calloc(1, 64).cast::<libc::sockaddr_in>();
        (*at).sin_family = family as libc::sa_family_t;
        (*at).sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
        at.cast()
    }
}

/// An authorisation key of four bytes, of which `first` is the first, and the last is not zero: keys have 24 bits.
fn set_key(at: &mut *mut u8, len: &mut usize, first: u8) {
    // SAFETY: the bytes are enough; libfabric frees them with the hints.
    unsafe {
        *at = libc::calloc(1, 4).cast();
        at.write(first);
        at.add(3).write(9);
    }
    *len = 4;
}

/// This version of libfabric's interface.
const NOW: u32 = 1 << 16 | 17;
const ABILITY: &str = "modes are what an application is able to do, and the provider asks for none of it";
/// All bits of modes of registered memory.
const ALL_MODES: i32 = (sys::FI_MR_LOCAL
    | sys::FI_MR_RAW
    | sys::FI_MR_VIRT_ADDR
    | sys::FI_MR_ALLOCATED
    | sys::FI_MR_PROV_KEY
    | sys::FI_MR_MMU_NOTIFY
    | sys::FI_MR_RMA_EVENT
    | sys::FI_MR_ENDPOINT
    | sys::FI_MR_HMEM
    | sys::FI_MR_COLLECTIVE) as i32;
/// No open object.
const OPEN: *mut sys::fid = std::ptr::dangling_mut();

fn fields() -> Vec<Field> {
    let own = |name, fits, refuses| Field { name, fits, refuses };
    vec![
        own("info.next", |_| (), Refuses::Nothing("hints are no list")),
        own(
            "info.caps",
            |hints| hints.caps = sys::FI_MSG | sys::FI_TAGGED | sys::FI_SOURCE,
            Refuses::Value(|hints| hints.caps = sys::FI_MSG | sys::FI_HMEM),
        ),
        own(
            "info.mode",
            |hints| hints.mode = sys::FI_CONTEXT | sys::FI_RX_CQ_DATA,
            Refuses::Nothing(ABILITY),
        ),
        own(
            "info.addr_format",
            |hints| hints.addr_format = sys::FI_ADDR_STR,
            Refuses::Value(|hints| hints.addr_format = sys::FI_SOCKADDR_IB),
        ),
        own(
            "info.src_addrlen",
            |hints| (hints.src_addr, hints.src_addrlen) = (address(libc::AF_INET), 16),
            Refuses::Value(|hints| (hints.src_addr, hints.src_addrlen) = (address(libc::AF_INET), 8)),
        ),
        own(
            "info.dest_addrlen",
            |hints| (hints.dest_addr, hints.dest_addrlen) = (address(libc::AF_INET), 16),
            Refuses::Value(|hints| (hints.dest_addr, hints.dest_addrlen) = (address(libc::AF_INET), 8)),
        ),
        own(
            "info.src_addr",
            |hints| (hints.src_addr, hints.src_addrlen) = (address(libc::AF_INET), 16),
            Refuses::Value(|hints| (hints.src_addr, hints.src_addrlen) = (address(libc::AF_UNIX), 16)),
        ),
        own(
            "info.dest_addr",
            |hints| (hints.dest_addr, hints.dest_addrlen) = (address(libc::AF_INET), 16),
            Refuses::Value(|hints| (hints.dest_addr, hints.dest_addrlen) = (address(libc::AF_UNIX), 16)),
        ),
        own("info.handle", |_| (), Refuses::Value(|hints| hints.handle = OPEN)),
        own("info.tx_attr", |_| (), Refuses::Nothing("its fields are below")),
        own("info.rx_attr", |_| (), Refuses::Nothing("its fields are below")),
        own("info.ep_attr", |_| (), Refuses::Nothing("its fields are below")),
        own("info.domain_attr", |_| (), Refuses::Nothing("its fields are below")),
        own("info.fabric_attr", |_| (), Refuses::Nothing("its fields are below")),
        own(
            "info.nic",
            |_| (),
            // SAFETY: libfabric frees it by the table that it has, which is its own.
            Refuses::Value(|hints| hints.nic = nic()),
        ),
        field!(tx_attr.caps: sys::FI_TAGGED | sys::FI_SEND, not sys::FI_COLLECTIVE),
        field!(tx_attr.mode: sys::FI_CONTEXT, never: "as info.mode"),
        field!(tx_attr.op_flags: sys::FI_DELIVERY_COMPLETE, not sys::FI_COMMIT_COMPLETE),
        field!(tx_attr.msg_order: sys::FI_ORDER_SAS, not sys::FI_ORDER_SAW),
        field!(tx_attr.comp_order: sys::FI_ORDER_NONE, not sys::FI_ORDER_STRICT),
        field!(tx_attr.inject_size: 4096, not 4097),
        field!(tx_attr.size: 4096, not 1 << 20),
        field!(tx_attr.iov_limit: 8, not 9),
        field!(tx_attr.rma_iov_limit: 8, not 9),
        field!(tx_attr.tclass: sys::FI_TC_BEST_EFFORT, not sys::FI_TC_LOW_LATENCY),
        field!(rx_attr.caps: sys::FI_TAGGED | sys::FI_RECV, not sys::FI_COLLECTIVE),
        field!(rx_attr.mode: sys::FI_CONTEXT, never: "as info.mode"),
        field!(rx_attr.op_flags: sys::FI_MULTI_RECV, not sys::FI_INJECT),
        field!(rx_attr.msg_order: sys::FI_ORDER_SAS, not sys::FI_ORDER_RAS),
        field!(rx_attr.comp_order: sys::FI_ORDER_NONE, not sys::FI_ORDER_STRICT),
        field!(rx_attr.total_buffered_recv: 1 << 40, never: "a hint that providers need not follow"),
        field!(rx_attr.size: 1 << 16, not (1 << 16) + 1),
        field!(rx_attr.iov_limit: 8, not 9),
        field!(ep_attr.type_: sys::FI_EP_RDM, not sys::FI_EP_MSG),
        field!(ep_attr.protocol: sys::FI_PROTO_UNSPEC, not sys::FI_PROTO_RXM),
        field!(ep_attr.protocol_version: 1, not 2),
        field!(ep_attr.max_msg_size: u32::MAX as usize, not 1 << 32),
        field!(ep_attr.msg_prefix_size: 0, not 16),
        field!(ep_attr.max_order_raw_size: 0, not 1),
        field!(ep_attr.max_order_war_size: 0, not 1),
        field!(ep_attr.max_order_waw_size: 0, not 1),
        field!(ep_attr.mem_tag_format: 0xff, never: "all bits of a tag are the application's"),
        field!(ep_attr.tx_ctx_cnt: 1, not 2),
        field!(ep_attr.rx_ctx_cnt: 1, not usize::MAX),
        field!(ep_attr.auth_key_size: 0, not 16),
        own(
            "ep_attr.auth_key",
            // SAFETY: new hints have all their parts.
            |hints| unsafe {
                set_key(&mut (*hints.ep_attr).auth_key, &mut (*hints.ep_attr).auth_key_size, 0)
            },
            // SAFETY: as before.
            Refuses::Value(|hints| unsafe {
                set_key(&mut (*hints.ep_attr).auth_key, &mut (*hints.ep_attr).auth_key_size, 1);
            }),
        ),
        field!(domain_attr.domain: std::ptr::null_mut(), not OPEN.cast()),
        field!(domain_attr.name: text(c"lo"), not text(c"eth99")),
        field!(domain_attr.threading: sys::FI_THREAD_COMPLETION, not 99),
        field!(domain_attr.control_progress: sys::FI_PROGRESS_MANUAL, not 99),
        field!(domain_attr.data_progress: sys::FI_PROGRESS_MANUAL, not 99),
        field!(domain_attr.resource_mgmt: sys::FI_RM_DISABLED, not 99),
        field!(domain_attr.av_type: sys::FI_AV_TABLE, not 99),
        // It says what an application is able to do, as a mode; but the two legacy modes stand alone.
        field!(domain_attr.mr_mode: ALL_MODES, not sys::FI_MR_BASIC as i32 | sys::FI_MR_LOCAL as i32),
        field!(domain_attr.mr_key_size: 8, not 9),
        field!(domain_attr.cq_data_size: 4, not 8),
        field!(domain_attr.cq_cnt: 4096, not 1 << 20),
        field!(domain_attr.ep_cnt: 4096, not 4097),
        field!(domain_attr.tx_ctx_cnt: 4096, not 1 << 20),
        field!(domain_attr.rx_ctx_cnt: 4096, not 1 << 20),
        field!(domain_attr.max_ep_tx_ctx: 1, not 2),
        field!(domain_attr.max_ep_rx_ctx: 1, not 2),
        field!(domain_attr.max_ep_stx_ctx: 0, not 1),
        field!(domain_attr.max_ep_srx_ctx: 0, not 1),
        field!(domain_attr.cntr_cnt: 4096, not 1 << 20),
        field!(domain_attr.mr_iov_limit: 1, not 2),
        field!(domain_attr.caps: sys::FI_LOCAL_COMM | sys::FI_REMOTE_COMM, not sys::FI_SHARED_AV),
        field!(domain_attr.mode: sys::FI_RESTRICTED_COMP, never: "as info.mode"),
        own(
            "domain_attr.auth_key",
            // SAFETY: as before.
            |hints| unsafe {
                set_key(&mut (*hints.domain_attr).auth_key, &mut (*hints.domain_attr).auth_key_size, 0);
            },
            // SAFETY: as before.
            Refuses::Value(|hints| unsafe {
                set_key(&mut (*hints.domain_attr).auth_key, &mut (*hints.domain_attr).auth_key_size, 1);
            }),
        ),
        field!(domain_attr.auth_key_size: 0, not 16),
        field!(domain_attr.max_err_data: 0, not 1),
        field!(domain_attr.mr_cnt: 1 << 16, not 1 << 20),
        field!(domain_attr.tclass: sys::FI_TC_BEST_EFFORT, not sys::FI_TC_BULK_DATA),
        field!(fabric_attr.fabric: std::ptr::null_mut(), not OPEN.cast()),
        field!(fabric_attr.name: text(c"weft"), not text(c"other")),
        field!(fabric_attr.prov_name: text(c"weft"), not text(c"no-such-provider")),
        field!(fabric_attr.prov_version: 1, not u32::MAX),
        field!(fabric_attr.api_version: 1 << 16 | 17, not u32::MAX),
    ]
}

/// The fields that differ for datagrams.
fn fields_of_datagrams() -> Vec<Field> {
    let own = |name, fits, refuses| Field { name, fits, refuses };
    vec![
        own(
            "info.caps",
            |hints| hints.caps = sys::FI_MSG | sys::FI_SOURCE,
            Refuses::Value(|hints| hints.caps = sys::FI_MSG | sys::FI_TAGGED),
        ),
        field!(tx_attr.caps: sys::FI_MSG | sys::FI_SEND, not sys::FI_TAGGED),
        field!(tx_attr.op_flags: sys::FI_TRANSMIT_COMPLETE, not sys::FI_DELIVERY_COMPLETE),
        field!(tx_attr.msg_order: sys::FI_ORDER_NONE, not sys::FI_ORDER_SAS),
        field!(tx_attr.rma_iov_limit: 0, not 1),
        field!(rx_attr.caps: sys::FI_MSG | sys::FI_RECV, not sys::FI_DIRECTED_RECV),
        field!(rx_attr.op_flags: sys::FI_COMPLETION, not sys::FI_MULTI_RECV),
        field!(rx_attr.msg_order: sys::FI_ORDER_NONE, not sys::FI_ORDER_SAS),
        field!(rx_attr.total_buffered_recv: 1 << 40, never: "a hint that providers need not follow"),
        field!(rx_attr.size: 4096, not 4097),
        field!(ep_attr.type_: sys::FI_EP_DGRAM, not sys::FI_EP_MSG),
        field!(ep_attr.max_msg_size: 8_912, not 8_913),
        field!(ep_attr.mem_tag_format: 0, not 0xff),
    ]
}

fn nic() -> *mut sys::fid_nic {
    // SAFETY: a description without anything in it is one, and lives to the end of the process.
    unsafe { libc::calloc(1, size_of::<sys::fid_nic>()).cast() }
}

/// The fields of each part, from the bindings to libfabric's headers.
fn declared() -> BTreeSet<String> {
    let bindings = include_str!(concat!(env!("OUT_DIR"), "/bindings.rs"));
    let mut fields = BTreeSet::new();
    for part in ["info", "tx_attr", "rx_attr", "ep_attr", "domain_attr", "fabric_attr"] {
        let head = format!("pub struct fi_{part} {{");
        let body = bindings.split_once(&head).unwrap().1.split_once("\n}").unwrap().0;
        let lines = body.lines().filter_map(|line| line.trim().strip_prefix("pub "));
        fields.extend(lines.map(|line| format!("{part}.{}", line.split_once(':').unwrap().0)));
    }
    fields
}

#[test]
fn every_field_of_hints_is_honoured_or_refused() {
    if !inside("every_field_of_hints_is_honoured_or_refused") {
        return;
    }
    let fields = fields();
    let audited: BTreeSet<String> = fields.iter().map(|field| field.name.to_owned()).collect();
    assert_eq!(audited, declared(), "the fields of this table, and those of libfabric's headers");
    audit(fields, sys::FI_EP_UNSPEC);
}

#[test]
fn every_field_of_hints_for_datagrams_is_honoured_or_refused() {
    if !inside("every_field_of_hints_for_datagrams_is_honoured_or_refused") {
        return;
    }
    let own = fields_of_datagrams();
    let differs = |field: &Field| own.iter().any(|other| other.name == field.name);
    let mut all: Vec<Field> = fields().into_iter().filter(|field| !differs(field)).collect();
    all.extend(fields_of_datagrams());
    assert_eq!(all.len(), declared().len());
    audit(all, sys::FI_EP_DGRAM);
}

thread_local! {
    /// The bit that [`set_transmit`] and [`set_receive`] add to what hints ask for.
    static BIT: Cell<u64> = const { Cell::new(0) };
}

fn set_transmit(hints: &mut sys::fi_info) {
    // SAFETY: new hints have all their parts.
    unsafe { (*hints.tx_attr).caps = hints.caps & (sys::FI_MSG | sys::FI_TAGGED) | BIT.get() };
}

fn set_receive(hints: &mut sys::fi_info) {
    // SAFETY: as before.
    unsafe { (*hints.rx_attr).caps = hints.caps & (sys::FI_MSG | sys::FI_TAGGED) | BIT.get() };
}

/// What hints ask of one direction the endpoint has, or it is not offered.
#[test]
fn every_capability_of_one_direction_is_one_of_the_endpoint_or_refused() {
    if !inside("every_capability_of_one_direction_is_one_of_the_endpoint_or_refused") {
        return;
    }
    let reliable =
        [0, sys::FI_MSG, sys::FI_TAGGED | sys::FI_SEND, sys::FI_RMA | sys::FI_READ | sys::FI_SOURCE];
    let unreliable = [0, sys::FI_MSG, sys::FI_MSG | sys::FI_RECV, sys::FI_MSG | sys::FI_SOURCE];
    let mut counts = [0, 0];
    for (kind, caps) in [(sys::FI_EP_RDM, reliable), (sys::FI_EP_DGRAM, unreliable)] {
        for caps in caps {
            let plain = getinfo(&Wish { caps, kind, ..Wish::default() }).unwrap().get().caps;
            for bit in (0..64).map(|bit| 1 << bit) {
                BIT.set(bit);
                for change in [set_transmit as fn(&mut sys::fi_info), set_receive] {
                    let offered = getinfo(&Wish { caps, kind, change, ..Wish::default() });
                    let has_it = plain & bit != 0;
                    counts[usize::from(has_it)] += 1;
                    match offered {
                        Ok(info) => {
                            assert!(has_it && info.get().caps == plain, "{kind} {caps:x} {bit:x}: ignored")
                        }
                        Err(error) => {
                            let why = name(error);
                            assert_eq!(
                                (error, has_it),
                                (sys::FI_ENODATA, false),
                                "{kind} {caps:x} {bit:x}: {why}"
                            );
                        }
                    }
                }
            }
        }
    }
    assert!(counts[0] > 500 && counts[1] > 100, "{counts:?}");
}

/// fi_getinfo(3): with FI_SOURCE the node is the source and else the destination, and the hints' own address is not looked at.
/// fi_getinfo(3): exactly one entry with the provider's name and version, whether it can be used or not. libfabric answers calls without
/// any other flag itself.
#[test]
fn programs_that_ask_which_providers_there_are_hear_of_one_that_cannot_be_used() {
    const NAME: &str = "programs_that_ask_which_providers_there_are_hear_of_one_that_cannot_be_used";
    if !inside_with(NAME, &[("FI_WEFT_PORT", "serve:/gone"), ("FI_WEFT_MTU", "none")]) {
        return;
    }
    let refuses = |hints: &mut sys::fi_info| hints.caps = sys::FI_HMEM;
    for change in [(|_| ()) as Change, refuses] {
        let wish = Wish { change, ..Wish::default() };
        assert!(getinfo_of(&wish, NOW, None, 0).is_err());
        let all = getinfo_of(&wish, NOW, None, sys::FI_PROV_ATTR_ONLY | sys::FI_NUMERICHOST).unwrap();
        let mut entries = Vec::new();
        let mut next = all.0;
        // SAFETY: entries of the list have all their parts, and libfabric has named their providers.
        while let Some(info) = unsafe { next.as_ref() } {
            next = info.next;
            // SAFETY: as before.
            let (domain, fabric) = unsafe { (&*info.domain_attr, &*info.fabric_attr) };
            // SAFETY: as before.
            if unsafe { std::ffi::CStr::from_ptr(fabric.prov_name) } == c"weft" {
                entries.push((fabric.prov_version, info.caps, fabric.name, domain.name));
            }
        }
        assert_eq!(entries, [(1, 0, null_mut(), null_mut())]);
    }
}

#[test]
fn the_node_comes_before_the_address_in_hints() {
    if !inside("the_node_comes_before_the_address_in_hints") {
        return;
    }
    let nonsense: [Change; 2] = [
        |hints| (hints.src_addr, hints.src_addrlen) = (address(libc::AF_UNIX), 16),
        |hints| (hints.dest_addr, hints.dest_addrlen) = (address(libc::AF_UNIX), 16),
    ];
    let ask =
        |change, node, flags| getinfo_of(&Wish { change, ..Wish::default() }, NOW, node, flags).map(drop);
    let (node, no) = (Some(c"127.0.0.1"), Err(sys::FI_ENODATA));
    let [source, destination] = nonsense;
    assert_eq!([ask(source, node, sys::FI_SOURCE), ask(destination, node, sys::FI_SOURCE)], [Ok(()), no]);
    assert_eq!([ask(source, node, 0), ask(destination, node, 0)], [no, Ok(())]);
    assert_eq!([ask(source, None, 0), ask(destination, None, 0)], [no, no]);
}

thread_local! {
    /// The modes of memory that [`set_modes`] offers.
    static MODES: Cell<u64> = const { Cell::new(0) };
}

fn set_modes(hints: &mut sys::fi_info) {
    // SAFETY: new hints have all their parts.
    unsafe { (*hints.domain_attr).mr_mode = MODES.get() as i32 };
}

/// What programs get of the modes that they offer: keys of the provider if they can deal with those, and no other bit.
#[test]
fn modes_of_memory_are_those_that_programs_of_a_version_can_deal_with() {
    if !inside("modes_of_memory_are_those_that_programs_of_a_version_can_deal_with") {
        return;
    }
    let [basic, scalable] = [sys::FI_MR_BASIC, sys::FI_MR_SCALABLE].map(u64::from);
    let [virtual_addresses, keys] = [sys::FI_MR_VIRT_ADDR, sys::FI_MR_PROV_KEY].map(u64::from);
    let old = 1 << 16 | 4;
    for (version, offered, gets) in [
        (old, 0, scalable),
        (old, basic, basic),
        (old, scalable, scalable),
        (NOW, 0, 0),
        (NOW, basic, basic),
        (NOW, scalable, scalable),
        (NOW, virtual_addresses, 0),
        (NOW, keys, keys),
        (NOW, ALL_MODES as u64, keys),
    ] {
        MODES.set(offered);
        let wish = Wish { change: set_modes, ..Wish::default() };
        let info = getinfo_of(&wish, version, Some(c"127.0.0.1"), sys::FI_SOURCE);
        let info = info.unwrap_or_else(|error| panic!("{version:x} {offered:x}: {}", name(error)));
        // SAFETY: an info has all its parts.
        assert_eq!(unsafe { (*info.get().domain_attr).mr_mode } as u64, gets, "{version:x} {offered:x}");
    }
}

/// The field is nobody's in programs for older versions, and may have any value.
#[test]
fn keys_of_memory_are_ignored_before_version_1_5() {
    if !inside("keys_of_memory_are_ignored_before_version_1_5") {
        return;
    }
    for (version, expected) in [(1 << 16 | 4, 0), (1 << 16 | 5, -sys::FI_ENOSYS)] {
        let wish = Wish { caps: sys::FI_RMA, ..Wish::default() };
        let info = getinfo_of(&wish, version, Some(c"127.0.0.1"), sys::FI_SOURCE).unwrap();
        let opened = Opened::new(&info);
        let (mut memory, mut mr) = ([0u8; 8], std::ptr::null_mut());
        let piece = sys::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
        let attr = sys::fi_mr_attr {
            mr_iov: &piece,
            iov_count: 1,
            access: sys::FI_REMOTE_READ,
            requested_key: 7,
            auth_key_size: 3,
            ..sys::fi_mr_attr::default()
        };
        // SAFETY: the domain is open, and the memory stays until it is closed.
        let answer =
            unsafe { (*(*opened.domain).mr).regattr.unwrap()(opened.domain.cast(), &attr, 0, &mut mr) };
        assert_eq!(answer, expected, "{version:x}");
        if answer == 0 {
            assert_eq!(close(mr.cast()), 0);
        }
    }
}

#[test]
fn open_fabrics_and_domains_are_named_and_can_be_asked_for() {
    if !inside("open_fabrics_and_domains_are_named_and_can_be_asked_for") {
        return;
    }
    thread_local! {
        static NAMED: Cell<[usize; 2]> = const { Cell::new([0; 2]) };
    }
    // SAFETY: new hints have all their parts.
    let by_object: Change = |hints| unsafe {
        let [fabric, domain] = NAMED.get();
        (*hints.fabric_attr).fabric = std::ptr::with_exposed_provenance_mut(fabric);
        (*hints.domain_attr).domain = std::ptr::with_exposed_provenance_mut(domain);
    };
    let ask = |fabric: usize, domain: usize, change: Option<&str>| {
        NAMED.set([fabric, domain]);
        let domain = change.map(str::to_owned);
        let wish = Wish { change: by_object, domain, ..Wish::default() };
        let info = getinfo_of(&wish, NOW, Some(c"127.0.0.1"), sys::FI_SOURCE)?;
        // SAFETY: an info has all its parts.
        Ok(unsafe { [(*info.get().fabric_attr).fabric.addr(), (*info.get().domain_attr).domain.addr()] })
    };
    assert_eq!(ask(0, 0, None), Ok([0, 0]));
    let info = getinfo(&Wish::default()).unwrap();
    let opened = Opened::new(&info);
    let (fabric, domain) = (opened.fabric.addr(), opened.domain.addr());
    for (fabric_in, domain_in) in [(0, 0), (fabric, 0), (0, domain), (fabric, domain)] {
        assert_eq!(ask(fabric_in, domain_in, None), Ok([fabric, domain]));
    }
    assert_eq!(ask(0, domain, Some("lo")), Ok([fabric, domain]));
    let second = Opened::new(&info);
    let newer = [second.fabric.addr(), second.domain.addr()];
    assert_eq!(ask(newer[0], newer[1], None), Ok(newer));
    assert_eq!(ask(0, 0, None), Ok([fabric, domain]), "the first of that name");
    // Neither is the other, and a domain has one name.
    for (fabric, domain, name) in [(domain, 0, None), (0, fabric, None), (0, domain, Some("eth99"))] {
        assert_eq!(ask(fabric, domain, name), Err(sys::FI_ENODATA));
    }
    drop(opened);
    assert_eq!(ask(fabric, domain, None), Err(sys::FI_ENODATA), "they are closed");
    assert_eq!(ask(0, 0, None), Ok(newer));
}

/// Hints as those of NCCL's plugin for libfabric (aws-ofi-nccl), which asks for memory of GPUs first, and if nobody has that for messages
/// from memory of the host.
fn set_as_nccl(hints: &mut sys::fi_info, more: u64, more_modes: u64) {
    hints.caps = sys::FI_LOCAL_COMM | sys::FI_REMOTE_COMM | sys::FI_TAGGED | sys::FI_MSG | more;
    hints.mode = sys::FI_CONTEXT | sys::FI_CONTEXT2;
    let modes = sys::FI_MR_LOCAL | sys::FI_MR_ENDPOINT | sys::FI_MR_VIRT_ADDR | sys::FI_MR_ALLOCATED;
    // SAFETY: new hints have all their parts.
    unsafe {
        (*hints.ep_attr).type_ = sys::FI_EP_RDM;
        let domain = &mut *hints.domain_attr;
        domain.mr_mode = (modes | sys::FI_MR_PROV_KEY | more_modes) as i32;
        domain.mr_key_size = 2;
        domain.threading = sys::FI_THREAD_SAFE;
        (*hints.tx_attr).msg_order = sys::FI_ORDER_SAS;
        (*hints.rx_attr).msg_order = sys::FI_ORDER_SAS;
    }
}

#[test]
fn nccls_plugin_is_offered_memory_of_the_host_and_refused_that_of_gpus() {
    if !inside("nccls_plugin_is_offered_memory_of_the_host_and_refused_that_of_gpus") {
        return;
    }
    let ask = |change| getinfo_of(&Wish { change, ..Wish::default() }, NOW, None, 0);
    let of_gpus: [Change; 3] = [
        |hints| set_as_nccl(hints, sys::FI_HMEM, sys::FI_MR_HMEM),
        |hints| set_as_nccl(hints, sys::FI_HMEM | sys::FI_RMA | sys::FI_READ, sys::FI_MR_HMEM),
        |hints| {
            let remote = sys::FI_DIRECTED_RECV | sys::FI_RMA | sys::FI_WRITE | sys::FI_REMOTE_WRITE;
            set_as_nccl(hints, sys::FI_HMEM | remote, sys::FI_MR_HMEM);
        },
    ];
    for change in of_gpus {
        assert_eq!(ask(change).map(drop), Err(sys::FI_ENODATA));
    }
    let of_hosts: [Change; 2] = [
        |hints| set_as_nccl(hints, 0, 0),
        |hints| {
            let remote = sys::FI_DIRECTED_RECV | sys::FI_RMA | sys::FI_WRITE | sys::FI_REMOTE_WRITE;
            set_as_nccl(hints, remote, 0);
        },
    ];
    for change in of_hosts {
        let info = ask(change).unwrap_or_else(|error| panic!("{}", name(error)));
        let caps = sys::FI_TAGGED | sys::FI_MSG | sys::FI_LOCAL_COMM | sys::FI_REMOTE_COMM;
        assert_eq!(info.get().caps & caps, caps);
        assert_eq!(info.get().caps & sys::FI_HMEM, 0);
        // The plugin registers memory with each endpoint, or for devices, only if the provider wants it.
        // SAFETY: an info has all its parts.
        assert_eq!(unsafe { (*info.get().domain_attr).mr_mode } as u64, sys::FI_MR_PROV_KEY);
    }
}

/// Asks for endpoints of type `kind` with each field, in a process that has the provider.
fn audit(fields: Vec<Field>, kind: sys::fi_ep_type) {
    let mut wrong = Vec::new();
    for Field { name: field, fits, refuses } in fields {
        let ask = |change| {
            let wish = Wish { change, kind, ..Wish::default() };
            // The node is the source otherwise, whatever the hints say.
            let is_source = field.starts_with("info.src");
            if is_source { getinfo_of(&wish, NOW, None, 0) } else { getinfo(&wish) }.map(drop)
        };
        if let Err(error) = ask(fits) {
            wrong.push(format!("{field}: refused with {}", name(error)));
        }
        match refuses {
            Refuses::Nothing(why) => assert!(!why.is_empty()),
            Refuses::Value(change) if ask(change) == Err(sys::FI_ENODATA) => {}
            Refuses::Value(_) => wrong.push(format!("{field}: ignored")),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
