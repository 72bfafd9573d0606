//! Runs scripts: a worker with its endpoint at one end of a port in memory, and the script at the other, in virtual time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use weft_stack::fep::{Completion, ConnectionId, Fep};
use weft_stack::packet::Addr;
use weft_stack::port::memory::{MemoryConfig, MemoryPort, pair};
use weft_stack::port::{Port, RxBurst, TxBurst};
use weft_stack::rng::Rng;
use weft_stack::wire::ethernet::MacAddr;
use weft_stack::worker::{AddressBook, Checksum, Clock, HostAddr, LinkConfig, Worker};
use weft_stack::{Span, Time};

use super::calls::Operation;
use super::fields::{Form, Group};
use super::frame::{ip, mac, mark, unwrap, wrap};
use super::packet::{Packet, Value};
use super::peer::wire::Class;
use super::script::{Action, Content, Expression, Fault, Line, NUMBERS, Operand, Packets, Script, number};
use super::settings::Settings;

/// 20 µs before the clock wraps around: scripts also check that nothing depends on where time begins.
const START: Time = Time::from_ps(u64::MAX - 20_000_000);
/// The endpoint's host; peers are 1 to [`PEERS`], and others are strangers.
const OWN: u8 = 0;
const PEERS: u8 = 9;
/// How much later than its line says a packet may leave.
const TOLERANCE: Span = Span::from_us(1);
/// Turns of the worker at one instant, and timers in one step of time, beyond which it is said to run wild.
const PATIENCE: u32 = 100_000;
/// Packets that one line may stand for.
const MOST: u64 = 1 << 17;

/// Runs a script.
pub(crate) fn run(script: &Script) -> Result<(), Fault> {
    let mut run = Run::new(&script.settings);
    for line in &script.lines {
        run.step(line).map_err(|text| Fault { line: line.number, text: run.explained(text) })?;
    }
    let last = script.lines.last().map_or(0, |line| line.number);
    run.expect_nothing().map_err(|text| Fault { line: last, text: run.explained(text) })
}

/// The UDP payload of the first of `packets`, which needs no variables.
pub(crate) fn write(packets: &Packets) -> Result<Vec<u8>, String> {
    let mut run = Run::new(&Settings::default());
    Ok(run.resolve(packets, 0, None)?.write()?.bytes)
}

/// The bytes that the name of a message or of memory stands for: `len` from `from` on. `u64:5` is the number 5 again and
/// again, each with its lowest byte first.
pub(crate) fn content(name: &str, from: usize, len: usize) -> Vec<u8> {
    if let Some(number) = name.strip_prefix(NUMBERS).and_then(number) {
        return (from..from + len).map(|at| (number as u64).to_le_bytes()[at % 8]).collect();
    }
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let byte = |at: usize| (seed ^ (at as u64 / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_be_bytes()[at % 8];
    (from..from + len).map(byte).collect()
}

/// A script that runs.
pub(crate) struct Run {
    pub(super) worker: Worker<MemoryPort>,
    /// The other end of the worker's port.
    card: MemoryPort,
    tx: TxBurst,
    rx: RxBurst,
    pub(super) now: Span,
    /// What has left and was not expected yet.
    left: VecDeque<(Span, Vec<u8>)>,
    /// What the application has learned and no line has named yet.
    pub(super) done: VecDeque<(Span, Completion)>,
    variables: BTreeMap<String, u64>,
    pub(super) connections: BTreeMap<String, ConnectionId>,
    pub(super) operations: BTreeMap<String, Operation>,
    /// The names of operations, by their contexts.
    pub(super) names: Vec<String>,
}

fn host(n: u8) -> HostAddr {
    HostAddr { mac: MacAddr(mac(n)), ip: ip(n).into() }
}

impl Run {
    fn new(settings: &Settings) -> Run {
        let (port, card) = pair(&MemoryConfig::default()).expect("the usual configuration is valid");
        let own = Addr(OWN.into());
        let fep =
            Fep::new(own, Arc::new(settings.config()), Rng::new(7, 0), START).expect("settings are checked");
        let mut book =
            AddressBook::new(own, host(OWN), settings.book, settings.strangers).expect("an address");
        for peer in (1..=PEERS).take_while(|peer| usize::from(*peer) < settings.book) {
            book.insert(Addr(peer.into()), host(peer)).expect("a free address");
        }
        let link = LinkConfig { checksum: Checksum::Always, ..LinkConfig::default() };
        let worker = Worker::new(fep, port, book, link, Clock::new()).expect("the parts fit each other");
        Run {
            worker,
            tx: TxBurst::new(&card),
            rx: RxBurst::new(),
            card,
            now: Span::ZERO,
            left: VecDeque::new(),
            done: VecDeque::new(),
            variables: BTreeMap::new(),
            connections: BTreeMap::new(),
            operations: BTreeMap::new(),
            names: Vec::new(),
        }
    }

    pub(super) fn time(&self) -> Time {
        START + self.now
    }

    pub(super) fn fep(&mut self) -> &mut Fep {
        self.worker.fep_mut()
    }

    /// A fault with the waits of the endpoint behind it.
    fn explained(&self, text: String) -> String {
        let waits = self.worker.fep().explain(self.time());
        let waits = waits.iter().map(|wait| format!("\n    the endpoint waits: {wait}"));
        waits.fold(text, |text, wait| text + &wait)
    }

    fn step(&mut self, line: &Line) -> Result<(), String> {
        self.move_to(line.at)?;
        match &line.action {
            Action::Arrive(packets) => {
                for n in 0..self.count(packets)? {
                    let packet = self.resolve(packets, n, None)?;
                    self.arrive(&packet)?;
                }
                Ok(())
            }
            Action::Leave(packets) => self.leave(packets),
            Action::Call(call) => {
                self.call(call)?;
                self.poll()
            }
            Action::Silence => self.expect_nothing(),
        }
    }

    /// Lets time pass until `at`. Whatever happens before then is unexpected.
    fn move_to(&mut self, at: Span) -> Result<(), String> {
        if at > self.now {
            self.expect_nothing()?;
            self.advance(at)?;
        }
        let left = self.left.front().map(|(when, _)| *when);
        let done = self.done.front().map(|(when, _)| *when);
        match left.into_iter().chain(done).any(|when| when < at) {
            true => self.expect_nothing(),
            false => Ok(()),
        }
    }

    fn expect_nothing(&self) -> Result<(), String> {
        if let Some((at, frame)) = self.left.front() {
            return Err(format!("no line expects the packet that left at {at}:\n    {}", describe(frame)));
        }
        if let Some((at, completion)) = self.done.front() {
            return Err(format!(
                "no line expects this completion at {at}:\n    {}",
                self.describe_done(completion)
            ));
        }
        Ok(())
    }

    /// When the endpoint's next timer is due.
    fn next_timer(&self) -> Option<Span> {
        self.worker.fep().poll_timeout().map(|at| self.now.max(at.since(START)))
    }

    /// Goes on to a timer that is due so soon that its packet counts as one of now.
    pub(super) fn linger(&mut self) -> Result<(), String> {
        match self.next_timer().filter(|timer| *timer <= self.now.plus(TOLERANCE)) {
            Some(timer) => self.advance(timer),
            None => Ok(()),
        }
    }

    fn advance(&mut self, to: Span) -> Result<(), String> {
        for _ in 0..PATIENCE {
            let Some(timer) = self.next_timer().filter(|timer| *timer <= to) else {
                self.now = self.now.max(to);
                return Ok(());
            };
            self.now = timer;
            self.poll()?;
        }
        Err(format!("the endpoint's timers expire again and again at {}", self.now))
    }

    /// Lets the worker take turns until nothing more happens at this time.
    fn poll(&mut self) -> Result<(), String> {
        for _ in 0..PATIENCE {
            let idle = self.worker.poll_at(self.time()).is_idle();
            self.card.receive(&mut self.rx);
            let now = self.now;
            let before = self.left.len();
            self.left.extend(self.rx.drain().map(|frame| (now, frame.to_vec())));
            if idle && self.left.len() == before {
                while let Some(completion) = self.fep().poll_completion() {
                    self.done.push_back((now, completion));
                }
                return Ok(());
            }
        }
        Err(format!("the endpoint does not come to rest at {}", self.now))
    }

    fn evaluate(&self, expression: &Expression) -> Result<i128, String> {
        let base = match &expression.variable {
            Some(name) => {
                i128::from(*self.variables.get(name).ok_or_else(|| format!("${name} has no value"))?)
            }
            None => 0,
        };
        Ok(base + expression.number)
    }

    /// How many packets a line stands for.
    fn count(&self, packets: &Packets) -> Result<u64, String> {
        let mut count = 1;
        for (field, operand) in &packets.fields {
            let Operand::Range(first, last) = operand else { continue };
            if first == last {
                continue;
            }
            // Of one variable, which may have no value yet, the distance is known all the same.
            let length = match first.variable == last.variable {
                true => last.number - first.number + 1,
                false => self.evaluate(last)? - self.evaluate(first)? + 1,
            };
            let length = u64::try_from(length).unwrap_or(0);
            if !(1..=MOST).contains(&length) || count != 1 && count != length {
                return Err(format!("the range of {} has {length} values, others have {count}", field.name));
            }
            count = length;
        }
        Ok(count)
    }

    /// Packet `n` of those that a line stands for. If it was expected and `seen` has left, new variables take their
    /// values from there.
    fn resolve(&mut self, packets: &Packets, n: u64, seen: Option<&Packet>) -> Result<Packet, String> {
        let mut packet = Packet::new(packets.kind);
        let mut named: Option<&Content> = None;
        for (field, operand) in &packets.fields {
            let value = match operand {
                Operand::Flag(set) => Value::Number((*set).into()),
                Operand::Hex(bytes) => Value::Bytes(bytes.clone()),
                Operand::Set(ranges) => Value::Psns(self.psns(ranges)?),
                Operand::Content(content) => {
                    named = Some(content);
                    continue;
                }
                Operand::Range(first, last) => {
                    if let Some(name) = &first.variable
                        && !self.variables.contains_key(name)
                    {
                        let value = seen.and_then(|seen| seen.number(field.name));
                        let value = value.ok_or_else(|| format!("there is no {} for ${name}", field.name))?;
                        self.variables.insert(name.clone(), value);
                    }
                    let step = if first == last { 0 } else { n };
                    let value = self.evaluate(first)? + i128::from(step);
                    let bits = match field.form {
                        Form::Number(bits) | Form::Named(bits, _) => bits,
                        _ => 32,
                    };
                    match field.form {
                        Form::Psn => Value::Number(value.rem_euclid(1 << 32) as u64),
                        _ if value >> bits == 0 => Value::Number(value as u64),
                        _ => return Err(format!("{} has {bits} bits, and would be {value}", field.name)),
                    }
                }
            };
            packet.fields.insert(field.name, value);
        }
        self.fill(&mut packet, packets, named, seen);
        Ok(packet)
    }

    /// Adds the payload: of a packet that arrives, that of its message; of one that is expected, the content that it names.
    fn fill(&self, packet: &mut Packet, packets: &Packets, named: Option<&Content>, seen: Option<&Packet>) {
        let arrives = seen.is_none();
        let has_payload = packets.kind.groups.contains(&Group::Segment) || packet.fields.contains_key("read");
        if !has_payload || !arrives && named.is_none() {
            return;
        }
        if arrives && let Some(payload) = packet.atomic_payload() {
            packet.fields.insert("data", Value::Bytes(payload));
            return;
        }
        let is_read = packet.number("op") == Some(super::peer::wire::READ.into());
        if arrives && !is_read && packet.number("len").is_none() {
            packet.fields.insert("len", Value::Number(100));
        }
        let source = seen.unwrap_or(packet);
        let len = source.number("len").unwrap_or(0) as usize;
        let at = source.number("at").unwrap_or(0) as usize;
        let (name, from) = match named {
            Some(content) => (content.name.clone(), content.from.unwrap_or(at)),
            None => (source.number("msg").unwrap_or(0).to_string(), at),
        };
        packet.fields.insert("data", Value::Bytes(content(&name, from, len)));
    }

    fn psns(&self, ranges: &[(Expression, Expression)]) -> Result<Vec<u32>, String> {
        let mut psns = Vec::new();
        for (first, last) in ranges {
            let (first, last) = (self.evaluate(first)?, self.evaluate(last)?);
            if !(0..64).contains(&(last - first)) {
                return Err(format!("a bitmap has 64 PSNs, not those from {first} to {last}"));
            }
            psns.extend((first..=last).map(|psn| psn.rem_euclid(1 << 32) as u32));
        }
        Ok(psns)
    }

    fn arrive(&mut self, packet: &Packet) -> Result<(), String> {
        let frame = match (packet.kind.name, packet.fields.get("bytes")) {
            ("FRAME", Some(Value::Bytes(bytes))) => bytes.clone(),
            ("FRAME", _) => return Err("a frame needs bytes=".into()),
            _ => {
                let datagram = packet.write()?;
                let from = packet.number("from").unwrap_or(1) as u8;
                let mut frame = wrap(&datagram, from, OWN, false);
                if datagram.marked {
                    mark(&mut frame);
                }
                frame
            }
        };
        let frame = self.card.pool().copy(&frame).ok_or("the packet is too long for the port")?;
        self.tx.push(frame).map_err(|_| "no room for a packet")?;
        self.card.transmit(&mut self.tx);
        self.poll()
    }

    fn leave(&mut self, packets: &Packets) -> Result<(), String> {
        let at = self.now;
        for n in 0..self.count(packets)? {
            if self.left.is_empty() {
                self.linger()?;
            }
            let seen = self.left.pop_front();
            let decoded = seen.as_ref().map(|(_, frame)| read(frame)).transpose()?;
            let expected = match &decoded {
                Some(seen) if seen.kind != packets.kind => Packet::new(packets.kind),
                Some(seen) => self.resolve(packets, n, Some(seen))?,
                None => Packet::new(packets.kind),
            };
            let (Some((when, _)), Some(seen)) = (seen, decoded) else {
                return Err(format!("expected at {at}:\n    {}\n  but nothing left", self.words(packets, n)));
            };
            let differences = expected.differences(&seen);
            if !differences.is_empty() {
                return Err(format!(
                    "expected at {at}:\n    {}\n  but this left at {when}:\n    {}\n  {}",
                    self.words(packets, n),
                    seen.describe(),
                    differences.join("; ")
                ));
            }
        }
        Ok(())
    }

    /// An expected packet in words, with the values of variables that have one.
    fn words(&self, packets: &Packets, n: u64) -> String {
        let mut words = vec![packets.kind.name.to_owned()];
        for (field, operand) in &packets.fields {
            let name = field.name;
            words.push(match operand {
                Operand::Flag(set) => format!("{}{name}", if *set { "" } else { "!" }),
                Operand::Content(content) => format!("{name}={}", content.name),
                Operand::Hex(bytes) => format!("{name} of {} bytes", bytes.len()),
                Operand::Set(ranges) => match self.psns(ranges) {
                    Ok(psns) if psns.is_empty() => format!("{name}=none"),
                    Ok(psns) => {
                        format!("{name}={}", psns.iter().map(u32::to_string).collect::<Vec<_>>().join(","))
                    }
                    Err(_) => format!("{name}=…"),
                },
                Operand::Range(first, last) => {
                    let step = if first == last { 0 } else { i128::from(n) };
                    match (self.evaluate(first), field.form) {
                        (Ok(value), Form::Psn) => format!("{name}={}", (value + step).rem_euclid(1 << 32)),
                        (Ok(value), Form::Named(_, names)) => {
                            let found = names.iter().find(|(_, number)| i128::from(*number) == value + step);
                            found.map_or(format!("{name}={:#x}", value + step), |(word, _)| {
                                format!("{name}={word}")
                            })
                        }
                        (Ok(value), _) => format!("{name}={}", value + step),
                        (Err(_), _) => format!("{name}=${}", first.variable.as_deref().unwrap_or_default()),
                    }
                }
            });
        }
        words.join(" ")
    }
}

/// The packet in a frame that the endpoint has sent.
fn read(frame: &[u8]) -> Result<Packet, String> {
    let datagram = unwrap(frame, false)?;
    if matches!(datagram.class, Class::Trimmed | Class::TrimmedLastHop) {
        return Err("the endpoint has sent a packet in the class of trimmed ones".into());
    }
    let mut packet = Packet::read(&datagram)?;
    // The last byte of the destination's IP address is the number of its host.
    packet.fields.insert("to", Value::Number(frame[14 + 19].into()));
    Ok(packet)
}

fn describe(frame: &[u8]) -> String {
    read(frame).map_or_else(|error| format!("{error}: {frame:02x?}"), |packet| packet.describe())
}
