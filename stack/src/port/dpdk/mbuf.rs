//! Mbufs and their pools as owned Rust values.

use std::ffi::CString;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use arrayvec::ArrayVec;
use weft_dpdk_sys as sys;

use super::{DpdkError, Eal};
use crate::port::{BURST, ChecksumOffload, ChecksumStatus};

/// Mbufs that are taken from a pool at once. More would save little, and lie idle at ports that send few frames.
const TOGETHER: usize = 8;

/// Configuration of a pool of mbufs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MbufPoolConfig {
    /// Number of buffers: enough for every receive descriptor, every frame in rings and on its way out, up to 7 that each
    /// port keeps for its next frames, and the caches of the threads that use the pool.
    pub buffers: u32,
    /// Bytes of the longest frame that a buffer holds; each buffer takes about 400 more.
    pub buffer_size: u16,
    /// Buffers that each lcore may cache; at most 512 and two thirds of all.
    pub cache: u32,
    /// The NUMA node to take memory from; `None` means any.
    pub socket: Option<u32>,
}

impl Default for MbufPoolConfig {
    /// 4096 buffers for frames of 9216 bytes (39 MiB).
    fn default() -> MbufPoolConfig {
        MbufPoolConfig { buffers: 4096, buffer_size: 9216, cache: 256, socket: None }
    }
}

/// A pool of mbufs. It lives until the process ends: its buffers may be anywhere, in the rings of a device or owned by
/// other threads, and would otherwise all need a reference count.
#[derive(Clone, Copy)]
pub struct MbufPool {
    raw: NonNull<sys::rte_mempool>,
    buffers: u32,
    buffer_size: u16,
}

// SAFETY: DPDK's mempools may be used by any number of threads. Their caches belong to one lcore
// each, and no two threads have the same lcore id.
unsafe impl Send for MbufPool {}
// SAFETY: allocating, freeing and counting through `&MbufPool` are DPDK's own thread-safe operations (see `Send`),
// and the fields never change.
unsafe impl Sync for MbufPool {}

impl MbufPool {
    /// Makes a pool. Its name must be new in this process and at most 25 bytes long.
    pub fn create(_eal: Eal, name: &str, config: &MbufPoolConfig) -> Result<MbufPool, DpdkError> {
        let name = CString::new(name).map_err(|_| DpdkError::NulByte)?;
        let room = u32::from(config.buffer_size) + sys::WEFT_PKTMBUF_HEADROOM;
        let room = u16::try_from(room).map_err(|_| DpdkError::BufferSize(config.buffer_size))?;
        let socket = config.socket.map_or(sys::WEFT_SOCKET_ID_ANY, |node| node as i32);
        // SAFETY: DPDK runs (`_eal`), and the name is a C string, which it copies.
        let raw = unsafe {
            sys::rte_pktmbuf_pool_create(name.as_ptr(), config.buffers, config.cache, 0, room, socket)
        };
        let raw = NonNull::new(raw).ok_or_else(|| DpdkError::from_errno("rte_pktmbuf_pool_create"))?;
        Ok(MbufPool { raw, buffers: config.buffers, buffer_size: config.buffer_size })
    }

    /// An mbuf with `len` bytes of data, left over from an earlier frame; `None` if none is free or `len` is above
    /// [`buffer_size`](Self::buffer_size).
    #[inline]
    pub fn allocate(&self, len: usize) -> Option<Mbuf> {
        if len > self.buffer_size() {
            return None;
        }
        // SAFETY: `raw` came from `rte_pktmbuf_pool_create`, and pools are never freed.
        let raw = NonNull::new(unsafe { sys::weft_rte_pktmbuf_alloc(self.raw.as_ptr()) })?;
        Some(Mbuf(raw).with_len(len))
    }

    /// Bytes of the longest frame that a buffer holds.
    #[inline]
    pub fn buffer_size(&self) -> usize {
        usize::from(self.buffer_size)
    }

    /// Number of buffers in all.
    pub fn capacity(&self) -> usize {
        self.buffers as usize
    }

    /// Number of free buffers, including those in caches. Walks over all caches; exact only while no thread uses the
    /// pool.
    pub fn available(&self) -> usize {
        // SAFETY: `raw` came from `rte_pktmbuf_pool_create`, and pools are never freed.
        unsafe { sys::rte_mempool_avail_count(self.raw.as_ptr()) as usize }
    }

    /// The pool's address for calls of DPDK. It is never freed.
    pub(super) fn as_ptr(&self) -> *mut sys::rte_mempool {
        self.raw.as_ptr()
    }
}

impl fmt::Debug for MbufPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MbufPool({} buffers of {} bytes)", self.buffers, self.buffer_size)
    }
}

/// One mbuf with the data of one frame, to which it dereferences. Returns to its pool when dropped.
///
/// Invariant: nothing else in this process refers to the mbuf, and its first segment is its own buffer, to which `self`
/// dereferences. "Without other references" means that below.
///
/// Others may be able to reach the memory. A network card writes to mbufs that it was given to receive into, and reads
/// those that it was given to send; both are DPDK's until they come back. The backend of a `net_virtio_user` device,
/// which maps all of DPDK's memory, and the peer of a `net_memif` with `zero-copy=yes` could write to any mbuf at any
/// time. They are trusted not to, as drivers are (`docs/attacks.md`, "Behind a DPDK device"): with one that does,
/// the references that the blocks below make are unsound.
///
/// Only two kinds of frame have more segments: one with an [`Attachment`](crate::port::Attachment), between writing
/// and sending, and one that has just arrived, before the port gathers it.
#[repr(transparent)]
pub struct Mbuf(NonNull<sys::rte_mbuf>);

// SAFETY: an mbuf has one owner, and may be freed by any thread: see `MbufPool`.
unsafe impl Send for Mbuf {}
// SAFETY: every method that writes to the mbuf takes `&mut self` or `self`; through `&Mbuf` it is only read.
unsafe impl Sync for Mbuf {}

impl Mbuf {
    /// Takes ownership of an mbuf that DPDK handed out.
    ///
    /// # Safety
    ///
    /// `raw` is a valid mbuf without any other reference to it, and its first segment is its own buffer.
    #[inline]
    pub(super) unsafe fn from_raw(raw: NonNull<sys::rte_mbuf>) -> Mbuf {
        Mbuf(raw)
    }

    /// The pointer, still owned by `self`.
    #[inline]
    pub(super) fn as_ptr(&self) -> *mut sys::rte_mbuf {
        self.0.as_ptr()
    }

    /// An mbuf that was just allocated, with `len` bytes of data, left over from an earlier frame; no more than its pool's
    /// [`buffer_size`](MbufPool::buffer_size).
    #[inline]
    fn with_len(mut self, len: usize) -> Mbuf {
        // SAFETY: `Mbuf` owns a valid mbuf without other references. Its data room was created to hold `buffer_size` bytes
        // behind the headroom, and buffer_size is a u16.
        let raw = unsafe { self.0.as_mut() };
        (raw.data_len, raw.pkt_len) = (len as u16, len as u32);
        self
    }

    /// Shortens the data to their first `len` bytes, and drops the segments chained behind them.
    #[inline]
    pub(in crate::port) fn truncate(&mut self, len: usize) {
        self.unchain();
        // SAFETY: `Mbuf` owns a valid mbuf without other references, and `self` is borrowed exclusively.
        let raw = unsafe { self.0.as_mut() };
        if len < usize::from(raw.data_len) {
            raw.data_len = len as u16;
            raw.pkt_len = len as u32;
        }
    }

    /// The device's verdict on the checksums of the frame.
    #[inline]
    pub(in crate::port) fn checksum_status(&self) -> ChecksumStatus {
        // SAFETY: `Mbuf` owns a valid mbuf, which only methods with `&mut self` change.
        let flags = unsafe { self.0.as_ref() }.ol_flags;
        let ip = flags & sys::WEFT_F_RX_IP_CKSUM_MASK;
        let l4 = flags & sys::WEFT_F_RX_L4_CKSUM_MASK;
        if ip == sys::WEFT_F_RX_IP_CKSUM_BAD || l4 == sys::WEFT_F_RX_L4_CKSUM_BAD {
            ChecksumStatus::Bad
        } else if l4 == sys::WEFT_F_RX_L4_CKSUM_GOOD {
            // IPv6 has no header checksum, so the device reports nothing about it.
            ChecksumStatus::Good
        } else {
            ChecksumStatus::Unknown
        }
    }

    /// Asks the device to compute checksums.
    #[inline]
    pub(in crate::port) fn offload_checksums(&mut self, request: &ChecksumOffload) {
        // SAFETY: `Mbuf` owns a valid mbuf without other references, and `self` is borrowed exclusively.
        let raw = unsafe { self.0.as_mut() };
        let header =
            if request.ipv4 { sys::WEFT_F_TX_IPV4 | sys::WEFT_F_TX_IP_CKSUM } else { sys::WEFT_F_TX_IPV6 };
        raw.ol_flags |= header | if request.udp { sys::WEFT_F_TX_UDP_CKSUM } else { 0 };
        // rte_mbuf's tx_offload: 7 bits of l2_len, then 9 of l3_len; the rest concerns TSO and tunnels.
        let lengths = u64::from(request.l2_len & 0x7f) | u64::from(request.l3_len & 0x1ff) << 7;
        raw.__bindgen_anon_3.tx_offload = lengths;
    }
}

impl Deref for Mbuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the mbuf is valid; data_len bytes from data_off lie inside its buffer, which is
        // initialised memory (zeroed by the kernel or written since) without other references.
        unsafe {
            let raw = self.0.as_ref();
            let data = raw.buf_addr.cast::<u8>().add(usize::from(raw.data_off));
            std::slice::from_raw_parts(data, usize::from(raw.data_len))
        }
    }
}

impl DerefMut for Mbuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`: data_len bytes from data_off lie inside the mbuf's own buffer, whose bytes are
        // initialised. `Mbuf` owns the buffer and `self` is borrowed exclusively, so nothing else refers to them.
        unsafe {
            let raw = self.0.as_ref();
            let data = raw.buf_addr.cast::<u8>().add(usize::from(raw.data_off));
            std::slice::from_raw_parts_mut(data, usize::from(raw.data_len))
        }
    }
}

impl Drop for Mbuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the mbuf is ours, and its pool is never freed.
        unsafe { sys::weft_rte_pktmbuf_free(self.0.as_ptr()) };
    }
}

/// Mbufs without data that were taken from a pool together: that takes less time than one after the other.
#[derive(Debug, Default)]
pub(in crate::port) struct KeptMbufs(ArrayVec<Mbuf, TOGETHER>);

impl KeptMbufs {
    /// As [`MbufPool::allocate`], with an mbuf of those kept, if they are of `pool`.
    #[inline]
    pub(in crate::port) fn allocate(&mut self, pool: &MbufPool, len: usize) -> Option<Mbuf> {
        if len > pool.buffer_size() {
            return None;
        }
        // SAFETY: `raw` came from `rte_pktmbuf_pool_create`, and pools are never freed.
        unsafe { self.take(pool.raw) }.map(|mbuf| mbuf.with_len(len))
    }

    /// An mbuf of `pool` without data; `None` if none is free.
    ///
    /// # Safety
    ///
    /// `pool` is a mempool of mbufs, and never freed.
    #[inline]
    pub(super) unsafe fn take(&mut self, pool: NonNull<sys::rte_mempool>) -> Option<Mbuf> {
        match self.0.pop() {
            // SAFETY: `Mbuf` owns a valid mbuf, and only reads it here.
            Some(mbuf) if unsafe { mbuf.0.as_ref() }.pool == pool.as_ptr() => Some(mbuf),
            // SAFETY: as for this function.
            _ => unsafe { self.take_more(pool) },
        }
    }

    /// [`KeptMbufs::take`], when none is kept that is of `pool`.
    ///
    /// # Safety
    ///
    /// As of [`KeptMbufs::take`].
    #[inline(never)]
    unsafe fn take_more(&mut self, pool: NonNull<sys::rte_mempool>) -> Option<Mbuf> {
        self.0.clear();
        // `Mbuf` is `repr(transparent)`: an array of them is one of pointers.
        let first = self.0.as_mut_ptr().cast::<*mut sys::rte_mbuf>();
        // SAFETY: `pool` is a mempool of mbufs that is never freed, and the array has room for so many pointers.
        if unsafe { sys::weft_rte_pktmbuf_alloc_bulk(pool.as_ptr(), first, TOGETHER as u32) } != 0 {
            // There are fewer, but perhaps not none.
            // SAFETY: as above.
            return unsafe { KeptMbufs::take_one(pool) };
        }
        #[cfg(test)]
        crate::steps::count(TOGETHER);
        // SAFETY: all of these pointers were written, to new mbufs, which belong to whom they were handed to.
        unsafe { self.0.set_len(TOGETHER) };
        self.0.pop()
    }

    /// An mbuf of `pool` without data, for a caller that needs no others; `None` if none is free.
    ///
    /// # Safety
    ///
    /// As of [`KeptMbufs::take`].
    #[inline(never)]
    pub(super) unsafe fn take_one(pool: NonNull<sys::rte_mempool>) -> Option<Mbuf> {
        #[cfg(test)]
        crate::steps::count(1);
        // SAFETY: `pool` is a mempool of mbufs that is never freed.
        NonNull::new(unsafe { sys::weft_rte_pktmbuf_alloc(pool.as_ptr()) }).map(Mbuf)
    }
}

/// Mbufs that go back to their pools together, when this is dropped: that takes less time than one after the other.
#[derive(Default)]
pub(in crate::port) struct ReturnedMbufs(ArrayVec<Mbuf, BURST>);

impl ReturnedMbufs {
    #[inline]
    pub(in crate::port) fn add(&mut self, mbuf: Mbuf) {
        if let Err(full) = self.0.try_push(mbuf) {
            self.give_back();
            self.0.push(full.element());
        }
    }

    fn give_back(&mut self) {
        let count = self.0.len();
        // SAFETY: an empty array stays valid; its mbufs are forgotten before they are given away, so each is freed once.
        unsafe { self.0.set_len(0) };
        // `Mbuf` is `repr(transparent)`: an array of them is one of pointers.
        let first = self.0.as_mut_ptr().cast::<*mut sys::rte_mbuf>();
        // SAFETY: these are pointers to `count` mbufs that were ours, and pools are never freed.
        unsafe { sys::rte_pktmbuf_free_bulk(first, count as u32) };
    }
}

impl Drop for ReturnedMbufs {
    #[inline]
    fn drop(&mut self) {
        if !self.0.is_empty() {
            self.give_back();
        }
    }
}

impl fmt::Debug for Mbuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mbuf({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::dpdk::EalOptions;

    fn pool(name: &str, config: &MbufPoolConfig) -> Result<MbufPool, DpdkError> {
        MbufPool::create(Eal::init(&EalOptions::default()).unwrap(), name, config)
    }

    fn small() -> MbufPoolConfig {
        MbufPoolConfig { buffers: 15, buffer_size: 1000, cache: 0, socket: None }
    }

    #[test]
    fn mbufs_return_to_the_pool_from_any_thread() {
        let pool = pool("come_back", &small()).unwrap();
        let all: Vec<Mbuf> = std::iter::from_fn(|| pool.allocate(1000)).collect();
        assert_eq!((all.len(), pool.available()), (15, 0));
        std::thread::spawn(move || drop(all)).join().unwrap();
        assert_eq!(pool.available(), 15);
    }

    #[test]
    fn more_mbufs_than_a_burst_return_to_their_pools() {
        let config = MbufPoolConfig { buffers: 63, ..small() };
        let pools = [pool("bulk_one", &config).unwrap(), pool("bulk_two", &config).unwrap()];
        let all: Vec<Mbuf> = (0..=BURST).map(|n| pools[n % 2].allocate(100).unwrap()).collect();
        assert!(pools.iter().all(|pool| pool.available() < 63 - BURST / 2 + 1));
        let mut returned = ReturnedMbufs::default();
        all.into_iter().for_each(|mbuf| returned.add(mbuf));
        assert_eq!(pools[0].available() + pools[1].available(), 125, "the last one waits for others");
        drop(returned);
        assert_eq!(pools.map(|pool| pool.available()), [63, 63]);
    }

    #[test]
    fn mbufs_taken_together_are_all_used_and_go_back() {
        let pool = pool("together", &small()).unwrap();
        let mut kept = KeptMbufs::default();
        assert!(kept.allocate(&pool, 1001).is_none());
        assert_eq!(pool.available(), 15, "a refusal takes no buffer");
        let first = kept.allocate(&pool, 1000).unwrap();
        assert_eq!((first.len(), pool.available()), (1000, 15 - TOGETHER));
        let all: Vec<Mbuf> = std::iter::from_fn(|| kept.allocate(&pool, 60)).collect();
        assert_eq!((all.len(), pool.available()), (14, 0), "too few for another group come singly");
        assert!(all.iter().all(|mbuf| mbuf.len() == 60));
        drop((first, all));
        assert_eq!(pool.available(), 15);
        drop(kept.allocate(&pool, 60));
        assert_eq!(pool.available(), 15 - TOGETHER + 1);
        let other = self::pool("together_other", &small()).unwrap();
        let foreign = kept.allocate(&other, 60).unwrap();
        assert_eq!((pool.available(), other.available()), (15, 15 - TOGETHER), "another pool's go back");
        drop((foreign, kept));
        assert_eq!((pool.available(), other.available()), (15, 15));
    }

    #[test]
    fn allocations_longer_than_a_buffer_fail() {
        let pool = pool("bounded", &small()).unwrap();
        assert!(pool.allocate(1001).is_none());
        let mut mbuf = pool.allocate(1000).unwrap();
        mbuf.fill(7);
        mbuf.truncate(2000);
        assert_eq!(mbuf.len(), 1000);
        mbuf.truncate(20);
        assert_eq!(*mbuf, [7; 20]);
    }

    #[test]
    fn checksum_requests_reach_the_mbuf() {
        let pool = pool("request", &small()).unwrap();
        let mut mbuf = pool.allocate(100).unwrap();
        mbuf.offload_checksums(&ChecksumOffload { l2_len: 18, l3_len: 24, ipv4: true, udp: true });
        // SAFETY: the mbuf is valid; all bits of the union were written through another of its fields.
        let (flags, lengths) = unsafe {
            let raw = mbuf.0.as_ref();
            (raw.ol_flags, raw.__bindgen_anon_3.__bindgen_anon_1)
        };
        let expected = sys::WEFT_F_TX_IPV4 | sys::WEFT_F_TX_IP_CKSUM | sys::WEFT_F_TX_UDP_CKSUM;
        assert_eq!(flags, expected);
        assert_eq!((lengths.l2_len(), lengths.l3_len()), (18, 24));
        drop(mbuf);
        let fresh: Vec<Mbuf> = std::iter::from_fn(|| pool.allocate(100)).collect();
        // SAFETY: each `Mbuf` owns a valid mbuf, which nothing changes meanwhile.
        let clean = fresh.iter().all(|mbuf| unsafe { mbuf.0.as_ref() }.ol_flags == 0);
        assert!(clean, "requests do not stay in reused mbufs");
    }

    #[test]
    fn checksum_results_are_read_from_the_mbuf() {
        let pool = pool("results", &small()).unwrap();
        let mut mbuf = pool.allocate(100).unwrap();
        let mut status = |flags| {
            // SAFETY: `mbuf` owns a valid mbuf without other references.
            unsafe { mbuf.0.as_mut() }.ol_flags = flags;
            mbuf.checksum_status()
        };
        let (ip_good, ip_bad) = (sys::WEFT_F_RX_IP_CKSUM_GOOD, sys::WEFT_F_RX_IP_CKSUM_BAD);
        let (l4_good, l4_bad) = (sys::WEFT_F_RX_L4_CKSUM_GOOD, sys::WEFT_F_RX_L4_CKSUM_BAD);
        assert_eq!(status(0), ChecksumStatus::Unknown);
        assert_eq!(status(ip_good), ChecksumStatus::Unknown);
        assert_eq!(status(l4_good), ChecksumStatus::Good);
        assert_eq!(status(ip_good | l4_good), ChecksumStatus::Good);
        assert_eq!(status(ip_bad | l4_good), ChecksumStatus::Bad);
        assert_eq!(status(ip_good | l4_bad), ChecksumStatus::Bad);
    }

    #[test]
    fn pools_with_impossible_sizes_are_refused() {
        let huge = MbufPoolConfig { buffer_size: 65535, ..small() };
        assert_eq!(pool("huge", &huge).unwrap_err(), DpdkError::BufferSize(65535));
        let greedy = MbufPoolConfig { buffers: 10_000_000, ..small() };
        let error = pool("greedy", &greedy).unwrap_err();
        assert_eq!(error.to_string(), "rte_pktmbuf_pool_create: Cannot allocate memory");
    }
}
