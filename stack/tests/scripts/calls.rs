//! The calls that scripts make, and what their application learns.

use std::num::NonZeroU32;

use bytes::BytesMut;
use weft_stack::Span;
use weft_stack::buffer::Buffer;
use weft_stack::fep::{
    AccessId, AccessKind, Atomic, Completion, ConnectOptions, Datagram, DatagramReceive, Exposure, JobId,
    Read, ReadId, Receive, Rights, Send, SendId, TrafficClass, Write, Written,
};
use weft_stack::packet::Addr;
use weft_stack::ses::{Claim, Matching, ReceiveId, Source};
use weft_stack::wire::pds::DeliveryMode;
use weft_stack::wire::ses::{AtomicOp, AtomicType};

use super::run::{Run, content};
use super::script::{Call, Content, Verb};

/// Something that was posted.
#[derive(Clone, Copy)]
pub(super) enum Operation {
    Send(SendId),
    Receive(ReceiveId),
    Read(ReadId),
    Access(AccessId),
    /// A message that a process has claimed.
    Claim(u16, Claim),
}

impl Run {
    pub(super) fn call(&mut self, call: &Call) -> Result<(), String> {
        let result = match call.verb {
            Verb::Done => return self.take_done(call),
            Verb::Check => return self.check(call),
            Verb::Written => return self.take_written(call),
            Verb::Accessed => return self.take_accessed(call),
            _ => self.make_call(call)?,
        };
        match (result, &call.error) {
            (Ok(()), None) => Ok(()),
            (Err(error), Some(expected)) if error.contains(expected) => Ok(()),
            (Ok(()), Some(expected)) => {
                Err(format!("the call should be refused with {expected:?}, and is not"))
            }
            (Err(error), Some(expected)) => {
                Err(format!("the call is refused with {error:?}, not {expected:?}"))
            }
            (Err(error), None) => Err(format!("the call is refused: {error}")),
        }
    }

    /// Makes a call of the endpoint. The inner error is that of the endpoint.
    fn make_call(&mut self, call: &Call) -> Result<Result<(), String>, String> {
        let (now, context) = (self.time(), self.names.len() as u64);
        let option = |name: &str| call.options.get(name).copied();
        let process = option("process").unwrap_or(0) as u16;
        let source = option("from").map(|peer| Source::from(Addr(peer as u32)));
        let ignore = option("ignore").unwrap_or(0);
        let matching = option("tag").map_or(Matching::Untagged, |tag| Matching::Tagged { tag, ignore });
        let connection = self.connections.get(&call.name).copied();
        let connection = || connection.ok_or_else(|| format!("{:?} was refused", call.name));
        let len = call.number as usize;
        let operation = match call.verb {
            Verb::Connect => {
                let options = ConnectOptions {
                    mode: if option("rod").is_some() { DeliveryMode::Rod } else { DeliveryMode::Rud },
                    class: TrafficClass(option("class").unwrap_or(0) as u8),
                    process,
                    patient: option("patient").is_some(),
                };
                let peer = Addr(option("to").unwrap_or(1) as u32);
                let opened = self.fep().connect(now, peer, options);
                return Ok(opened
                    .map_err(|e| e.to_string())
                    .map(|id| _ = self.connections.insert(call.new.clone(), id)));
            }
            Verb::Send => {
                let buffer = Buffer::Heap(content(&call.new, 0, len));
                let header_data = option("header_data").unwrap_or(0);
                let send = Send { buffer, tag: option("tag"), header_data, context };
                self.fep().post_send(connection()?, send).map(Operation::Send).map_err(|e| e.to_string())
            }
            Verb::Read => {
                let (key, offset) = (option("key").unwrap_or(0), option("offset").unwrap_or(0));
                let read = Read { buffer: Buffer::Heap(vec![0; len]), key, offset, context };
                self.fep().post_read(connection()?, read).map(Operation::Read).map_err(|e| e.to_string())
            }
            Verb::Write => {
                let write = Write {
                    buffer: Buffer::Heap(content(&call.new, 0, len)),
                    key: option("key").unwrap_or(0),
                    offset: option("offset").unwrap_or(0),
                    data: option("announce"),
                    context,
                };
                let posted = self.fep().post_write(connection()?, write);
                posted.map(Operation::Access).map_err(|e| e.to_string())
            }
            Verb::Atomic => {
                let atomic = Atomic {
                    op: AtomicOp(call.number as u8),
                    datatype: AtomicType::UINT64,
                    operands: option("operand").unwrap_or(0).to_le_bytes().to_vec(),
                    compare: option("compare").map(u128::from),
                    fetch: option("fetch").is_some(),
                    key: option("key").unwrap_or(0),
                    offset: option("offset").unwrap_or(0),
                    context,
                };
                let posted = self.fep().post_atomic(connection()?, atomic);
                posted.map(Operation::Access).map_err(|e| e.to_string())
            }
            Verb::Receive => {
                let many = option("many").and_then(|least| NonZeroU32::new(least as u32));
                // Those for many messages need memory that can be split.
                let buffer = match many {
                    Some(_) => Buffer::BytesMut(Box::new(BytesMut::zeroed(len))),
                    None => Buffer::Heap(vec![0; len]),
                };
                let receive = Receive { buffer, from: source, matching, context };
                let posted = match many {
                    Some(least) => self.fep().post_receive_many_of(process, receive, least),
                    None => self.fep().post_receive_of(process, receive),
                };
                posted.map(Operation::Receive).map_err(|e| e.to_string())
            }
            Verb::Claim => match self.fep().claim(process, source, matching) {
                Ok(Some((claim, _))) => Ok(Operation::Claim(process, claim)),
                Ok(None) => Err("no message waits".into()),
                Err(error) => Err(error.to_string()),
            },
            Verb::ReceiveClaimed => {
                let (process, claim) = self.claim_of(call)?;
                let buffer = Buffer::Heap(vec![0; len]);
                let posted = self.fep().receive_claimed(process, claim, buffer, context);
                posted.map(Operation::Receive).map_err(|e| e.to_string())
            }
            Verb::Discard => {
                let (process, claim) = self.claim_of(call)?;
                return Ok(self.fep().discard(process, claim).map_err(|error| error.to_string()));
            }
            Verb::SendDatagram => {
                let datagram = Datagram {
                    buffer: Buffer::Heap(content(&call.new, 0, len)),
                    peer: Addr(option("to").unwrap_or(1) as u32),
                    process,
                    header_data: option("header_data").unwrap_or(0),
                    context,
                };
                let posted = self.fep().post_datagram_of(option("source").unwrap_or(0) as u16, datagram);
                posted.map(Operation::Send).map_err(|e| e.to_string())
            }
            Verb::ReceiveDatagram => {
                let receive = DatagramReceive { buffer: Buffer::Heap(vec![0; len]), context };
                let posted = self.fep().post_datagram_receive_of(process, receive);
                posted.map(Operation::Receive).map_err(|e| e.to_string())
            }
            Verb::Expose => {
                let buffer = Buffer::Heap(content(&call.name, 0, len));
                let [write, atomic] = ["write", "atomic"].map(|right| option(right).is_some());
                let exposure = Exposure {
                    key: option("key").unwrap_or(0),
                    buffer,
                    base: 0,
                    rights: Rights { write, atomic, ..Rights::READ },
                    from: source,
                };
                let exposed = self.fep().expose(process, exposure).map_err(|error| error.to_string());
                if option("limited").is_some() {
                    self.fep().limit_announcements(process, option("key").unwrap_or(0));
                }
                return Ok(exposed);
            }
            Verb::Withdraw => {
                let withdrawn = self.fep().withdraw(process, option("key").unwrap_or(0));
                if let (Some(Buffer::Heap(bytes)), Some(expected)) = (&withdrawn, &call.content)
                    && let Some(at) = first_difference(expected, bytes)
                {
                    return Err(format!("the memory differs from {} at byte {at}", expected.name));
                }
                return Ok(withdrawn.map(drop).ok_or_else(|| "no memory with this key".into()));
            }
            Verb::SetJob => {
                let job = JobId::new(call.number as u32).ok_or("a job has 24 bits")?;
                return Ok(self.fep().set_job(process, job).map_err(|e| e.to_string()));
            }
            Verb::OnlyDatagrams => {
                let process = call.number as u16;
                return Ok(self.fep().receive_only_datagrams(process).map_err(|e| e.to_string()));
            }
            Verb::OpenProcess => {
                return Ok(self.fep().open_process(call.number as u16).map_err(|e| e.to_string()));
            }
            Verb::CloseProcess => {
                return Ok(self.fep().close_process(call.number as u16).map_err(|e| e.to_string()));
            }
            Verb::AskToClose => {
                self.fep().ask_to_close(now);
                return Ok(Ok(()));
            }
            Verb::GiveUp => {
                let silence = Span::from_us(option("silence").unwrap_or(0));
                self.fep().give_up_peer(now, Addr(option("from").unwrap_or(1) as u32), silence);
                return Ok(Ok(()));
            }
            Verb::Announcements => {
                self.fep().allow_announcements(call.number as usize);
                return Ok(Ok(()));
            }
            Verb::Cancel => {
                let operation = self.operations.get(&call.name).copied();
                let cancelled = match operation.ok_or_else(|| format!("{:?} was refused", call.name))? {
                    Operation::Send(id) => self.fep().cancel_send(id),
                    Operation::Receive(id) => self.fep().cancel_receive(id),
                    Operation::Read(id) => self.fep().cancel_read(id),
                    Operation::Access(id) => self.fep().cancel_access(id),
                    Operation::Claim(..) => return Err("a claim is discarded, not cancelled".into()),
                };
                return Ok(cancelled.map_err(|error| error.to_string()));
            }
            Verb::Hold => {
                let id = connection()?;
                return Ok(self.fep().hold(id).map_err(|error| error.to_string()));
            }
            Verb::Release => {
                let id = connection()?;
                self.fep().release(id);
                return Ok(Ok(()));
            }
            Verb::Close => {
                let id = connection()?;
                return Ok(self.fep().close(now, id).map_err(|error| error.to_string()));
            }
            Verb::Abort => {
                let id = connection()?;
                return Ok(self.fep().abort(now, id).map_err(|error| error.to_string()));
            }
            Verb::Done | Verb::Check | Verb::Written | Verb::Accessed => return Err("not a call".into()),
        };
        if call.new.is_empty() {
            // The receive of a claim has the name of the claim.
            self.names.push(call.name.clone());
            return Ok(operation.map(drop));
        }
        self.names.push(call.new.clone());
        Ok(operation.map(|operation| _ = self.operations.insert(call.new.clone(), operation)))
    }

    fn claim_of(&self, call: &Call) -> Result<(u16, Claim), String> {
        match self.operations.get(&call.name) {
            Some(Operation::Claim(process, claim)) => Ok((*process, *claim)),
            _ => Err(format!("{:?} is no claim", call.name)),
        }
    }

    /// The name of what has come to an end.
    fn name_of(&self, completion: &Completion) -> String {
        let context = match completion {
            Completion::Sent { context, .. } | Completion::Received { context, .. } => *context,
            Completion::Read { context, .. } | Completion::Accessed { context, .. } => *context,
            Completion::Written(written) => return format!("a write of {}", written.source.peer.0),
            Completion::Closed { id, .. } => {
                let found = self.connections.iter().find(|(_, other)| *other == id);
                return found.map_or_else(|| "a connection without a name".into(), |(name, _)| name.clone());
            }
        };
        self.names.get(context as usize).cloned().unwrap_or_else(|| "an operation without a name".into())
    }

    pub(super) fn describe_done(&self, completion: &Completion) -> String {
        let Outcome { error, options, .. } = Outcome::of(completion);
        let options = options.iter().map(|(name, value)| format!(" {name}={value}"));
        let error = error.map_or(String::new(), |error| format!(" {error:?}"));
        format!("done {}{}{error}", self.name_of(completion), options.collect::<String>())
    }

    /// The application learns that something has come to an end.
    fn take_done(&mut self, call: &Call) -> Result<(), String> {
        if self.done.is_empty() {
            self.linger()?;
        }
        let Some((_, completion)) = self.done.pop_front() else {
            return Err(format!("{} should be done at {}, and is not", call.name, self.now));
        };
        let text = self.describe_done(&completion);
        let fault = |what: String| Err(format!("{what}:\n    {text}"));
        let outcome = Outcome::of(&completion);
        if self.name_of(&completion) != call.name {
            return fault(format!("{} should be done, but this is", call.name));
        }
        match (&outcome.error, &call.error) {
            (Some(error), Some(expected)) if error.contains(expected) => {}
            (None, None) => {}
            (Some(_), None) => return fault("it should succeed, and has failed".into()),
            (_, Some(expected)) => return fault(format!("it should fail with {expected:?}")),
        }
        // A receive that goes on is not over.
        let more = ("more", u64::from(outcome.more));
        if call.options.get("more").copied().unwrap_or(0) != more.1 {
            return fault(format!("more should be {}", 1 - more.1));
        }
        for (name, expected) in &call.options {
            let found = outcome.options.iter().chain([&more]).find(|(other, _)| other == name);
            if found.map(|(_, value)| value) != Some(expected) {
                return fault(format!("{name} should be {expected}"));
            }
        }
        match (outcome.bytes, &call.content) {
            (Some(_), None) if call.error.is_none() => {
                Err(format!("the line should say the content of {}: data=…", call.name))
            }
            (None, Some(_)) => fault("there is no content".into()),
            (Some(bytes), Some(expected)) => match first_difference(expected, bytes) {
                Some(at) => fault(format!("the content differs from that of {} at byte {at}", expected.name)),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// A peer's write is announced.
    fn take_written(&mut self, call: &Call) -> Result<(), String> {
        let Some((_, Completion::Written(written))) = self.done.front() else {
            return Err("no write should be announced, or another one: there is none now".into());
        };
        let Written { process, source, key, offset, len, data } = *written;
        let found = [
            ("process", process.into()),
            ("from", source.peer.0.into()),
            ("key", key),
            ("offset", offset),
            ("len", len.into()),
            ("header_data", data),
        ];
        self.done.pop_front();
        compare(call, &found)
    }

    /// Peers have accessed memory so often since the last such line.
    fn take_accessed(&mut self, call: &Call) -> Result<(), String> {
        let nothing = "nothing has been accessed";
        let accessed = match (self.fep().next_accessed(), &call.error) {
            (None, Some(expected)) if nothing.contains(expected.as_str()) => return Ok(()),
            (None, _) => return Err(nothing.into()),
            (Some(accessed), Some(_)) => return Err(format!("there is {accessed:?}")),
            (Some(accessed), None) => accessed,
        };
        let found = [
            ("process", accessed.process.into()),
            ("key", accessed.key),
            ("reads", accessed.reads),
            ("writes", accessed.writes),
            ("fetches", accessed.fetches),
        ];
        compare(call, &found)
    }

    fn check(&mut self, call: &Call) -> Result<(), String> {
        for (name, expected) in &call.options {
            let (worker, fep) = (self.worker.counters(), self.worker.fep());
            let counters = fep.counters();
            let value = match *name {
                "pdcs" => fep.open_targets() as u64,
                "malformed" => worker.malformed,
                "strangers" => worker.strangers,
                "forgotten" => worker.forgotten,
                "misdirected" => worker.misdirected,
                "ignored" => counters.ignored,
                "dropped" => counters.datagrams_dropped,
                "retransmitted" => counters.data_retransmitted,
                "memory_below" => {
                    let held = fep.footprint().total();
                    if held >= *expected {
                        return Err(format!("the endpoint holds {held} bytes, not less than {expected}"));
                    }
                    continue;
                }
                _ => {
                    let leaks: Vec<String> = fep.leaks().collect();
                    if leaks.len() as u64 != *expected {
                        return Err(format!(
                            "{expected} kinds of things should be left, not these: {leaks:?}"
                        ));
                    }
                    continue;
                }
            };
            if value != *expected {
                return Err(format!("{name} is {value} instead of {expected}"));
            }
        }
        Ok(())
    }
}

/// Compares values with the options of a call. One that the call does not name is 0, or `from` host 1.
fn compare(call: &Call, found: &[(&str, u64)]) -> Result<(), String> {
    for &(name, value) in found {
        let usual = u64::from(name == "from");
        let expected = call.options.get(name).copied().unwrap_or(usual);
        if value != expected {
            return Err(format!("{name} is {value} instead of {expected}"));
        }
    }
    Ok(())
}

/// Where `bytes` begin to differ from what they should be.
fn first_difference(expected: &Content, bytes: &[u8]) -> Option<usize> {
    let wanted = content(&expected.name, expected.from.unwrap_or(0), bytes.len());
    wanted.iter().zip(bytes).position(|(wanted, byte)| wanted != byte)
}

/// What a completion says.
struct Outcome<'a> {
    error: Option<String>,
    /// Whether a receive goes on.
    more: bool,
    options: Vec<(&'static str, u64)>,
    /// The bytes that have arrived.
    bytes: Option<&'a [u8]>,
}

impl Outcome<'_> {
    fn of(completion: &Completion) -> Outcome<'_> {
        match completion {
            Completion::Sent { retransmissions, result, .. } => Outcome {
                error: result.as_ref().err().map(ToString::to_string),
                options: vec![("retransmissions", u64::from(*retransmissions))],
                bytes: None,
                more: false,
            },
            Completion::Received { source, tag, header_data, len, buffer, result, more, .. } => {
                let mut options = vec![("len", u64::from(*len)), ("header_data", *header_data)];
                options.extend(source.iter().map(|source| ("from", u64::from(source.peer.0))));
                options.extend(source.iter().map(|source| ("process", u64::from(source.process))));
                options.extend(tag.iter().map(|tag| ("tag", *tag)));
                let error = result.as_ref().err().map(ToString::to_string);
                let bytes = match buffer {
                    Buffer::Heap(bytes) if source.is_some() => Some(&bytes[..bytes.len().min(*len as usize)]),
                    Buffer::BytesMut(bytes) if source.is_some() => {
                        Some(&bytes[..bytes.len().min(*len as usize)])
                    }
                    _ => None,
                };
                Outcome { error, options, bytes, more: *more }
            }
            Completion::Read { retransmissions, buffer, result, .. } => Outcome {
                error: result.as_ref().err().map(ToString::to_string),
                options: vec![("retransmissions", u64::from(*retransmissions))],
                bytes: match buffer {
                    Buffer::Heap(bytes) if result.is_ok() => Some(bytes),
                    _ => None,
                },
                more: false,
            },
            // Only an atomic operation that fetches brings bytes.
            Completion::Accessed { kind, retransmissions, buffer, result, .. } => Outcome {
                error: result.as_ref().err().map(ToString::to_string),
                options: vec![("retransmissions", u64::from(*retransmissions))],
                bytes: match (kind, buffer) {
                    (AccessKind::Atomic, Buffer::Heap(bytes)) if result.is_ok() && !bytes.is_empty() => {
                        Some(bytes)
                    }
                    _ => None,
                },
                more: false,
            },
            Completion::Written(written) => Outcome {
                error: None,
                options: vec![("header_data", written.data)],
                bytes: None,
                more: false,
            },
            Completion::Closed { peer, result, .. } => Outcome {
                error: result.as_ref().err().map(ToString::to_string),
                options: vec![("from", u64::from(peer.0))],
                bytes: None,
                more: false,
            },
        }
    }
}
