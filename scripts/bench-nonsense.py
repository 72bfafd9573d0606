#!/usr/bin/env python3
"""What messages that make no sense to `weft perf server` cost its clients, over kernel UDP on the loopback interface.

    scripts/bench-nonsense.py [ROUNDS]      (3 rounds)

A client measures goodput, and then round trips: alone, beside a host that sends the server 70,000 control messages which make
sense and which it need not answer, and beside one that sends as many that make none. The server tells the sender of each of the
latter that it refuses it, on a connection; that host answers nothing of this. Prints a table of medians: what the client gets, the
most memory that the server has had (VmHWM), and whether the server was still there. Each measurement has a server of its own. All
of them share the processors of this machine, the sender of messages, too.

WEFT names the binary [target/release/weft]. BEFORE names one of an earlier state, which then runs in turns with it; its control
messages may be others, or no datagrams, so that none make sense to it. Nothing but Python's standard library is needed.
"""

import json
import os
import resource
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

SERVER, CLIENT, OTHER, PORT = "127.0.0.1", "127.0.0.2", "127.0.0.3", 4793
MESSAGES, A_SECOND = 70_000, 10_000
# A control message, as `apps/src/perf/control.rs` has them, that no server takes for a request.
SENSE = b'{"weft_perf":5,"message":{"finished":{"messages":1}}}'
NONSENSE = b"nonsense"
PATIENCE = 60


def packet(message):
    """A datagram with a message. docs/wire.md has the headers."""
    uud, standard_request, datagram_send, whole = 6, 3, 0x07, 0x07
    pds = struct.pack(">HH", uud << 11 | standard_request << 7, 0)
    ses = struct.pack(">BBHIHHQIQQI", datagram_send, whole, 0, 0, 0, 0, 0, 0, 0, 0, len(message))
    return pds + ses + message


def send(message, count):
    """Sends messages at a bounded rate. Prints how many, how long that took, and its time on a processor."""
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 8 << 2 | 2)
    udp.bind((OTHER, PORT))
    begin, done, bytes_of_it = time.monotonic(), 0, packet(message)
    while done < count:
        while done < min(count, int((time.monotonic() - begin) * A_SECOND)):
            udp.sendto(bytes_of_it, (SERVER, PORT))
            done += 1
        time.sleep(0.001)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(done, time.monotonic() - begin, usage.ru_utime + usage.ru_stime)


def client(weft, directory, mode):
    """The report of a test, or nothing if it has failed."""
    report = os.path.join(directory, "report.json")
    test = ["--mode", mode, "--duration", "2000ms", "--warmup", "200ms", "--json", report]
    command = [weft, "perf", "client", SERVER, "--port", f"udp:{CLIENT}", *test]
    try:
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        print(f"bench-nonsense.py: {done.stderr.strip()}", file=sys.stderr)
        return None
    with open(report, encoding="utf-8") as file:
        return json.load(file)


def most_memory(pid):
    """VmHWM, in MB; nothing of a process that has ended."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            found = [int(line.split()[1]) for line in status if line.startswith("VmHWM:")]
    except FileNotFoundError:
        return None
    return found[0] * 1024 / 1e6 if found else None


def measure(weft, message):
    """Goodput in Gbit/s, the median round trip in µs, memory in MB, and whether the server is there at the end."""
    command = [weft, "perf", "server", "--port", f"udp:{SERVER}", "--wait", f"{PATIENCE}000ms"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    sender = None
    try:
        # Notes may come before it.
        if not any(b"waiting" in line for line in server.stdout):
            sys.exit(f"bench-nonsense.py: {weft} perf server does not start")
        with tempfile.TemporaryDirectory() as directory:
            if message is not None:
                command = [sys.executable, __file__, "send", message.decode()]
                sender = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            throughput = client(weft, directory, "throughput")
            latency = client(weft, directory, "latency")
        memory = most_memory(server.pid)
        if sender:
            if sender.poll() is not None and throughput and latency:
                sys.exit("bench-nonsense.py: the messages had all been sent before the tests were over")
            # A server that ends has had what it had just before.
            while sender.poll() is None:
                memory = most_memory(server.pid) or memory
                time.sleep(0.02)
            done, took, busy = sender.communicate()[0].split()
            print(
                f"bench-nonsense.py: {done} messages of {message.decode()[:8]!r} in {float(took):.1f} s, "
                f"{float(busy):.1f} s of a processor",
                file=sys.stderr,
            )
        return (
            throughput and throughput["client"]["goodput_gbps"],
            latency and latency["latency"]["p50_us"],
            memory,
            1.0 if server.poll() is None else None,
        )
    finally:
        for process in filter(None, (server, sender)):
            process.kill()
            process.wait()
        server.stdout.close()


def median(values):
    there = [value for value in values if value is not None]
    return statistics.median(there) if 2 * len(there) > len(values) else None


def short(value):
    return "none" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    weft, before = os.environ.get("WEFT", "target/release/weft"), os.environ.get("BEFORE")
    alone, nonsense = ("alone", None), ("beside nonsense", NONSENSE)
    rows = [(f"before: {what}", before, message) for what, message in (alone, nonsense) if before]
    rows += [
        (f"now: {what}", weft, message) for what, message in (alone, ("beside messages that make sense", SENSE), nonsense)
    ]
    results = {name: [] for name, _, _ in rows}
    for _ in range(rounds):
        for name, program, message in rows:
            results[name].append(measure(program, message))
    print(f"load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    print("| | Gbit/s | round trip, p50, µs | most memory of the server, MB | the server is there at the end |")
    print("|---|---|---|---|---|")
    for name, all_of_it in results.items():
        goodput, latency, memory, there = (median(column) for column in zip(*all_of_it))
        print(f"| {name} | {short(goodput)} | {short(latency)} | {short(memory)} | {'yes' if there else 'no'} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["send"]:
        send(sys.argv[2].encode(), MESSAGES)
    else:
        main()
