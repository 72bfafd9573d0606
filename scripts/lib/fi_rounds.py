#!/usr/bin/env python3
"""The rounds of scripts/bench-libfabric.sh, which describes them: fi_rounds.py DIRECTORY OPTIONS. DIRECTORY holds fi_bandwidth and
the directory `provider`."""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time

TIMEOUT = 60
# Bytes that a measurement moves at most, and how many messages at most, and at least.
BYTES, TRANSFERS, MESSAGES, LEAST = 256 << 20, 5_000, 50_000, 16
# Whose name, of what, at which size, compared with whose, at which ratio.
BARS = [
    ("memif", "latency", 64, "tcp", "at most", 0.5),
    ("memif", "bandwidth", 1 << 20, "tcp", "at least", 1.0),
    ("udp", "bandwidth", 1 << 20, "rxd", "at least", 4.0),
    ("memif", "rate", 64, "tcp", "at least", 2.0),
]
FOREIGN = {"tcp": "tcp;ofi_rxm", "rxd": "udp;ofi_rxd", "shm": "shm"}


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--weft")
    parser.add_argument("--over", type=lambda text: text.split(","))
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--cores", type=lambda text: text.split(","))
    for flag in ("--tagged", "--realtime", "--verify", "--check"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    unknown = set(options.over) - {"memif", "serve", "udp", *FOREIGN}
    if unknown:
        sys.exit(f"bench-libfabric.sh: --over: nothing is called {', '.join(sorted(unknown))}")
    for name, what, size, other, _, _ in BARS if options.check else []:
        if not {name, other} <= set(options.over) or size not in options.sizes:
            sys.exit(f"bench-libfabric.sh: --check needs {what} of {size} bytes over {name} and {other}: see --over and --sizes")
    return options


OPTIONS = parse()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def environment(name, end):
    """What end 0 or 1 of a pair has in its environment."""
    own = dict(os.environ)
    if name in FOREIGN:
        # Providers in a directory of their own would be the only ones.
        own.pop("FI_PROVIDER_PATH", None)
        return own | {"FI_TCP_IFACE": "lo"}
    own["FI_PROVIDER_PATH"] = f"{OPTIONS.directory}/provider"
    role, ip = (("server", "10.0.0.1"), ("client", "10.0.0.2"))[end]
    if name == "memif":
        own["FI_WEFT_PORT"] = f"memif:{OPTIONS.directory}/memif,role={role},ip={ip}"
    elif name == "serve":
        own["FI_WEFT_PORT"] = f"serve:{OPTIONS.directory}/serve{end}"
    else:
        own["FI_WEFT_IFACE"] = "lo"
    return own


def start(command, end_environment, core, priority=10, **how):
    """Starts `command` at the core with this place in the list."""
    realtime = ["chrt", "-r", str(priority)] if OPTIONS.realtime else []
    command = [*realtime, "taskset", "-c", OPTIONS.cores[core], *map(str, command)]
    return subprocess.Popen(command, env=end_environment, text=True, **how)


def pair(name, first, second):
    """What the second of two programs prints, the first of which is there before it."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with start(first, environment(name, 0), 0, **pipes) as one:
        time.sleep(0.2)
        with start(second, environment(name, 1), 1, **pipes) as two:
            try:
                said = two.communicate(timeout=TIMEOUT)[0]
                one.communicate(timeout=TIMEOUT)
            except subprocess.TimeoutExpired:
                said = f"nothing within {TIMEOUT} s"
                two.kill()
            finally:
                one.kill()
            if two.returncode != 0:
                print(f"\n{name}: {second[0]} has failed: {said.strip()}", file=sys.stderr)
                return None
            return said.strip().split("\n")[-1].split()


def count(size, most):
    return max(LEAST, min(most, BYTES // size))


def latency(name, size):
    port, provider = free_port(), FOREIGN.get(name, "weft")
    both = ["fi_pingpong", "-p", provider, "-e", "rdm", "-S", size, "-I", count(size, TRANSFERS)]
    if OPTIONS.tagged:
        both += ["-m", "tagged"]
    if OPTIONS.verify:
        both.append("-c")
    words = pair(name, [*both, "-B", port], [*both, "-P", port, "127.0.0.1"])
    return words and float(words[-2])


def bandwidth(name, size):
    """MB/s, and messages per second."""
    port, provider = free_port(), FOREIGN.get(name, "weft")
    both = [f"{OPTIONS.directory}/fi_bandwidth", "-p", provider, "-s", size, "-n", count(size, MESSAGES), "-P", port]
    if OPTIONS.tagged:
        both.append("-t")
    if OPTIONS.verify:
        both.append("-c")
    words = pair(name, both, [*both, "-a", "127.0.0.1"])
    return words and (float(words[3]), float(words[4]))


def servers():
    """Two `weft serve` that memif joins, at cores of their own if there are any. If not, they preempt the programs that they
    serve, which do nothing but poll."""
    started, others = [], len(OPTIONS.cores) - 2
    for end, (role, ip) in enumerate((("server", "10.0.0.1"), ("client", "10.0.0.2"))):
        command = [OPTIONS.weft, "serve", "--socket", f"{OPTIONS.directory}/serve{end}", "--ip", ip]
        command += ["--port", f"memif:{OPTIONS.directory}/served,role={role}"]
        log = open(f"{OPTIONS.directory}/serve{end}.log", "w", encoding="utf-8")
        started.append(start(command, os.environ, end + others, 11, stdout=log, stderr=log))
    deadline = time.monotonic() + 10
    while not all(os.path.exists(f"{OPTIONS.directory}/serve{end}") for end in (0, 1)):
        if time.monotonic() > deadline:
            sys.exit("bench-libfabric.sh: weft serve did not start: " + open(log.name, encoding="utf-8").read())
        time.sleep(0.05)
    return started


def measure():
    """Figures of all rounds, by what, name and size."""
    found = {}
    for number in range(OPTIONS.rounds):
        for size in OPTIONS.sizes:
            for name in OPTIONS.over:
                print(f"\rround {number + 1} of {OPTIONS.rounds}: {size} bytes over {name}    ", end="", file=sys.stderr)
                found.setdefault(("latency", name, size), []).append(latency(name, size))
                moved = bandwidth(name, size)
                found.setdefault(("bandwidth", name, size), []).append(moved and moved[0])
                found.setdefault(("rate", name, size), []).append(moved and moved[1])
    print(f"\r{'':60}\r", end="", file=sys.stderr)
    return found


def median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def table(found, what, title, form):
    print(f"{title:<28}" + "".join(f"{name:>11}" for name in OPTIONS.over))
    for size in OPTIONS.sizes:
        medians = [median(found[what, name, size]) for name in OPTIONS.over]
        print(f"{size:>20} bytes  " + "".join(f"{'-' if m is None else format(m, form):>11}" for m in medians))


def judge(found):
    """Prints the bars of which both sides were measured. Returns whether all hold."""
    good = True
    for name, what, size, other, sense, wanted in BARS:
        ours, theirs = found.get((what, name, size)), found.get((what, other, size))
        if not ours or not theirs:
            continue
        each = [a / b for a, b in zip(ours, theirs) if a is not None and b is not None]
        if not each:
            good = False
            continue
        ratio = statistics.median(each)
        holds = ratio <= wanted if sense == "at most" else ratio >= wanted
        good &= holds
        print(
            f"{what} of {size} bytes, {name} / {other}: {ratio:.2f} (of each round {min(each):.2f} to {max(each):.2f}), "
            f"should be {sense} {wanted}: {'holds' if holds else 'does not hold'}"
        )
    return good


def main():
    started = servers() if "serve" in OPTIONS.over else []
    try:
        found = measure()
    finally:
        for server in started:
            server.terminate()
            server.wait()
    shared = "; programs and servers of serve share cores" if started and len(OPTIONS.cores) == 2 else ""
    realtime = ", real-time" if OPTIONS.realtime else ""
    tagged = ", messages with tags" if OPTIONS.tagged else ""
    print(f"{OPTIONS.rounds} rounds, cores {','.join(OPTIONS.cores)}{realtime}{tagged}{shared}")
    table(found, "latency", "half of a round trip, µs", ".2f")
    table(found, "bandwidth", "bandwidth, MB/s", ".0f")
    table(found, "rate", "messages a second", ",.0f")
    good = judge(found)
    if any(None in values for values in found.values()):
        sys.exit("bench-libfabric.sh: not all could be measured")
    if OPTIONS.check and not good:
        sys.exit("bench-libfabric.sh: slower than it should be")


main()
