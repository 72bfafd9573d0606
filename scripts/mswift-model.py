#!/usr/bin/env python3
"""Models of single packets beside claims of the MSwift paper that weft's simulations do not confirm (docs/reproduce.md).

It shares no code with weft: Algorithm 1 of the Swift paper, paths of constant delay, and queues. The parameters are those
of `weft reproduce mswift`. Four tables:

1. Theorem 3 and one Swift flow, a round robin over n paths of which one is slow (figure 4). A hole counts as a loss once three
   packets are received beyond it.
2. The model of reordering-resilient Swift and one such flow (figure 5), which ignores holes.
3. An incast of 50 flows with medians of several histories (figures 8 and 14).
4. A permutation with elephants, by history (figure 6c), with long queues and with short ones.

In the first two, further columns have the same with a cause of the difference removed.

Usage: scripts/mswift-model.py (about two minutes)
"""

import heapq
import math
import random

PAYLOAD = 4000 * 8  # bits of a packet
LINE = 4064 * 8 / 100e3  # µs of a packet on a link
SHORT, LONG = 14.0, 28.0  # RTTs of an idle path and of the slow one, µs: Ts and Tl
BASE = 15.8  # base_target + topology_scaling, µs
AI, BETA, MAX_MDF, LEAST = 1.0, 0.8, 0.5, 0.001
FS_RANGE, FS_MIN, FS_MAX = 41.25, 0.1, 100.0
ALPHA = FS_RANGE / (1 / math.sqrt(FS_MIN) - 1 / math.sqrt(FS_MAX))
FIRST_WINDOW = 15.0  # packets
FLOW = 5000  # packets of a flow of 20 MB
QUEUE = 44  # packets that fit into the queue of the incast
LOSSES = 5  # within an RTT, after which LSwift shrinks its window
PATHS = (9, 16, 25, 36, 49, 64, 81, 100, 121)  # of the nine fat trees


def target(window, scaling=True):
    """The target of the delay of a flow with `window` packets."""
    scaled = ALPHA / math.sqrt(window) - ALPHA / math.sqrt(FS_MAX)
    return BASE + (max(0.0, min(scaled, FS_RANGE)) if scaling else 0.0)


def factor(delay, goal):
    """What a decrease leaves of a window."""
    return max(1 - BETA * (delay - goal) / delay, 1 - MAX_MDF)


def gbps(packets_per_rtt):
    return packets_per_rtt * PAYLOAD / SHORT / 1e3


def theorem_3(paths):
    """The greatest window of the sawtooth, and the mean packets per RTT."""
    greatest = math.sqrt(AI * paths / ((1 - MAX_MDF / 2) * MAX_MDF))
    return greatest, math.sqrt((1 / MAX_MDF - 1 / 2) * AI * paths)


def resilient(paths):
    """The same for reordering-resilient Swift, whose decrease depends on the target and so on the window. The paper solves
    this by an approximation; here it is solved as it stands."""
    least, greatest = 1.0, 1000.0
    for _ in range(100):
        window = (least + greatest) / 2
        share = 1 - factor(LONG, target(window))
        if window * window * share * (1 - share / 2) < AI * paths:
            least = window
        else:
            greatest = window
    return window, AI * paths / (window * share)


class Swift:
    """The window of a flow: Algorithm 1. `limit` says which RTT has to pass between two decreases."""

    def __init__(self, scaling=True, limit="last"):
        self.window, self.scaling, self.limit = FIRST_WINDOW, scaling, limit
        self.rtt, self.smoothed, self.decreased = SHORT, SHORT, -math.inf

    def may_decrease(self, now):
        rtt = {"last": self.rtt, "smoothed": self.smoothed, "idle": SHORT}[self.limit]
        return now - self.decreased >= rtt - 1e-9

    def decrease(self, now, left):
        if self.may_decrease(now):
            self.window, self.decreased = max(self.window * left, LEAST), now

    def on_ack(self, now, delay):
        self.rtt = delay
        goal = target(self.window, self.scaling)
        if delay < goal:
            self.window += AI / max(self.window, 1.0)
        else:
            self.decrease(now, factor(delay, goal))
        self.smoothed += (delay - self.smoothed) / 8


def one_flow(paths, holes, limit="last", place=True, rounded=False, packets=4 * FLOW):
    """Goodput of a flow that sends packet i over path i mod `paths`, of which the first is slow. `holes` says whether holes
    count as losses. Without `place` a slow packet leaves the window when one of a short path would. If windows are
    `rounded`, 2.5 packets have room for three and 2.4 for two; otherwise both have room for two."""
    flow, room = Swift(limit=limit), 0.5 if rounded else 0.0
    now = free = began = 0.0
    sent = received = in_flight = beyond = recovery = 0
    events, early = [], set()
    while received < packets:
        while in_flight == 0 or in_flight + 1 <= flow.window + room:
            at = max(now, free)
            free = at + LINE
            slow = sent % paths == 0
            heapq.heappush(events, (at + (LONG if slow else SHORT), True, sent, at))
            if slow and not place:
                heapq.heappush(events, (at + SHORT, False, sent, at))
            sent, in_flight = sent + 1, in_flight + 1
        now, is_ack, number, at = heapq.heappop(events)
        if not is_ack or place or number % paths:
            in_flight -= 1
        if not is_ack:
            continue
        flow.on_ack(now, now - at)
        received += 1
        if received == packets // 4:
            began = now
        early.add(number)
        while beyond in early:
            early.discard(beyond)
            beyond += 1
        if holes and len(early) >= 3 and beyond >= recovery:
            recovery = sent
            flow.decrease(now, 1 - MAX_MDF)
    return (packets - packets // 4) * PAYLOAD / (now - began) / 1e3


class Sender(Swift):
    """LSwift that sends a flow, with a median of `share` of a window, but of `least` to `most` RTTs."""

    def __init__(self, scaling, history, packets=FLOW):
        super().__init__(scaling)
        self.share, self.most, self.least = history
        self.delays, self.left, self.in_flight, self.acked = [], packets, 0, 0
        self.free, self.paced, self.lost, self.lost_since = 0.0, False, 0, 0.0
        self.sent_at = -math.inf

    def median(self, delay):
        self.delays.append(delay)
        if len(self.delays) > max(self.most, self.least):
            del self.delays[0]
        count = int(max(min(self.share * self.window, self.most), self.least))
        recent = sorted(self.delays[-count:])
        return recent[(len(recent) - 1) // 2]

    def lose(self, now):
        self.left += 1
        if self.lost == 0 or now - self.lost_since >= self.rtt:
            self.lost, self.lost_since = 0, now
        self.lost += 1
        if self.lost == LOSSES:
            self.lost = 0
            self.decrease(now, 1 - MAX_MDF)


ARRIVAL, ACK, LOSS, TURN = range(4)


def incast(scaling, history, flows=50):
    """The end of the last of `flows` to one link with one queue, in ms; the mean window in packets before the first ends;
    and the share of that time in which the link was busy. Lost packets are known one RTT after they were sent."""
    senders = [Sender(scaling, history) for _ in range(flows)]
    draw = random.Random(1)
    events, now, free, done, windows = [], 0.0, 0.0, 0, 0.0
    first = None

    def send(index, now):
        sender = senders[index]
        while sender.left:
            at = max(now, sender.free)
            if sender.window < 1:
                due = sender.sent_at + sender.rtt / sender.window
                if sender.in_flight or sender.paced:
                    return
                if due > at:
                    sender.paced = True
                    heapq.heappush(events, (due, TURN, index, 0.0))
                    return
            elif sender.in_flight + 1 > sender.window:
                return
            sender.free, sender.sent_at = at + LINE, at
            sender.left, sender.in_flight = sender.left - 1, sender.in_flight + 1
            heapq.heappush(events, (at + SHORT / 2, ARRIVAL, index, at))

    for index in range(flows):
        send(index, draw.random())
    busy = 0
    while events:
        now, what, index, at = heapq.heappop(events)
        sender = senders[index]
        if what == ARRIVAL:
            wait = max(free - now, 0.0)
            if wait >= QUEUE * LINE:
                heapq.heappush(events, (now + wait + SHORT / 2, LOSS, index, at))
                continue
            free = max(free, now) + LINE
            busy += first is None
            heapq.heappush(events, (now + wait + SHORT / 2, ACK, index, at))
            continue
        if what == TURN:
            sender.paced = False
        else:
            sender.in_flight -= 1
        if what == LOSS:
            sender.lose(now)
        elif what == ACK:
            sender.on_ack(now, sender.median(now - at))
            sender.acked += 1
            if sender.acked == FLOW and first is None:
                first = now
                windows = sorted(each.window for each in senders)[flows // 2]
        send(index, now)
    return now / 1e3, windows, busy * LINE / first


class Permutation:
    """Flows of 5 MB from each of 250 hosts to another, over a random path of 25 for each packet, of a fat tree of ten ports a
    switch. Six of them, elephants, take one path at half of the line rate and obey nothing. A packet waits in the queues of
    its way; its ACK does not. Of a queue with `random_drops` a packet with room for less than three is dropped one time in
    ten even so, as htsim's Swift program does. Losses are known after one and a half RTTs."""

    RADIX, ELEPHANTS, PACKETS = 10, 6, 1250

    def __init__(self, history, queue, random_drops, seed):
        self.queue, self.random_drops, self.draw = queue, random_drops, random.Random(seed)
        half = self.RADIX // 2
        self.hosts, self.paths = half * half * self.RADIX, half * half
        order = list(range(self.hosts))
        while any(src == dst for src, dst in enumerate(order)):
            self.draw.shuffle(order)
        self.routes = [[self.route(src, dst, path) for path in range(self.paths)] for src, dst in enumerate(order)]
        self.elephants = set(self.draw.sample(range(self.hosts), self.ELEPHANTS))
        self.senders = [Sender(True, history, self.PACKETS) for _ in range(self.hosts)]
        self.free = {}  # when a link has carried what was given to it
        self.events, self.count, self.ends = [], 0, []

    def route(self, src, dst, path):
        """The links after the first one of a packet from `src` to `dst`."""
        half = self.RADIX // 2
        agg, core = divmod(path, half)
        rack, there = src // half, dst // half
        last = ("host", dst)
        if rack == there:
            return (last,)
        up, down = ("tor", rack, agg), ("agg", there, agg)
        if rack // half == there // half:
            return (up, down, last)
        return (up, ("core", rack // half, agg, core), ("pod", there // half, agg, core), down, last)

    def at(self, when, what, flow, sent, rest):
        self.count += 1
        heapq.heappush(self.events, (when, self.count, what, flow, sent, rest))

    def send(self, flow, now):
        sender = self.senders[flow]
        while sender.left and sender.in_flight + 1 <= max(sender.window, 1.0):
            sent = max(now, sender.free)
            sender.free = sent + LINE
            sender.left, sender.in_flight = sender.left - 1, sender.in_flight + 1
            route = self.routes[flow][self.draw.randrange(self.paths)]
            self.at(sent + LINE + 1, ARRIVAL, flow, sent, (route, 0))

    def arrive(self, flow, now, sent, route, hop):
        """A packet reaches a link, or its host. `sent` is negative for those of elephants."""
        if hop == len(route):
            if sent >= 0:
                self.at(now + (hop + 1) * (1 + 64 * 8 / 100e3), ACK, flow, sent, None)
            return
        free = self.free.get(route[hop], 0.0)
        room = self.queue - max(free - now, 0.0) / LINE
        if room < 1 or (self.random_drops and room < 3 and self.draw.random() < 0.1):
            if sent >= 0:
                self.at(max(now, sent + 1.5 * self.senders[flow].rtt), LOSS, flow, sent, None)
            return
        self.free[route[hop]] = max(free, now) + LINE
        self.at(max(free, now) + LINE + 1, ARRIVAL, flow, sent, (route, hop + 1))

    def run(self):
        """The 99th percentile of the completion times, µs."""
        for flow in range(self.hosts):
            if flow in self.elephants:
                path = self.routes[flow][self.draw.randrange(self.paths)]
                self.at(self.draw.random(), TURN, flow, -1.0, (path, 0))
            else:
                self.send(flow, self.draw.random())
        while len(self.ends) < self.hosts - self.ELEPHANTS:
            now, _, what, flow, sent, rest = heapq.heappop(self.events)
            if what == ARRIVAL:
                self.arrive(flow, now, sent, *rest)
                continue
            if what == TURN:
                self.at(now + LINE + 1, ARRIVAL, flow, sent, rest)
                self.at(now + 2 * LINE, TURN, flow, sent, rest)
                continue
            sender = self.senders[flow]
            sender.in_flight -= 1
            if what == LOSS:
                sender.lose(now)
            else:
                sender.on_ack(now, sender.median(now - sent))
                sender.acked += 1
                if sender.acked == self.PACKETS:
                    self.ends.append(now)
            self.send(flow, now)
        return self.ends[int(0.99 * len(self.ends))]


HISTORIES = {
    "1 (LSwift)": (0.5, 1, 1),
    "5": (0.5, 5, 5),
    "10": (0.5, 10, 10),
    "40": (0.5, 40, 40),
    "bounded window": (0.5, 10, 3),
}


def print_models():
    print("1. Swift, one slow path of n. Goodput of Theorem 3, and of a packet model over it: as it is; if slow packets keep")
    print("   no place in the window; if windows are rounded, not cut, to whole packets. The theorem assumes that three packets")
    print("   follow a slow one, so windows of at least 4.")
    print("     n   windows   Gbit/s   model   no place   rounded")
    for paths in PATHS:
        window, mean = theorem_3(paths)
        form = gbps(mean)
        ratios = [one_flow(paths, True, **removed) / form for removed in ({}, {"place": False}, {"rounded": True})]
        print(f"   {paths:3}  {window / 2:4.1f}-{window:4.1f}    {form:5.2f}    {ratios[0]:.2f}       {ratios[1]:.2f}      {ratios[2]:.2f}")
    print()
    print("2. Reordering-resilient Swift. As above, and: if a window may shrink once in the RTT of an idle path, not of the slow")
    print("   packet; once in the smoothed RTT; once in the RTT of an idle path, with rounded windows.")
    print("     n   windows   period, RTTs   Gbit/s   model   idle RTT   smoothed   idle RTT, rounded")
    for paths in PATHS:
        window, mean = resilient(paths)
        form, period = gbps(mean), paths / mean
        variants = ({}, {"limit": "idle"}, {"limit": "smoothed"}, {"limit": "idle", "rounded": True})
        ratios = [one_flow(paths, False, **removed) / form for removed in variants]
        print(
            f"   {paths:3}  {window - period:4.1f}-{window:4.1f}       {period:4.1f}       {form:5.2f}    {ratios[0]:.2f}       {ratios[1]:.2f}"
            f"       {ratios[2]:.2f}       {ratios[3]:.2f}"
        )


def print_incast():
    print("3. Incast of 50 flows of 20 MB. End of the last flow by history; median of the windows, and how busy the link was,")
    print("   when the first flow ended.")
    print("   history           with flow scaling              without")
    bases = {}
    for name, history in HISTORIES.items():
        cells = []
        for scaling in (True, False):
            end, window, busy = incast(scaling, history)
            base = bases.setdefault(scaling, end)
            cells.append(f"{end:6.1f} ms  {end / base:.2f}  {window:4.2f}  {busy:.3f}")
        print(f"   {name:15} {cells[0]}   {cells[1]}", flush=True)


def print_permutation(seeds=(1, 2)):
    print("4. Permutation of 250 hosts with six elephants, flows of 5 MB: 99th percentile of completion times over that with a")
    print(f"   history of 10, mean of {len(seeds)} seeds. Queues of one BDP; and of 8 packets, with htsim's random drops.")
    print("   history           44 packets   8 packets")
    means = {}
    for queue in (44, 8):
        for name in ("10", "1 (LSwift)", "5", "40"):
            ends = [Permutation(HISTORIES[name], queue, queue == 8, seed).run() for seed in seeds]
            means[name, queue] = sum(ends) / len(seeds)
    for name in ("1 (LSwift)", "5", "10", "40"):
        ratios = [means[name, queue] / means["10", queue] for queue in (44, 8)]
        print(f"   {name:15}      {ratios[0]:.3f}        {ratios[1]:.3f}", flush=True)


def main():
    print_models()
    print()
    print_incast()
    print()
    print_permutation()


if __name__ == "__main__":
    main()
