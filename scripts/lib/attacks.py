"""Runs the benchmark of attacks and prints its table: the work of scripts/bench-attacks.sh, which describes it.

Usage: attacks.py PROGRAM ROUNDS [ATTACK…]
"""
import math
import os
import statistics
import subprocess
import sys

# What is measured, in the program's order; whether more of it is better; whether an attack must leave it.
MEASURED = [
    ("round trip, µs", False, True),
    ("longest turn, µs", False, False),
    ("Gbit/s", True, True),
    ("MB", False, False),
    ("new connection, µs", False, True),
    ("joins a second", True, True),
]
GOODPUT, MEMORY = 2, 3
TENTH = 1.1


def run(program, *arguments):
    done = subprocess.run([program, *arguments], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"bench-attacks.sh: {' '.join([program, *arguments])} has failed")
    return [line.split("\t") for line in done.stdout.splitlines()]


def measured(program, name):
    """Pairs of values without and with the attack; None for what alice did not get. Nothing if the program lacks it."""
    for _, *words in run(program, name):
        values = [None if word == "-" else math.nan if word == "*" else float(word) for word in words]
        return list(zip(values[::2], values[1::2]))
    return None


def median(values):
    there = [value for value in values if value is not None]
    return statistics.median(there) if 2 * len(there) > len(values) else None


def short(value):
    if value is None:
        return "none"
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cells(rounds):
    for at in range(len(MEASURED)):
        without, with_it = (median([result[at][side] for result in rounds]) for side in (0, 1))
        alone = at == MEMORY or with_it is not None and math.isnan(with_it)
        yield short(with_it) if alone else f"{short(without)} → {short(with_it)}"


def times_worse(at, reference, value):
    if value is None or reference is None:
        return float("inf")
    return reference / value if MEASURED[at][1] else value / reference


def beyond(name, rounds, references):
    """What an attack takes from alice beyond a tenth."""
    for at, (what, _, must_hold) in enumerate(MEASURED):
        if must_hold:
            worse = statistics.median(times_worse(at, ref[at], result[at][1]) for ref, result in zip(references, rounds))
            if worse > TENTH:
                yield f"{name}: {what}: {worse:.2f} times as bad"


def main():
    program, count, names = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    before = os.environ.get("BEFORE")
    listed = run(program, "list")
    kinds = {name: kind for name, kind, _ in listed}
    unknown = [name for name in names if name not in kinds]
    if unknown:
        sys.exit(f"bench-attacks.sh: no attack {', '.join(unknown)}; there are {', '.join(kinds)}")
    chosen = [(name, what) for name, _, what in listed if not names or name in names]
    busiest = next(name for name, kind in kinds.items() if kind == "busiest")
    print("| attack | row | state | " + " | ".join(what for what, _, _ in MEASURED) + " |")
    print("|---" * (3 + len(MEASURED)) + "|")
    slow = []
    for name, what in chosen:
        old, new, busy_rounds = [], [], []
        for _ in range(count):
            if before:
                old.append(measured(before, name))
            new.append(measured(program, name))
            if kinds[name] == "busy":
                busy_rounds.append(measured(program, busiest))
        if before:
            words = cells(old) if all(old) else ["–"] * len(MEASURED)
            print(f"| {what} | `{name}` | before | " + " | ".join(words) + " |")
        print(f"| {'' if before else what} | {'' if before else f'`{name}`'} | now | " + " | ".join(cells(new)) + " |", flush=True)
        if kinds[name] == "busy":
            # Goodput has to be what the peer sends.
            slow += beyond(name, new, [
                [without if at == GOODPUT else busy for at, ((without, _), (_, busy)) in enumerate(zip(*results))]
                for results in zip(new, busy_rounds)
            ])
        elif kinds[name] != "busiest":
            slow += beyond(name, new, [[without for without, _ in result] for result in new])
    if slow:
        print("\nbeyond a tenth:", *slow, sep="\n")
        sys.exit(1)


main()
