#!/usr/bin/env python3
"""Prints a row of a table: the delay of the fabric in an incast with Swift, on software switches and as simulated, beside
Swift's target.

Usage: swift_delay.py REPORT TRACE SIMULATED-TRACE on|off

REPORT is that of the run on software switches. The last argument says whether the target was scaled with the window. The
status is 1 if the mean on software switches is off the target by more than 25 %.
"""

import json
import math
import statistics
import sys

# Defaults of swift: base target and range of the scaling in idle RTTs, and the windows of the whole range and of none.
BASE, RANGE, LEAST, MOST = 1.25, 1.0, 0.1, 100.0


def delays(path):
    """Delays of the fabric, µs: RTTs less the time in hosts, from 0.3 to 0.9 of the run, when all flows send."""
    rtts = []
    with open(path, encoding="utf-8") as trace:
        for line in trace:
            if '"ack_received"' not in line:
                continue
            event = json.loads(line)
            if "rtt_ps" in event:
                hosts = event.get("remote_ps", 0) + event.get("local_ps", 0)
                rtts.append((event["time_ps"], (event["rtt_ps"] - hosts) / 1e6))
    end = max((time for time, _ in rtts), default=0)
    kept = [delay for time, delay in rtts if 0.3 * end <= time <= 0.9 * end]
    if len(kept) < 100:
        sys.exit(f"swift_delay.py: {path}: only {len(kept)} acknowledgements have an RTT; 100 are needed")
    return kept


def target(report, scaled):
    """The target, µs; scaled, that of the window that each flow has if all of them keep the link busy at that delay."""
    idle, config = report["switches"]["idle_rtt_us"], report["config"]
    if not scaled:
        return BASE * idle
    packet_us = (config["mtu_bytes"] + config["wire_overhead_bytes"]) * 8e6 / config["link_bps"]
    alpha = RANGE * idle / (1 / math.sqrt(LEAST) - 1 / math.sqrt(MOST))
    low, high = BASE * idle, (BASE + RANGE) * idle
    for _ in range(60):
        middle = (low + high) / 2
        window = middle / packet_us / report["flows"]["total"]
        wanted = BASE * idle + min(RANGE * idle, max(0, alpha / math.sqrt(window) - alpha / math.sqrt(MOST)))
        low, high = (middle, high) if wanted > middle else (low, middle)
    return low


with open(sys.argv[1], encoding="utf-8") as file:
    report = json.load(file)
aim = target(report, sys.argv[4] == "on")
soft, simulated = delays(sys.argv[2]), delays(sys.argv[3])
tenths = statistics.quantiles(soft, n=10)
ratio = statistics.mean(soft) / aim
print(
    f"{sys.argv[4]:<8} {aim / 1e3:>10.2f} {statistics.mean(soft) / 1e3:>10.2f} {tenths[0] / 1e3:>10.2f} {tenths[-1] / 1e3:>10.2f} "
    f"{ratio:>10.3f} {statistics.mean(simulated) / 1e3:>14.2f} {statistics.mean(simulated) / aim:>10.3f}"
)
sys.exit(abs(ratio - 1) > 0.25)
