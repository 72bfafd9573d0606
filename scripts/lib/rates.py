"""Prints a table of throughputs: medians over runs, and what the last row's is beside each.

Usage: rates.py DIRECTORY RUNS KIND NAME TITLE [KIND NAME TITLE …]
Run N of a row is in DIRECTORY/NAME.N: the JSON report of what KIND says.
"""

import json
import statistics
import sys


def iperf_tcp(report):
    return report["end"]["sum_received"]["bits_per_second"] / 1e9, 0.0


def iperf_udp(report):
    """What arrived: the sender's rate less what was lost."""
    total = report["end"]["sum"]
    lost = total["lost_percent"] / 100
    return total["bits_per_second"] * (1 - lost) / 1e9, lost


def weft_run(report):
    packets = report["packets"]
    return report["goodput_gbps"], packets["retransmitted"] / packets["data"]


def weft_perf(report):
    client = report["client"]
    return client["goodput_gbps"], client["retransmitted"] / max(1, client["packets"])


# Each function takes a report, and returns the received payload in Gbit/s and the share of packets lost.
KINDS = {"iperf-tcp": iperf_tcp, "iperf-udp": iperf_udp, "weft-run": weft_run, "weft-perf": weft_perf}


def median(directory, runs, kind, name):
    taken = []
    for run in range(runs):
        with open(f"{directory}/{name}.{run}") as file:
            taken.append(KINDS[kind](json.load(file)))
    return [statistics.median(column) for column in zip(*taken)]


def main():
    directory, runs, *rows = sys.argv[1:]
    kinds, names, titles = rows[0::3], rows[1::3], rows[2::3]
    medians = [median(directory, int(runs), kind, name) for kind, name in zip(kinds, names)]
    ours = medians[-1][0]
    print(f"{'':<36} {'Gbit/s':>8} {'lost':>7}   weft is")
    for index, (title, (rate, lost)) in enumerate(zip(titles, medians)):
        share = "" if index == len(titles) - 1 or rate == 0 else f"{ours / rate:7.2f} times"
        print(f"{title:<36} {rate:8.2f} {lost:7.1%}   {share}".rstrip())


main()
