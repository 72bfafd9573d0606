//! Queues, hot spots, and who lost the packets of unfinished flows.

use crate::sample::Names;
use serde::{Serialize, Serializer};
use std::collections::BTreeSet;
use std::io::{self, BufWriter, Write};
use weft_cc::{Span, Time};
use weft_testbed::sim::{LinkMeasures, Measures, RunReport, SwitchMeasures};
use weft_testbed::topology::{Direction, Node, Topology};

/// How many links of a kind are named.
const HOTTEST: usize = 3;
/// With more kinds of switches than these, all are of one kind.
const MOST_KINDS: usize = 4;

/// The data queues of the switches, and the links that stand out.
#[derive(Debug, Serialize)]
pub(crate) struct Fabric {
    pub(crate) queues: Queues,
    pub(crate) hot_spots: HotSpots,
    pub(crate) unfinished: Vec<UnfinishedFlow>,
}

/// Data queues over the whole run.
#[derive(Debug)]
pub(crate) struct Queues {
    /// The port whose queue was longest, and the one whose queue was longest on average.
    longest: Option<Link>,
    longest_mean: Option<Link>,
    /// Switches by kind: name, greatest total of one switch, mean total of all.
    kinds: Vec<(String, Option<u64>, f64)>,
    /// By priority, if there are several: the greatest length of its queue at one port, and the greatest mean of one port.
    priorities: Vec<(u64, f64)>,
}

impl Serialize for Queues {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let port = [
            (
                "port_max_bytes".to_owned(),
                self.longest.as_ref().map_or(0.0, |link| link.queue_max_bytes as f64),
            ),
            (
                "port_mean_bytes".to_owned(),
                self.longest_mean.as_ref().map_or(0.0, |link| link.queue_mean_bytes),
            ),
        ];
        let kinds = self.kinds.iter().flat_map(|(kind, max, mean)| {
            [
                (format!("{kind}_max_bytes"), max.map(|max| max as f64)),
                (format!("{kind}_mean_bytes"), Some(*mean)),
            ]
        });
        let priorities = self.priorities.iter().enumerate().flat_map(|(priority, (max, mean))| {
            [
                (format!("priority{priority}_max_bytes"), Some(*max as f64)),
                (format!("priority{priority}_mean_bytes"), Some(*mean)),
            ]
        });
        let port = port.map(|(key, value)| (key, Some(value)));
        serializer.collect_map(port.into_iter().chain(kinds).chain(priorities))
    }
}

/// The links that stand out, the most extreme first.
#[derive(Debug, Serialize)]
pub(crate) struct HotSpots {
    busiest: Vec<Link>,
    most_queued: Vec<Link>,
    most_trimmed: Vec<Link>,
    most_dropped: Vec<Link>,
    most_marked: Vec<Link>,
}

/// What a link has met.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Link {
    pub(crate) link: String,
    pub(crate) utilisation: f64,
    pub(crate) queue_max_bytes: u64,
    pub(crate) queue_mean_bytes: f64,
    pub(crate) trimmed: u64,
    /// By the queue, and by the link.
    pub(crate) dropped: u64,
    pub(crate) lost: u64,
    pub(crate) marked: u64,
}

/// A flow that has not completed, or a message between ranks, and the link that lost the last of its packets that was lost.
#[derive(Debug, Serialize)]
pub(crate) struct UnfinishedFlow {
    flow: u64,
    src: u32,
    dst: u32,
    lost_by: Option<String>,
    lost_at_us: Option<f64>,
    down_since_us: Option<f64>,
}

impl Fabric {
    /// What `run` measured in `topology`; `None` if it was in real time.
    pub(crate) fn of(run: &RunReport, topology: &Topology) -> Option<Fabric> {
        let measures = run.measures.as_ref()?;
        let names = Names::of(topology);
        let hot = Hot { measures, topology, names: &names };
        Some(Fabric {
            queues: hot.queues(),
            hot_spots: HotSpots {
                busiest: hot.most(|link| hot.utilisation(link)),
                most_queued: hot.most(|link| link.queue_mean_bytes),
                most_trimmed: hot.most(|link| link.trimmed as f64),
                most_dropped: hot.most(|link| (link.dropped + link.lost) as f64),
                most_marked: hot.most(|link| link.marked as f64),
            },
            unfinished: hot.unfinished(run),
        })
    }

    /// Lines about the queues and the hot spots, for people.
    pub(crate) fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![("queues", self.queues.text())];
        let HotSpots { busiest, most_queued, most_trimmed, most_dropped, .. } = &self.hot_spots;
        let all = |name: &str, links: &[Link], of: &dyn Fn(&Link) -> String| {
            let texts: Vec<String> = links.iter().map(|link| format!("{} {}", link.link, of(link))).collect();
            (!texts.is_empty()).then(|| format!("{name} {}", texts.join(", ")))
        };
        let hot = [
            all("busiest", busiest, &|link| format!("{:.0} %", 100.0 * link.utilisation)),
            all("most queued", most_queued, &|link| format!("{} on average", size(link.queue_mean_bytes))),
            all("most trimmed", most_trimmed, &|link| link.trimmed.to_string()),
            all("most dropped", most_dropped, &|link| (link.dropped + link.lost).to_string()),
        ];
        for (line, first) in hot.into_iter().flatten().zip([true].into_iter().chain(std::iter::repeat(false)))
        {
            lines.push((if first { "hot spots" } else { "" }, line));
        }
        lines
    }

    /// One line for each unfinished flow that a link has lost packets of, or message between `ranks`.
    pub(crate) fn losses(&self, ranks: bool) -> impl Iterator<Item = String> {
        self.unfinished.iter().filter_map(move |flow| {
            let UnfinishedFlow { flow: id, src, dst, lost_by, lost_at_us, down_since_us } = flow;
            let of = match ranks {
                true => format!("message {id} from host {src} to host {dst}"),
                false => format!("flow {id}"),
            };
            let (link, at) = (lost_by.as_ref()?, (*lost_at_us)?);
            let down =
                down_since_us.map_or(String::new(), |since| format!(", which is down since {since:.1} µs,"));
            // A count of one link: the link may have lost the packet, or the queue before it may have dropped it.
            Some(format!(
                "the last packet that {of} lost was lost at {at:.1} µs by the link {link}{down} or the queue before it"
            ))
        })
    }
}

impl Queues {
    fn text(&self) -> String {
        let Some(longest) = &self.longest else { return "no data packet had to wait at a switch".to_owned() };
        let mut text = format!("{} at most, at {}", size(longest.queue_max_bytes as f64), longest.link);
        for (kind, max, mean) in self.kinds.iter().filter(|(.., mean)| *mean > 0.0) {
            let max = max.map_or(String::new(), |max| format!("{} at most, ", size(max as f64)));
            text += &format!("; in one {kind} {max}{} on average", size(*mean));
        }
        for (priority, (max, mean)) in self.priorities.iter().enumerate().filter(|(_, (max, _))| *max > 0) {
            let [max, mean] = [*max as f64, *mean].map(size);
            text += &format!("; of priority {priority} at one port {max} at most, {mean} on average");
        }
        text
    }
}

/// Bytes for people.
fn size(bytes: f64) -> String {
    match bytes {
        bytes if bytes >= 1e6 => format!("{:.2} MB", bytes / 1e6),
        bytes if bytes >= 1e3 => format!("{:.1} kB", bytes / 1e3),
        bytes => format!("{bytes:.0} B"),
    }
}

struct Hot<'a> {
    measures: &'a Measures,
    topology: &'a Topology,
    names: &'a Names,
}

impl Hot<'_> {
    fn utilisation(&self, link: &LinkMeasures) -> f64 {
        utilisation(link, self.topology, self.measures.time)
    }

    fn link(&self, link: &LinkMeasures) -> Link {
        Link {
            link: self.names.link(self.topology, link.port),
            utilisation: self.utilisation(link),
            queue_max_bytes: link.queue_max_bytes,
            queue_mean_bytes: link.queue_mean_bytes,
            trimmed: link.trimmed,
            dropped: link.dropped,
            lost: link.lost,
            marked: link.marked,
        }
    }

    /// The links with the largest values above zero, by port if these are equal.
    fn most(&self, value: impl Fn(&LinkMeasures) -> f64) -> Vec<Link> {
        let mut links: Vec<(f64, &LinkMeasures)> = self
            .measures
            .links
            .iter()
            .map(|link| (value(link), link))
            .filter(|(value, _)| *value > 0.0)
            .collect();
        links.sort_by(|(a, x), (b, y)| b.total_cmp(a).then(x.port.cmp(&y.port)));
        links.iter().take(HOTTEST).map(|(_, link)| self.link(link)).collect()
    }

    fn kind(&self, switch: &SwitchMeasures) -> String {
        self.names.kind(Node::Switch(switch.switch))
    }

    fn queues(&self) -> Queues {
        // The switches of a graph may have any names.
        let different: BTreeSet<String> = self.measures.switches.iter().map(|s| self.kind(s)).collect();
        let many = different.len() > MOST_KINDS;
        let mut kinds: Vec<(String, Option<u64>, f64, f64)> = Vec::new();
        for switch in &self.measures.switches {
            let kind = if many { "switch".to_owned() } else { self.kind(switch) };
            let index = kinds.iter().position(|(name, ..)| *name == kind).unwrap_or_else(|| {
                kinds.push((kind, None, 0.0, 0.0));
                kinds.len() - 1
            });
            let (_, max, sum, count) = &mut kinds[index];
            *max = (*max).max(switch.queue_max_bytes);
            *sum += switch.queue_mean_bytes;
            *count += 1.0;
        }
        let mut priorities: Vec<(u64, f64)> = Vec::new();
        for queue in &self.measures.priorities {
            let priority = usize::from(queue.priority);
            priorities.resize(priorities.len().max(priority + 1), (0, 0.0));
            let (max, mean) = &mut priorities[priority];
            (*max, *mean) = ((*max).max(queue.queue_max_bytes), mean.max(queue.queue_mean_bytes));
        }
        Queues {
            priorities,
            longest: self.most(|link| link.queue_max_bytes as f64).into_iter().next(),
            longest_mean: self.most(|link| link.queue_mean_bytes).into_iter().next(),
            kinds: kinds.into_iter().map(|(name, max, sum, count)| (name, max, sum / count)).collect(),
        }
    }

    fn unfinished(&self, run: &RunReport) -> Vec<UnfinishedFlow> {
        let us = |time: Time| time.since(Time::ZERO).as_us_f64();
        let flow = |unfinished: &weft_testbed::sim::Unfinished| {
            let (flow, loss) = (&run.flows[unfinished.flow as usize], unfinished.last_loss);
            UnfinishedFlow {
                flow: flow.id,
                src: flow.src,
                dst: flow.dst,
                lost_by: loss.map(|loss| self.names.link(self.topology, loss.port)),
                lost_at_us: loss.map(|loss| us(loss.at)),
                down_since_us: loss.and_then(|loss| loss.down_since).map(us),
            }
        };
        self.measures.unfinished.iter().map(flow).collect()
    }
}

/// Bytes sent over the bytes that the link could have carried in `time` at its rate in the topology.
fn utilisation(link: &LinkMeasures, topology: &Topology, time: Span) -> f64 {
    let possible = topology.port(link.port).rate.as_bps() as f64 / 8.0 * time.as_secs_f64();
    if possible > 0.0 { link.sent_bytes as f64 / possible } else { 0.0 }
}

/// Writes a row for each link, by port, and one for each switch, whose `peer` is empty. Where switches have several
/// priorities, each row has the queue of each of them at its port too.
pub(crate) fn write_links(measures: &Measures, topology: &Topology, out: impl Write) -> io::Result<()> {
    let (mut out, names) = (BufWriter::new(out), Names::of(topology));
    let priorities = measures.priorities.iter().map(|queue| queue.priority + 1).max().unwrap_or(0);
    let head = |priority| format!(",queue_{priority}_max_bytes,queue_{priority}_mean_bytes");
    writeln!(
        out,
        "owner,peer,port,tier,direction,sent_bytes,utilisation,queue_max_bytes,queue_mean_bytes,trimmed,dropped,lost,\
         ecn_marked{}",
        (0..priorities).map(head).collect::<String>()
    )?;
    // Hosts and switches as a whole have none.
    let none = ",,".repeat(priorities.into());
    let mut queues = measures.priorities.iter().peekable();
    for link in &measures.links {
        let spec = topology.port(link.port);
        let direction = match spec.direction {
            Direction::Up => "up",
            Direction::Down => "down",
            Direction::Across => "across",
        };
        let (owner, peer) = (names.text(spec.owner), names.text(spec.peer));
        let LinkMeasures {
            port,
            sent_bytes,
            queue_max_bytes,
            queue_mean_bytes,
            trimmed,
            dropped,
            lost,
            marked,
        } = link;
        let share = utilisation(link, topology, measures.time);
        let mut own = String::new();
        while let Some(queue) = queues.next_if(|queue| queue.port == *port) {
            own += &format!(",{},{}", queue.queue_max_bytes, queue.queue_mean_bytes);
        }
        let own = if own.is_empty() { &none } else { &own };
        writeln!(
            out,
            "{owner},{peer},{},{},{direction},{sent_bytes},{share},{queue_max_bytes},{queue_mean_bytes},{trimmed},\
             {dropped},{lost},{marked}{own}",
            port.0, spec.tier
        )?;
    }
    for switch in &measures.switches {
        let ports = topology.ports_of(switch.switch);
        let own = &measures.links[ports.first.0 as usize..][..ports.count as usize];
        let sum = |of: fn(&LinkMeasures) -> u64| own.iter().map(of).sum::<u64>();
        let max = switch.queue_max_bytes.map_or(String::new(), |max| max.to_string());
        writeln!(
            out,
            "{},,,{},,{},,{max},{},{},{},{},{}{none}",
            names.text(Node::Switch(switch.switch)),
            topology.place(switch.switch).map_or(String::new(), |place| place.tier.to_string()),
            sum(|link| link.sent_bytes),
            switch.queue_mean_bytes,
            sum(|link| link.trimmed),
            sum(|link| link.dropped),
            sum(|link| link.lost),
            sum(|link| link.marked)
        )?;
    }
    out.flush()
}
