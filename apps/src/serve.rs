//! `weft serve`: one process owns a port, and applications of this host share it.
//!
//! The worker's thread does everything but sleep on the sockets of applications, which the door's thread does for it.

use crate::Failure;
use crate::perf::{EndArgs, Endpoint, PortArgs, open, pin};
use crate::port_spec::PeerSpec;
use crate::units;
use clap::Args;
use std::path::PathBuf;

/// `weft serve`.
#[derive(Debug, Args)]
// What it means here: the option is shared with `weft perf`.
#[command(mut_arg("patience", |arg| arg.help(
    "Silence of a peer after which it is asked whether it is there; after as much again it is given up"
)))]
pub(crate) struct ServeArgs {
    /// Unix socket where applications come in. Only this user's and root's are let in.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    #[command(flatten)]
    port: PortArgs,
    #[command(flatten)]
    end: EndArgs,
    /// A host that applications may reach; may be repeated. They call it 1, 2, … in this order; this endpoint is 0.
    #[arg(long = "peer", value_name = "IP[/MAC]")]
    peers: Vec<PeerSpec>,
    /// Applications at a time.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4095))]
    applications: u16,
    /// Bytes of memory that an application may ask for.
    #[arg(long, value_name = "BYTES", value_parser = units::bytes, default_value = "256MiB")]
    memory: u64,
    /// Messages and receives that an application may have posted.
    #[arg(long, value_name = "N", default_value_t = 1 << 16, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    operations: u32,
    /// Connections that an application may have.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    connections: u32,
}

pub(crate) use linux::serve;

mod linux {
    use super::{Endpoint, Failure, ServeArgs, open, pin};
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;
    use std::sync::Arc;
    use weft_cc::{Span, Time};
    use weft_stack::fep::FepConfig;
    use weft_stack::packet::Addr;
    use weft_stack::port::Port;
    use weft_stack::worker::session::{Door, Ended, SessionConfig, Sessions};
    use weft_stack::worker::{Clock, ClockSource, Strangers, Waker, Worker};

    /// This endpoint's address in its book.
    const OWN: Addr = Addr(0);
    /// How long peers may take to hear that applications are gone, when the server is asked to end.
    const FAREWELL: Span = Span::from_ms(1000);

    /// Serves until a signal comes.
    ///
    /// # Errors
    /// A port or a socket that cannot be had.
    pub(crate) fn serve(args: &ServeArgs) -> Result<(), Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::Run(error.to_string());
        let open = open(&args.port)?;
        let mut endpoint = Endpoint::new(&args.end, &open)?;
        endpoint.config =
            Arc::new(FepConfig { idle_timeout: args.end.patience, ..(*endpoint.config).clone() });
        let (ip, mtu) = (open.host.ip, open.mtu());
        let peers: Vec<_> = (1..).map(Addr).zip(args.peers.iter().copied()).collect();
        let mut worker = endpoint.worker(open, OWN, &peers, Strangers::Refuse)?;
        worker.set_idle(args.end.idle.into());
        // It has no application.
        worker.fep_mut().close_process(0).map_err(|error| failed(&error))?;
        let waker = Waker::new().map_err(|error| failed(&error))?;
        let door = Door::open(&args.socket, args.most(), waker.clone()).map_err(|error| failed(&error))?;
        stop_on_signals(waker.clone()).map_err(|error| failed(&error))?;
        for notice in endpoint.notices(&worker) {
            say(&notice);
        }
        say(&format!("serving {ip} ({}, MTU {mtu}) at {}", args.port.spec, args.socket.display()));
        pin(&args.end, 0)?;
        let sessions = Sessions::new(args.applications.into());
        Server { door, sessions, asleep: false, watch: Watch::new(worker.clock()) }.run(worker, &waker);
        Ok(())
    }

    impl ServeArgs {
        /// What one application may ask for.
        fn most(&self) -> SessionConfig {
            let memory = u32::try_from(self.memory).unwrap_or(u32::MAX);
            SessionConfig {
                commands: 1 << 16,
                reports: 1 << 16,
                operations: self.operations,
                connections: self.connections,
                memory,
            }
        }
    }

    struct Server {
        door: Door,
        sessions: Sessions,
        /// Applications have been told to ring.
        asleep: bool,
        watch: Watch,
    }

    /// Notices when the clock stops reading the counter.
    struct Watch {
        clock: Clock,
        looked: Time,
        counts: bool,
    }

    impl Watch {
        fn new(clock: Clock) -> Watch {
            Watch {
                clock,
                looked: clock.now(),
                counts: matches!(clock.source(), ClockSource::Counter { .. }),
            }
        }

        /// What the clock reads now, once, if it is not the counter any more. Looks once a second.
        fn change(&mut self, now: Time) -> Option<ClockSource> {
            if !self.counts || now.since(self.looked) < Span::from_ms(1000) {
                return None;
            }
            self.looked = now;
            let source = self.clock.source();
            self.counts = matches!(source, ClockSource::Counter { .. });
            (!self.counts).then_some(source)
        }
    }

    impl Server {
        fn run<P: Port>(mut self, mut worker: Worker<P>, waker: &Waker) {
            worker.run_with(waker, |worker, now| self.step(worker, now, waker));
            // Peers should hear that nobody is here any more.
            let now = worker.clock().now();
            self.sessions.close_all(worker.fep_mut(), now);
            // Whatever is left when the time is up, peers will miss by themselves.
            let _ = worker.run_until(FAREWELL, |fep, now| {
                self.sessions.serve(fep, now);
                self.sessions.is_empty() && !fep.wants_to_transmit()
            });
        }

        /// What a turn of the worker's loop does beside the port. Returns whether there was anything.
        fn step<P: Port>(&mut self, worker: &mut Worker<P>, now: Time, waker: &Waker) -> bool {
            for id in self.door.attend(&mut self.sessions, worker.fep_mut(), now) {
                if let Some(process) = self.sessions.process(id) {
                    say(&format!("process {process}: come"));
                }
            }
            if let Some(source) = self.watch.change(now) {
                say(&format!("time is read from the {source} from now on"));
            }
            let mut busy = self.sessions.serve(worker, now) > 0;
            while let Some((_, process, how)) = self.sessions.poll_ended() {
                say(&format!("process {process}: {}", describe(how)));
            }
            if waker.is_asleep() {
                self.asleep = true;
                busy |= !self.sessions.may_sleep();
            } else if std::mem::take(&mut self.asleep) {
                self.sessions.woken();
            }
            busy
        }
    }

    fn describe(how: Ended) -> String {
        match how {
            Ended::Left => "left".to_owned(),
            Ended::Died => "died".to_owned(),
            Ended::Broken(broken) => format!("dismissed: {broken}"),
            Ended::Closed => "dismissed".to_owned(),
        }
    }

    /// Tells whoever started the server. Nobody may be listening any more, which is no reason to stop.
    fn say(line: &str) {
        let _ = crate::print(format!("{line}\n").as_bytes());
    }

    fn stop_on_signals(waker: Waker) -> std::io::Result<()> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        std::thread::Builder::new().name("weft-signals".to_owned()).spawn(move || {
            if signals.forever().next().is_some() {
                waker.stop();
            }
        })?;
        Ok(())
    }
}
