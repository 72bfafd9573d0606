//! The calls that scripts make, and what their application learns.

use weft_stack::buffer::Buffer;
use weft_stack::fep::{
    Completion, ConnectOptions, Datagram, DatagramReceive, Exposure, Read, ReadId, Receive, Rights, Send,
    SendId, TrafficClass,
};
use weft_stack::packet::Addr;
use weft_stack::ses::{Matching, ReceiveId, Source};
use weft_stack::wire::pds::DeliveryMode;

use super::run::{Run, content};
use super::script::{Call, Verb};

/// Something that was posted.
#[derive(Clone, Copy)]
pub(super) enum Operation {
    Send(SendId),
    Receive(ReceiveId),
    Read(ReadId),
}

impl Run {
    pub(super) fn call(&mut self, call: &Call) -> Result<(), String> {
        let result = match call.verb {
            Verb::Done => return self.take_done(call),
            Verb::Check => return self.check(call),
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
        let connection = self.connections.get(&call.name).copied();
        let connection = || connection.ok_or_else(|| format!("{:?} was refused", call.name));
        let len = call.number as usize;
        let operation = match call.verb {
            Verb::Connect => {
                let options = ConnectOptions {
                    mode: if option("rod").is_some() { DeliveryMode::Rod } else { DeliveryMode::Rud },
                    class: TrafficClass(option("class").unwrap_or(0) as u8),
                    process,
                    patient: false,
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
            Verb::Receive => {
                let ignore = option("ignore").unwrap_or(0);
                let matching =
                    option("tag").map_or(Matching::Untagged, |tag| Matching::Tagged { tag, ignore });
                let receive = Receive { buffer: Buffer::Heap(vec![0; len]), from: source, matching, context };
                let posted = self.fep().post_receive_of(process, receive);
                posted.map(Operation::Receive).map_err(|e| e.to_string())
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
                let exposure = Exposure {
                    key: option("key").unwrap_or(0),
                    buffer,
                    base: 0,
                    rights: Rights::READ,
                    from: source,
                };
                return Ok(self.fep().expose(process, exposure).map_err(|error| error.to_string()));
            }
            Verb::Withdraw => {
                let withdrawn = self.fep().withdraw(process, option("key").unwrap_or(0));
                return Ok(withdrawn.map(drop).ok_or_else(|| "no memory with this key".into()));
            }
            Verb::OpenProcess => {
                return Ok(self.fep().open_process(call.number as u16).map_err(|e| e.to_string()));
            }
            Verb::CloseProcess => {
                return Ok(self.fep().close_process(call.number as u16).map_err(|e| e.to_string()));
            }
            Verb::Cancel => {
                let operation = self.operations.get(&call.name).copied();
                let cancelled = match operation.ok_or_else(|| format!("{:?} was refused", call.name))? {
                    Operation::Send(id) => self.fep().cancel_send(id),
                    Operation::Receive(id) => self.fep().cancel_receive(id),
                    Operation::Read(id) => self.fep().cancel_read(id),
                };
                return Ok(cancelled.map_err(|error| error.to_string()));
            }
            Verb::Close => {
                let id = connection()?;
                return Ok(self.fep().close(now, id).map_err(|error| error.to_string()));
            }
            Verb::Abort => {
                let id = connection()?;
                return Ok(self.fep().abort(now, id).map_err(|error| error.to_string()));
            }
            Verb::Done | Verb::Check => return Err("not a call".into()),
        };
        self.names.push(call.new.clone());
        Ok(operation.map(|operation| _ = self.operations.insert(call.new.clone(), operation)))
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
        for (name, expected) in &call.options {
            let found = outcome.options.iter().find(|(other, _)| other == name);
            if found.map(|(_, value)| value) != Some(expected) {
                return fault(format!("{name} should be {expected}"));
            }
        }
        match (outcome.bytes, &call.content) {
            (Some(_), None) if call.error.is_none() => {
                Err(format!("the line should say the content of {}: data=…", call.name))
            }
            (None, Some(_)) => fault("there is no content".into()),
            (Some(bytes), Some(expected)) => {
                let wanted = content(&expected.name, expected.from.unwrap_or(0), bytes.len());
                match wanted.iter().zip(bytes).position(|(wanted, byte)| wanted != byte) {
                    Some(at) => {
                        fault(format!("the content differs from that of {} at byte {at}", expected.name))
                    }
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
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

/// What a completion says.
struct Outcome<'a> {
    error: Option<String>,
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
            },
            Completion::Received { source, tag, header_data, len, buffer, result, .. } => {
                let mut options = vec![("len", u64::from(*len)), ("header_data", *header_data)];
                options.extend(source.iter().map(|source| ("from", u64::from(source.peer.0))));
                options.extend(source.iter().map(|source| ("process", u64::from(source.process))));
                options.extend(tag.iter().map(|tag| ("tag", *tag)));
                let error = result.as_ref().err().map(ToString::to_string);
                let bytes = match buffer {
                    Buffer::Heap(bytes) if source.is_some() => Some(&bytes[..bytes.len().min(*len as usize)]),
                    _ => None,
                };
                Outcome { error, options, bytes }
            }
            Completion::Read { retransmissions, buffer, result, .. } => Outcome {
                error: result.as_ref().err().map(ToString::to_string),
                options: vec![("retransmissions", u64::from(*retransmissions))],
                bytes: match buffer {
                    Buffer::Heap(bytes) if result.is_ok() => Some(bytes),
                    _ => None,
                },
            },
            Completion::Accessed { result, .. } => Outcome {
                error: result.as_ref().err().map(ToString::to_string),
                options: Vec::new(),
                bytes: None,
            },
            Completion::Written(written) => {
                Outcome { error: None, options: vec![("data", written.data)], bytes: None }
            }
            Completion::Closed { peer, result, .. } => Outcome {
                error: result.as_ref().err().map(ToString::to_string),
                options: vec![("from", u64::from(peer.0))],
                bytes: None,
            },
        }
    }
}
