"""Runs the benchmark of attacks and prints its table: the work of scripts/bench-attacks.sh, which describes it.

Usage: attacks.py PROGRAM ROUNDS [ATTACK…]
"""
import math
import os
import statistics
import subprocess
import sys

# What is measured, in the program's order; whether more of it is better; its name if an attack must leave it.
MEASURED = [
    ("round trip, µs", False, "round trip"),
    ("longest turn, µs", False, None),
    ("Gbit/s", True, "goodput"),
    ("MB", False, None),
    ("new connection, µs", False, "new connection"),
    ("joins a second", True, "joins"),
]
GOODPUT, MEMORY = 2, 3
TENTH = 1.1
# What the list of attacks says of a row of honest senders.
HONEST = "="
# Rows in which several processes run, which must not wait until this one leaves them the processor.
SHARED = {"queued-joins", "queued-sockets", "busy-process"}


def run(program, *arguments):
    others = lambda: os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    before = others if SHARED.intersection(arguments) else None
    done = subprocess.run([program, *arguments], stdout=subprocess.PIPE, text=True, preexec_fn=before)
    if done.returncode:
        sys.exit(f"bench-attacks.sh: {' '.join([program, *arguments])} has failed")
    return [line.split("\t") for line in done.stdout.splitlines()]


def measured(program, name):
    """Pairs of values without and with the attack, and such pairs for honest senders if it is compared with some; None for what
    alice did not get. Nothing if the program lacks it."""
    lines = []
    for _, *words in run(program, name):
        values = [None if word == "-" else math.nan if word == "*" else float(word) for word in words]
        lines.append(list(zip(values[::2], values[1::2])))
    return lines


def median(values):
    there = [value for value in values if value is not None]
    return statistics.median(there) if 2 * len(there) > len(values) else None


def short(value):
    if value is None:
        return "none"
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cells(rounds, honest):
    for at, (_, _, must_hold) in enumerate(MEASURED):
        without, with_it = (median([result[at][side] for result in rounds]) for side in (0, 1))
        alone = at == MEMORY or with_it is not None and math.isnan(with_it)
        cell = short(with_it) if alone else f"{short(without)} → {short(with_it)}"
        if honest and must_hold and not alone:
            cell += f" ({short(median([result[at][1] for result in honest]))})"
        yield cell


def times_worse(at, reference, value):
    if value is None or reference is None:
        return float("inf")
    return reference / value if MEASURED[at][1] else value / reference


def ratios(rounds, references):
    """How many times as bad the attack makes each of what it must leave, with its name."""
    for at, (_, _, must_hold) in enumerate(MEASURED):
        if must_hold:
            worse = [times_worse(at, ref[at], result[at][1]) for ref, result in zip(references, rounds)]
            if not any(map(math.isnan, worse)):
                yield statistics.median(worse), must_hold


def worst(rounds, references):
    ratio, what = max(ratios(rounds, references))
    return "none" if math.isinf(ratio) else f"{ratio:.2f} {what}"


def main():
    program, count, names = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    before = os.environ.get("BEFORE")
    listed = run(program, "list")
    beside = {name: row for name, row, _ in listed}
    unknown = [name for name in names if name not in beside]
    if unknown:
        sys.exit(f"bench-attacks.sh: no attack {', '.join(unknown)}; there are {', '.join(beside)}")
    chosen = [(name, what) for name, _, what in listed if not names or name in names]
    print("| attack | row | state | " + " | ".join(what for what, _, _ in MEASURED) + " | worst, times |")
    print("|---" * (4 + len(MEASURED)) + "|")
    slow = []
    for name, what in chosen:
        old, new, honest = [], [], []
        for _ in range(count):
            if before:
                old += measured(before, name)[:1]
            attacked, *others = measured(program, name)
            new.append(attacked)
            honest += others
        alone = [[without for without, _ in result] for result in new]
        # Honest senders leave the goodput that the peer sends.
        references = [
            [without if at == GOODPUT else with_it for at, ((without, _), (_, with_it)) in enumerate(zip(*results))]
            for results in zip(new, honest)
        ]
        if before:
            words = [*cells(old, []), "–"] if old else ["–"] * (len(MEASURED) + 1)
            print(f"| {what} | `{name}` | before | " + " | ".join(words) + " |")
        last = worst(new, alone) + (f" ({worst(new, references)})" if honest else "")
        words = [*cells(new, honest), last]
        print(f"| {'' if before else what} | {'' if before else f'`{name}`'} | now | " + " | ".join(words) + " |", flush=True)
        if beside[name] != HONEST:
            of = f" as beside `{beside[name]}`" if honest else ""
            compared = ratios(new, references or alone)
            slow += [f"{name}: {what}: {ratio:.2f} times as bad{of}" for ratio, what in compared if ratio > TENTH]
    if slow:
        print("\nbeyond a tenth:", *slow, sep="\n")
        sys.exit(1)


main()
