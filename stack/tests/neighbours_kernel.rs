//! A worker and the Linux kernel as neighbours on an Ethernet link: they ask each other for their
//! addresses, over IPv4 and IPv6, and the kernel pings the worker.

mod harness;
mod skipped;

use std::io;
use std::mem::size_of_val;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use harness::{config, fep};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recv, sendto, socket_with,
};
use weft_stack::Span;
use weft_stack::packet::Addr;
use weft_stack::port::{FramePool, Port, PortCaps, PortCounters, RxBurst, Timestamps, TxBurst};
use weft_stack::wire::ethernet::MacAddr;
use weft_stack::worker::{AddressBook, Clock, HostAddr, Idle, LinkConfig, Strangers, Worker};

/// The longest wait.
const LIMIT: Duration = Duration::from_secs(60);
const MTU: usize = 9_000;
/// The Ethernet address of the worker, which differs from that of its interface.
const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

/// A simple and slow port at a network interface.
struct PacketPort {
    socket: OwnedFd,
    pool: FramePool,
    counters: PortCounters,
}

impl PacketPort {
    fn open(interface: u32) -> io::Result<PacketPort> {
        let all = (libc::ETH_P_ALL as u16).to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, all.into()) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: all zeroes are a valid address.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = all;
        address.sll_ifindex = interface as i32;
        let len = size_of_val(&address) as libc::socklen_t;
        // SAFETY: pointer and length are those of `address`, which the call only reads.
        if unsafe { libc::bind(fd, (&raw const address).cast(), len) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let pool = FramePool::heap(256, MTU + 18).expect("they hold frames");
        Ok(PacketPort { socket, pool, counters: PortCounters::default() })
    }
}

impl Port for PacketPort {
    fn receive(&mut self, burst: &mut RxBurst) -> usize {
        let mut count = 0;
        while burst.room() > 0
            && let Some(mut frame) = self.pool.allocate(MTU + 18)
            && let Ok((len, _)) = recv(&self.socket, &mut *frame, RecvFlags::empty())
        {
            // The socket also receives the frames that this end has sent.
            if frame[6..12] != OWN.0 {
                frame.truncate(len);
                self.counters.received(&frame);
                burst.push(frame).expect("there is room");
                count += 1;
            }
        }
        count
    }

    fn transmit(&mut self, burst: &mut TxBurst) -> usize {
        let count = burst.len();
        for frame in burst.take_front(count) {
            self.counters.sent(&frame);
            rustix::net::send(&self.socket, &frame, SendFlags::empty()).expect("the link is up");
        }
        count
    }

    fn capabilities(&self) -> PortCaps {
        PortCaps {
            max_frame: MTU + 14,
            mac: OWN.0,
            tx_ipv4_checksum: false,
            tx_udp_checksum: false,
            rx_checksum: false,
            multi_segment: false,
            timestamps: Timestamps::Burst,
            in_memory: false,
        }
    }

    fn pool(&self) -> FramePool {
        self.pool.clone()
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }

    fn waitable(&mut self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}

fn ip(arguments: &str) -> Result<String, String> {
    let output = Command::new("ip").args(arguments.split_whitespace()).output();
    let output = output.map_err(|error| format!("ip (iproute2) does not run: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// The word that follows `name` in `text`.
fn after<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.split_whitespace().skip_while(|word| *word != name).nth(1)
}

/// Makes a network namespace for this thread, which ends with it, and in it a link. One end is for the worker, and the
/// other one, with these addresses, for the kernel. Returns the number of the worker's interface and the Ethernet
/// address of the kernel's.
fn link(kernel: [IpAddr; 2]) -> Result<(u32, MacAddr), String> {
    // SAFETY: concerns this thread only, which has opened nothing yet.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
        return Err(format!("no network namespace: {}", io::Error::last_os_error()));
    }
    ip("link add ours type veth peer name theirs")?;
    ip("link set ours addrgenmode none")?;
    let [v4, v6] = kernel;
    ip(&format!("address add {v4}/24 dev theirs"))?;
    ip(&format!("address add {v6}/64 dev theirs nodad"))?;
    for name in ["ours", "theirs"] {
        ip(&format!("link set {name} mtu {MTU} up"))?;
    }
    let index = ip("-o link show ours")?.split(':').next().and_then(|index| index.parse().ok());
    let shown = ip("-o link show theirs")?;
    let mut mac = [0; 6];
    let bytes = after(&shown, "link/ether").unwrap_or_default().split(':');
    for (place, byte) in mac.iter_mut().zip(bytes) {
        *place = u8::from_str_radix(byte, 16).map_err(|error| format!("{shown}: {error}"))?;
    }
    Ok((index.ok_or("no number")?, MacAddr(mac)))
}

fn worker(interface: u32, ip: IpAddr) -> Worker<PacketPort> {
    let clock = Clock::new();
    let fep = fep(0, config(true), 1, clock.now());
    let book = AddressBook::new(Addr(0), HostAddr { mac: OWN, ip }, 4, Strangers::Refuse).unwrap();
    let mut worker =
        Worker::new(fep, PacketPort::open(interface).unwrap(), book, LinkConfig::default(), clock).unwrap();
    worker.set_idle(Idle::ADAPTIVE);
    worker
}

/// Runs the worker until `done`.
fn work_until(worker: &mut Worker<PacketPort>, what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "{what}");
        let _ = worker.run_until(Span::from_ms(10), |_, _| false);
    }
}

/// The kernel resolves the address of the worker, because it has a datagram to send.
fn kernel_asks(worker: &mut Worker<PacketPort>, kernel: IpAddr, own: IpAddr) {
    // The kernel has learned the address from the worker's question, and has to forget it.
    ip("neighbour flush dev theirs").unwrap();
    let socket = UdpSocket::bind((kernel, 0)).unwrap();
    socket.send_to(b"where are you?", (own, 9)).unwrap();
    work_until(worker, "the kernel finds the worker", || {
        ip(&format!("neighbour show {own}")).unwrap().contains(&format!("lladdr {OWN}"))
    });
}

/// The kernel pings the worker, with short and long packets.
fn kernel_pings(worker: &mut Worker<PacketPort>, own: IpAddr) {
    let (family, protocol, request, answer) = match own {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP, 8, 0),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6, 128, 129),
    };
    let socket = socket_with(family, SocketType::RAW, SocketFlags::NONBLOCK, Some(protocol)).unwrap();
    for len in [8_usize, 1_000, 8_000] {
        let mut ping = vec![request, 0, 0, 0, 0x12, 0x34, 0, len as u8];
        ping.extend((0..len).map(|n| n as u8));
        if own.is_ipv4() {
            // Over IPv6 the kernel computes the checksum.
            let sum = ping.chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(c[1])).sum::<u32>();
            let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
            ping[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        sendto(&socket, &ping, SendFlags::empty(), &SocketAddr::new(own, 0)).unwrap();
        work_until(worker, "the ping is answered", || {
            let mut bytes = vec![0; MTU];
            let Ok((len, _)) = recv(&socket, &mut *bytes, RecvFlags::empty()) else { return false };
            // Over IPv4 the kernel delivers the IP header, too.
            let at = if own.is_ipv4() { usize::from(bytes[0] & 15) * 4 } else { 0 };
            bytes[at] == answer && bytes[at + 4..len] == ping[4..]
        });
    }
}

fn converse() {
    let v4 = |n| IpAddr::V4(Ipv4Addr::new(10, 99, 0, n));
    let v6 = |n| IpAddr::V6(Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, n));
    let (interface, theirs) = match link([v4(2), v6(2)]) {
        Ok(link) => link,
        Err(why) => return skipped::skipped(&why),
    };
    for (own, kernel) in [(v4(1), v4(2)), (v6(1), v6(2))] {
        let mut worker = worker(interface, own);
        worker.meet(Addr(1), kernel, None).unwrap();
        worker.resolve(Addr(1), Span::from_ms(LIMIT.as_millis() as u64)).unwrap();
        assert_eq!(worker.book().get(Addr(1)), Some(&HostAddr { mac: theirs, ip: kernel }));
        kernel_asks(&mut worker, kernel, own);
        kernel_pings(&mut worker, own);
        assert!(worker.counters().neighbours >= 5, "{:?}", worker.counters());
    }
}

#[test]
fn a_worker_and_the_kernel_resolve_each_others_addresses() {
    // The network namespace ends with this thread.
    thread::spawn(converse).join().unwrap();
}
