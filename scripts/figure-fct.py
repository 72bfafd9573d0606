#!/usr/bin/env python3
"""Draws the figure of the README: cumulative distributions of flow completion times, simulated by `weft run`.

    scripts/figure-fct.py [WEFT] [FILE]

WEFT is the command (target/release/weft), FILE the figure (docs/fct.svg). The same version of weft gives the same file, to
the byte. Nothing but Python's standard library is needed.
"""
import csv
import io
import json
import os
import subprocess
import sys
import tempfile

WIDTH, HEIGHT = 860, 330
# Of each panel's axes: left, top, width, height.
PANELS = [(60, 62, 350, 200), (492, 62, 350, 200)]
COLOURS = ["#0b6e99", "#5a9216", "#c2410c"]
COMMON = ["run", "--json", "-"]
FIGURE = [
    {
        "title": "Incast: 63 flows of 1 MB to one host",
        "about": "by congestion control",
        "options": ["--workload", "incast:63", "--size", "1MB"],
        "option": "--cc",
        "names": ["nscc", "smartt", "constant"],
        "end": 10_500,
        "step": 2_500,
        "unit": (1000, "ms"),
        "legend": (200, 70),
    },
    {
        "title": "Permutation: 128 flows of 2 MB",
        "about": "by load balancer, nscc",
        "options": ["--workload", "permutation", "--hosts", "128", "--size", "2MB"],
        "option": "--lb",
        "names": ["mixed", "reps", "ecmp"],
        "end": 800,
        "step": 200,
        "unit": (1, "µs"),
        "legend": (266, 132),
    },
]


def measure(weft, options):
    """Completion times, ascending, and the bound of the busiest link, µs."""
    with tempfile.TemporaryDirectory() as folder:
        flows = os.path.join(folder, "flows.csv")
        command = [weft, *COMMON, *options, "--flows", flows]
        report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        with open(flows, encoding="utf-8") as file:
            times = sorted(float(row["fct_us"]) for row in csv.DictReader(file))
    return times, report["bound_us"]


def panel(out, box, spec, weft):
    left, top, width, height = box
    divisor, unit = spec["unit"]

    def x(time):
        return round(left + width * min(time, spec["end"]) / spec["end"], 1)

    def y(share):
        return round(top + height * (1 - share), 1)

    out.write(f'<text x="{left}" y="{top - 34}" class="title">{spec["title"]}</text>\n')
    out.write(f'<text x="{left}" y="{top - 16}">{spec["about"]}</text>\n')
    for share in (0, 0.25, 0.5, 0.75, 1):
        out.write(f'<path d="M{left} {y(share)}h{width}" class="grid"/>\n')
        out.write(f'<text x="{left - 8}" y="{y(share) + 4}" text-anchor="end">{share * 100:.0f} %</text>\n')
    for time in range(0, spec["end"] + 1, spec["step"]):
        label = f"{time / divisor:g}"
        out.write(f'<text x="{x(time)}" y="{top + height + 18}" text-anchor="middle">{label}</text>\n')
    caption = f"completion time of a flow, {unit}"
    out.write(f'<text x="{left + width / 2}" y="{top + height + 38}" text-anchor="middle">{caption}</text>\n')
    for number, (name, colour) in enumerate(zip(spec["names"], COLOURS)):
        times, bound = measure(weft, [*spec["options"], spec["option"], name])
        if number == 0:
            out.write(f'<path d="M{x(bound)} {top}v{height}" class="bound"/>\n')
        steps = [f"M{x(0)} {y(0)}"]
        for count, time in enumerate(times, 1):
            steps.append(f"H{x(time)}V{y(count / len(times))}")
        steps.append(f"H{left + width}")
        out.write(f'<path d="{"".join(steps)}" class="line" stroke="{colour}"/>\n')
        column, row = left + spec["legend"][0], top + spec["legend"][1] + 20 * number
        out.write(f'<path d="M{column} {row}h20" class="line" stroke="{colour}"/>\n')
        out.write(f'<text x="{column + 26}" y="{row + 4}">{name}</text>\n')


def main():
    arguments = sys.argv[1:]
    weft = arguments[0] if arguments else "target/release/weft"
    path = arguments[1] if len(arguments) > 1 else "docs/fct.svg"
    out = io.StringIO()
    out.write(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">\n'
        "<style>text{font:13px sans-serif;fill:#333}.title{font-weight:bold;font-size:15px}"
        ".grid{stroke:#ddd}.bound{stroke:#777;stroke-dasharray:4 4}.line{fill:none;stroke-width:2}</style>\n"
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#fff"/>\n'
    )
    for box, spec in zip(PANELS, FIGURE):
        panel(out, box, spec, weft)
    note = "Simulated: 100 Gbit/s, 1 µs a link, trimming switches. Dashed: the time that the busiest link needs for its bytes."
    out.write(f'<text x="{PANELS[0][0]}" y="{HEIGHT - 8}">{note}</text>\n</svg>\n')
    with open(path, "w", encoding="utf-8") as file:
        file.write(out.getvalue())


main()
