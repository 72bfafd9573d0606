"""The campaigns of scripts/soak.sh, which says how to use it.

Each campaign is a function of a seed. It draws a case, runs it, and returns what it has counted; it raises Failed with
the reason if something that must be true is not. Processes and sockets that it makes end with it.
"""
import argparse
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

WEFT = os.environ.get("WEFT", "weft")
PORT = 4793
ENTROPY = 0xC000
# The silence after which a peer is given up: 63 times RTO.
RTO_MS = 20
SILENCE = 63 * RTO_MS / 1000
# How much longer than that it may take until a peer is given up and the process has ended, unless the machine is held up, seconds.
SOON = 3
# How long a client waits for what its server owes it as an application, though it has acknowledged all packets, seconds.
PATIENCE = 30
# How much longer than its bounds a process may take on a busy machine, seconds.
LATE = 30


class Failed(Exception):
    """Something that must be true is not."""


class Pulse:
    """Notices how long the machine keeps this process from running, and so others of its priority."""

    TICK = 0.01

    def __init__(self):
        self.longest = 0.0
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        before = time.monotonic()
        while True:
            time.sleep(Pulse.TICK)
            now = time.monotonic()
            self.longest = max(self.longest, now - before - Pulse.TICK)
            before = now


class Counts:
    """What a run has come to: cases, packets, payload bytes; the latter two are None where the run itself does not count them."""

    def __init__(self, cases=0, packets=None, bytes=None):
        self.cases, self.packets, self.bytes = cases, packets, bytes

    def add(self, other):
        def total(a, b):
            return a if b is None else (a or 0) + b

        self.cases += other.cases
        self.packets = total(self.packets, other.packets)
        self.bytes = total(self.bytes, other.bytes)


class Process:
    """A program whose output is kept. It is killed at the end of a `with` block if it still runs."""

    def __init__(self, command, environment=None):
        self.command = command
        self.output = tempfile.TemporaryFile()
        self.child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.child.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
            self.child.wait()
        self.output.close()

    def signal(self, number):
        try:
            os.killpg(self.child.pid, number)
        except ProcessLookupError:
            pass

    def said(self):
        self.output.seek(0)
        return self.output.read().decode(errors="replace")

    def tail(self):
        return "\n".join(self.said().strip().split("\n")[-25:])

    def wait(self, seconds, what):
        """The exit status, within a bound."""
        try:
            return self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"{what} still runs after {seconds:.0f} s\n{self.tail()}") from None


def cargo_test(package, target, name, environment, seconds):
    """Runs tests of the repository and returns what they have printed."""
    where = ["--lib"] if target == "lib" else ["--test", target]
    command = ["cargo", "test", "--quiet", "--profile", "ci", "-p", package, *where]
    command += ["--", *name, "--nocapture"]
    with Process(command, environment) as process:
        status = process.wait(seconds, " ".join(command))
        if status != 0:
            repeat = " ".join([*(f"{key}={value}" for key, value in environment.items()), *command])
            raise Failed(f"repeat with: {repeat}\n{process.tail()}")
        return process.said()


def counted(said, cases, tests):
    """What tests say that they have run, so many cases each."""
    counts = Counts()
    for packets, payload in re.findall(r"cases: (\d+) packets, (\d+) bytes", said):
        counts.add(Counts(cases, int(packets), int(payload)))
    if counts.cases != tests * cases:
        raise Failed(f"the tests have not said what they have run:\n{said[-2000:]}")
    return counts


def fabrics(seed):
    """Simulated: random fabrics, faults and workloads; every flow ends as the faults explain, within its bound."""
    cases = 40
    environment = {"WEFT_FABRIC_CASES": str(cases), "WEFT_FABRIC_SEED": str(seed)}
    said = cargo_test("weft-testbed", "random_fabrics", ["every_message_arrives_once"], environment, 600)
    return counted(said, cases, 2)


def endpoints(seed):
    """Simulated: two endpoints, any calls at any time, any fault of the channel, forged packets; then it heals."""
    cases = 1500
    environment = {"WEFT_ENDPOINT_CASES": str(cases), "WEFT_ENDPOINT_SEED": str(seed % 2**32)}
    said = cargo_test("weft-stack", "virtual_time", ["endpoint_pair::every_message"], environment, 600)
    return counted(said, cases, 2)


def applications(seed, name, test, cases, tests=1):
    """Tests of sessions whose cases a seed draws, so many each."""
    environment = {f"WEFT_{name}_CASES": str(cases), f"WEFT_{name}_SEED": str(seed % 2**32)}
    return counted(cargo_test("weft-stack", "lib", [test], environment, 600), cases, tests)


def joint(seed):
    """Simulated: applications of a server and peers that do anything, over a channel that loses; limits add up, all bytes are
    compared, every command is executed, and when all have left nothing is there."""
    return applications(seed, "JOINT", "whatever_applications_and_peers_do", 400)


def siege(seed):
    """Simulated: the same with commands that are nonsense and forged packets; afterwards, or all the time, an application and its
    peer exchange messages within a bound, and when all have left nothing is there."""
    return applications(seed, "SIEGE", "any_mix_of_attacks", 200, 2)


def address(seed, n):
    """Address `n` of a run: other runs at the same time have others."""
    return f"127.{64 + os.getpid() % 60}.{seed % 250 + 1}.{n}"


class Way:
    """What happens to the datagrams of one direction: some are lost, copied and delayed, all of them, or the long or the
    short ones only."""

    # Acknowledgements have fewer bytes than all data of `path` but the shortest.
    LONG = 500

    def __init__(self, rng):
        self.lose, self.copy = rng.choice([0, 0.01, 0.05]), rng.choice([0, 0.02])
        self.late = rng.choice([0, 0.05])
        self.hits = rng.choice(["all", "long", "short"])

    def spares(self, length):
        return self.hits == ("short" if length > Way.LONG else "long")


class Network:
    """A network between a client at address 2 and a server at address 3, which take it for each other at addresses 1 and
    4. Its two directions have faults of their own, and outages, in which a direction loses all that its faults hit, or
    both do. It can heal."""

    def __init__(self, seed, rng, outages):
        self.rng = random.Random(rng.random())
        # Begin, end, and the directions: towards the server is 0, towards the client 1.
        self.outages = [(begin, end, rng.choice([(0,), (1,), (0, 1)])) for begin, end in outages]
        self.over, self.healed = threading.Event(), threading.Event()
        self.passed = self.lost = 0
        ip = [address(seed, n) for n in range(5)]
        towards_server = (bound(ip[1], PORT), bound(ip[4], ENTROPY), (ip[3], PORT), 0, Way(rng))
        towards_client = (bound(ip[4], PORT), bound(ip[1], ENTROPY), (ip[2], PORT), 1, Way(rng))
        self.ways = [towards_server, towards_client]
        self.begin = time.monotonic()
        self.thread = threading.Thread(target=self.forward, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        for inside, outside, *_ in self.ways:
            inside.close()
            outside.close()

    def is_out(self, number):
        at = time.monotonic() - self.begin
        return any(begin <= at < end and number in numbers for begin, end, numbers in self.outages)

    def forward(self):
        held = []
        by_socket = {way[0]: way for way in self.ways}
        while not self.over.is_set():
            ready, _, _ = select.select(list(by_socket), [], [], 0.002 if held else 0.02)
            now = time.monotonic()
            for inside in ready:
                _, outside, to, number, way = by_socket[inside]
                try:
                    datagram = inside.recv(1 << 16)
                except OSError:
                    continue
                for due in self.fates(len(datagram), now, number, way):
                    held.append((due, outside, to, datagram))
            later = []
            for entry in held:
                due, outside, to, datagram = entry
                if due > now:
                    later.append(entry)
                    continue
                try:
                    outside.sendto(datagram, to)
                    self.passed += 1
                except OSError:
                    # The port is closed, or its queue is full: lost.
                    self.lost += 1
            held = later

    def fates(self, length, now, number, way):
        """When copies of a datagram arrive."""
        if self.healed.is_set() or way.spares(length):
            return [now]
        if self.is_out(number) or self.rng.random() < way.lose:
            self.lost += 1
            return []
        late = now + 0.005 if self.rng.random() < way.late else now
        return [now, late] if self.rng.random() < way.copy else [late]


def bound(ip, port):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    one.bind((ip, port))
    one.setblocking(False)
    return one


class Noise:
    """Datagrams that are no packets, or begin like some, from a host that nobody knows."""

    def __init__(self, seed, rng, targets):
        self.rng, self.targets, self.sent = random.Random(rng.random()), targets, 0
        self.socket = bound(address(seed, 9), ENTROPY)
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        self.socket.close()

    def run(self):
        while not self.over.wait(0.001):
            kind = self.rng.choice([0, 2, 3, 4, 6, 7, 8, 10, 11, 13, self.rng.randrange(32)])
            datagram = bytes([kind << 3 | self.rng.randrange(8)]) + self.rng.randbytes(self.rng.randrange(120))
            try:
                self.socket.sendto(datagram, (self.rng.choice(self.targets), PORT))
                self.sent += 1
            except OSError:
                pass


def listed(what):
    """The names that `weft list` prints in its first column, without those that stand for combinations."""
    said = subprocess.run([WEFT, "list", what], check=True, capture_output=True, text=True).stdout
    return [line.split()[0] for line in said.split("\n") if line and line[0] != " " and line.split()[0].islower()]


def algorithms(rng):
    """A congestion control, alone, with receiver credit, or behind a median; and a load balancer."""
    one = rng.choice(listed("cc"))
    cc = rng.choice([one, one, one if one == "rccc" else f"{one}+rccc", "median(nscc)"])
    return ["--cc", cc, "--lb", rng.choice(listed("lb"))]


def perf_options(rng, longest="1MiB"):
    """What both ends of a test are told, and what the client is."""
    both = [*algorithms(rng), "--trim", rng.choice(["on", "off"])]
    both += ["--payload", str(rng.choice([1000, 4096, 8000])), "--rto", f"{RTO_MS}ms", "--patience", f"{PATIENCE}s"]
    test = {
        "throughput": ["--size", rng.choice(["1", "5000", "64KiB", longest])],
        "rate": ["--size", rng.choice(["0", "64", "1000"])],
        "latency": ["--size", rng.choice(["64", "20000"])],
    }
    mode = rng.choice(list(test))
    client = ["--mode", mode, *test[mode], "--verify"]
    if mode != "latency":
        client += ["--connections", str(rng.choice([1, 3, 16]))]
    return both, client


def server_at(ip, both, entropies=8):
    process = Process([WEFT, "perf", "server", "--port", f"udp:{ip},entropies={entropies}", *both])
    time.sleep(0.3)
    return process


def client_at(ip, server, options, seconds, entropies=8):
    port = f"udp:{ip},entropies={entropies}"
    duration = ["--duration", f"{seconds * 1000:.0f}ms"]
    return Process([WEFT, "perf", "client", server, "--port", port, *options, *duration, "--json", "-"])


def finish(client, server, seconds, what):
    """The counts of a test that has to succeed."""
    try:
        status = client.wait(seconds, what)
    except Failed as failed:
        raise Failed(f"{failed}\nof {' '.join(client.command)}\nits server:\n{server.tail()}") from None
    if status != 0:
        of = f"of {' '.join(client.command)}\n{client.tail()}\nits server:\n{server.tail()}"
        raise Failed(f"{what} has failed with exit status {status}\n{of}")
    lines = [line for line in client.said().split("\n") if line.startswith("{")]
    report = json.loads(lines[-1])
    ends = [report["client"], report["server"]]
    if any(end and (end["wrong_bytes"] or end["wrong_messages"]) for end in ends):
        raise Failed(f"{what} has received wrong bytes: {lines[-1]}")
    return Counts(1, report["client"]["packets"] + report["client"]["retransmitted"], report["client"]["bytes"])


def path(seed):
    """Real: weft perf with --verify over a path whose directions lose, copy, delay and fail, each in its own way, all
    datagrams, long or short ones; with nonsense beside it."""
    rng = random.Random(seed)
    both, test = perf_options(rng, "100KiB")
    outages = [(at, at + rng.uniform(0.05, SILENCE / 3)) for at in (rng.uniform(0.5, 2), rng.uniform(2.5, 4))]
    one, two, three = (address(seed, n) for n in (1, 2, 3))
    with Network(seed, rng, outages) as network, Noise(seed, rng, [two, three]) as noise:
        # The network has one port of each end.
        with server_at(three, both, 1) as server, client_at(two, one, [*both, *test], 4, 1) as client:
            time.sleep(5)
            network.healed.set()
            noise.over.set()
            return finish(client, server, LATE, "a transfer whose path has healed")


def stopped(seed):
    """Real: an end of a transfer is stopped for less than the silence that is put up with, again and again."""
    rng = random.Random(seed)
    both, test = perf_options(rng)
    own, other = address(seed, 2), address(seed, 3)
    with server_at(other, both) as server, client_at(own, other, [*both, *test], 4) as client:
        for _ in range(3):
            time.sleep(rng.uniform(0.2, 0.6))
            victim = rng.choice([server, client])
            victim.signal(signal.SIGSTOP)
            time.sleep(rng.uniform(0.01, SILENCE / 2))
            victim.signal(signal.SIGCONT)
        return finish(client, server, 4 + LATE, "a transfer whose ends go on")


def killed(seed):
    """Real: an end of a transfer is killed. The other one ends it within the stated bound: that of its transport if packets
    are owed, else its own patience. The next transfer works."""
    rng = random.Random(seed)
    both, test = perf_options(rng)
    own, other = address(seed, 2), address(seed, 3)
    with server_at(other, both) as server:
        with client_at(own, other, [*both, *test], 60) as client:
            time.sleep(rng.uniform(0.3, 1.5))
            if rng.random() < 0.5:
                server.signal(signal.SIGKILL)
                server.child.wait()
                begin = time.monotonic()
                status = client.wait(PATIENCE + LATE, "a client whose server is dead")
                took = time.monotonic() - begin
                # A server that was killed after it had acknowledged a message, but before it sent that back, owes no
                # packet: then only the client's patience ends its wait.
                reason = "no answer|nothing heard of .*\n.*no message to it waits for an acknowledgement"
                # Or in the middle of a message: then its silence does.
                reason += "|the sender fell silent after a part of the message"
                if status != 1 or not re.search(reason, client.said()):
                    raise Failed(f"after {took:.1f} s exit status {status} and no reason\n{client.tail()}")
                if "no answer" in client.said() and took > SILENCE + SOON:
                    bound = f"a peer that gives no answer is given up after {SILENCE:.2f} s"
                    raise Failed(f"{bound}: it took {took:.1f} s\n{client.tail()}")
                server = server_at(other, both)
            else:
                client.signal(signal.SIGKILL)
                client.child.wait()
        with server, client_at(own, other, [*both, *test], 1) as client:
            return finish(client, server, 1 + LATE, "the transfer after that")


def soft(seed):
    """Real: software switches that trim or drop, with links that fail, heal and lose; all bytes are compared."""
    rng = random.Random(seed)
    workload = rng.choice(["incast:3", "incast:7", "permutation", "all-to-all:8"])
    command = [WEFT, "run", "--on", "soft", "--topology", "leaf-spine:hosts=8,leaves=2,spines=2,link=100G,latency=1us"]
    size = rng.choice([256 << 10, 1 << 20])
    command += ["--workload", workload, "--size", str(size), "--seed", str(seed)]
    command += ["--trim", rng.choice(["on", "off"]), "--queue", rng.choice(["8KiB", "1bdp"]), "--until", "60s"]
    command += algorithms(rng)
    direction = rng.choice(["", "dir=up ", "dir=down "])
    fault = rng.choice(["drop=0.02", "corrupt=0.02", "gilbert=0.01,0.3", "ber=0.000002"])
    command += ["--link-event", f"0ms host={rng.randrange(8)} {direction}{fault}"]
    link = f"tier=0 switch={rng.randrange(2)} link={rng.randrange(2)} {rng.choice(['', 'dir=up ', 'dir=down '])}"
    fault = rng.choice(["fail", "drop-over=1000", "drop=0.3"])
    command += ["--link-event", f"20ms {link}{fault}", "--link-event", f"{rng.randrange(40, 300)}ms {link}restore"]
    with tempfile.TemporaryDirectory() as directory:
        report = os.path.join(directory, "report.json")
        with Process([*command, "--json", report]) as process:
            status = process.wait(60 + LATE, " ".join(command))
            if status != 0:
                raise Failed(f"exit status {status} of {' '.join(command)}\n{process.tail()}")
        with open(report, encoding="utf-8") as file:
            found = json.load(file)
    if found["flows"]["completed"] != found["flows"]["total"]:
        raise Failed(f"{found['flows']} of {' '.join(command)}")
    packets = found["packets"]
    sent = packets["data"] + packets["retransmitted"]
    return Counts(1, sent, found["flows"]["total"] * size)


def datagrams():
    """The UDP datagrams that this host has sent so far: those of all its processes."""
    with open("/proc/net/snmp", encoding="ascii") as file:
        names, values = (line.split() for line in file if line.startswith("Udp:"))
    return int(values[names.index("OutDatagrams")])


def serve(seed):
    """Real: applications of two servers of weft serve exchange messages, whose bytes are compared, while others are killed at any
    moment; and the other tests of weft serve, without chance."""
    cases = 5
    environment = {"WEFT_SERVE_CASES": str(cases), "WEFT_SERVE_SEED": str(seed % 2**32)}
    # No server says how many packets it has sent.
    before = datagrams()
    said = cargo_test("weft-apps", "serve", [], environment, 600)
    found = re.search(r"(\d+) cases: (\d+) bytes", said)
    if not found or int(found[1]) != cases:
        raise Failed(f"the tests have not said what they have run:\n{said[-2000:]}")
    # All tests but the drawn cases' count as one case each.
    passed = sum(map(int, re.findall(r"(\d+) passed", said)))
    return Counts(passed - 1 + cases, datagrams() - before, int(found[2]))


def libfabric(seed):
    """Real: random calls of the libfabric provider between two endpoints whose datagrams are lost, copied, reordered and trimmed, and
    between endpoints of two servers, with the same faults and without; every operation ends once, and as a model says."""
    seeds = 4
    first = seed % 2**32 * seeds + 1
    environment = {"WEFT_FI_SEEDS": f"{first}..{first + seeds}"}
    files = ["lossy::", "served_random::", "served_lossy::"]
    before = datagrams()
    said = cargo_test("weft-libfabric-provider", "in_process", files, environment, 900)
    payload = sum(map(int, re.findall(r"payload: (\d+) bytes", said)))
    passed = sum(map(int, re.findall(r"(\d+) passed", said)))
    if passed != 8:
        raise Failed(f"{passed} tests have passed instead of 8:\n{said[-2000:]}")
    return Counts(passed * seeds, datagrams() - before, payload)


CAMPAIGNS = [fabrics, endpoints, joint, siege, path, stopped, killed, soft, serve, libfabric]
SIMULATED = [fabrics, endpoints, joint, siege]
# A real campaign that fails proves nothing if the machine has kept its processes from running for as long as peers are waited for.
HELD_UP = SILENCE / 3
# How often the seed of such a campaign is repeated, until it is judged.
REPEATS = 2


def parse():
    parser = argparse.ArgumentParser(prog="soak.sh", add_help=False)
    parser.add_argument("minutes", type=float, nargs="?")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", choices=[campaign.__name__ for campaign in CAMPAIGNS])
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        for campaign in CAMPAIGNS:
            print(f"{campaign.__name__:<10} {' '.join(campaign.__doc__.split())}")
        sys.exit()
    if options.minutes is None or not 0 <= options.minutes <= 10_000:
        parser.error("MINUTES is a number from 0 to 10000")
    return options


class Soak:
    """What was run, and what came of it."""

    def __init__(self, campaigns, minutes, pulse):
        self.campaigns, self.pulse = campaigns, pulse
        self.begin = time.monotonic()
        self.end = self.begin + 60 * minutes
        # By campaign: rounds, what they have come to, and the seconds that the longest took.
        self.rounds = {campaign: 0 for campaign in campaigns}
        self.totals = {campaign: Counts() for campaign in campaigns}
        self.longest = {campaign: 0.0 for campaign in campaigns}
        # What failed with its seed and reason; what was run again with its seed; what was never judged, and for how long the
        # machine was held up.
        self.failures, self.repeated, self.unjudged = [], [], []

    def fits(self, campaign):
        """Whether it would be over in time if it takes as long as it has at most. The first run of each does."""
        return self.rounds[campaign] == 0 or time.monotonic() + self.longest[campaign] <= self.end

    def attempt(self, campaign, seed):
        """Runs it once. Returns for how many seconds the machine was held up if it has failed, but that proves nothing."""
        began = time.monotonic()
        self.pulse.longest = 0.0
        try:
            self.totals[campaign].add(campaign(seed))
        except Failed as failed:
            print(f"{campaign.__name__}, seed {seed}: {failed}", flush=True)
            if campaign not in SIMULATED and self.pulse.longest > HELD_UP:
                return self.pulse.longest
            self.failures.append((campaign, seed, failed))
        finally:
            self.longest[campaign] = max(self.longest[campaign], time.monotonic() - began)
        return None

    def run(self, campaign, seed):
        """Runs a campaign, and repeats the seed while the machine keeps it from being judged."""
        is_first = self.rounds[campaign] == 0
        self.rounds[campaign] += 1
        held_up = self.attempt(campaign, seed)
        for again in range(REPEATS):
            if held_up is None or not (is_first or self.fits(campaign)):
                break
            if again == 0:
                self.repeated.append((campaign, seed))
            print(f"{campaign.__name__}, seed {seed}: again, as the machine was held up for {held_up:.1f} s", flush=True)
            held_up = self.attempt(campaign, seed)
        if held_up is not None:
            self.unjudged.append((campaign, seed, held_up))

    def run_all(self, seed):
        """Runs campaigns with one seed after the other until none would be over in time."""
        while True:
            fitting = [campaign for campaign in self.campaigns if self.fits(campaign)]
            if not fitting:
                return
            for campaign in fitting:
                if self.fits(campaign):
                    self.run(campaign, seed)
            seed += 1

    def show(self):
        def number(value):
            return "-" if value is None else f"{value:,}"

        print(f"\n{'campaign':<10} {'rounds':>7} {'cases':>12} {'packets':>16} {'payload, bytes':>20} {'failed':>7}")
        for campaign in self.campaigns:
            counts = self.totals[campaign]
            failed = sum(1 for failure in self.failures if failure[0] is campaign)
            packets, payload = number(counts.packets), number(counts.bytes)
            rounds = self.rounds[campaign]
            print(f"{campaign.__name__:<10} {rounds:>7} {counts.cases:>12,} {packets:>16} {payload:>20} {failed:>7}")
        took, failures = time.monotonic() - self.begin, len(self.failures)
        repeated, unjudged = len(self.repeated), len(self.unjudged)
        print(f"{took:.0f} s, {failures} failures; {repeated} seeds repeated as the machine was held up, {unjudged} never judged")
        for campaign, seed, seconds in self.unjudged:
            print(f"never judged, as the machine was held up for {seconds:.1f} s: {repeat_of(campaign, seed)}")
        for campaign, seed, _ in self.failures:
            print(f"repeat with: {repeat_of(campaign, seed)}")


def repeat_of(campaign, seed):
    """The command that runs it again."""
    return f"scripts/soak.sh 0 --only {campaign.__name__} --seed {seed}"


def main():
    options = parse()
    chosen = [campaign for campaign in CAMPAIGNS if options.only in (None, campaign.__name__)]
    print(f"seeds from {options.seed} on, for {options.minutes:g} minutes", flush=True)
    soak = Soak(chosen, options.minutes, Pulse())
    try:
        soak.run_all(options.seed)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    finally:
        soak.show()
    if soak.failures:
        sys.exit(1)
    if soak.unjudged:
        sys.exit(2)


if __name__ == "__main__":
    main()
