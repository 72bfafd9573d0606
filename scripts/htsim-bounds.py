#!/usr/bin/env python3
"""Bounds for limits of uet-htsim's validation (docs/htsim.md), from sizes, rates and matrices alone.

For each experiment the least time of the last flow, in µs, that the command line leaves to any congestion control. The
fabric is the one of the experiments: fat trees of 100 Gbit/s, 1 µs a link, packets of 4150 bytes on the wire, links into pod
0 at a quarter of their rate. Everything that is not computed is taken to be as favourable as it can be:
paths are perfectly even, healthy links have no queues, and each flow sends at the best moments.

Usage: scripts/htsim-bounds.py
"""

import math
import pathlib
import random

DATA = pathlib.Path(__file__).parent.parent / "testbed/data/matrices"
LINE = 4150 * 8 / 100e3  # µs of a packet on a healthy link
SLOW = 4 * LINE  # and on a slow one
PACKETS = math.ceil(2_000_000 / 4086)  # of a flow of 2 MB
TO_SLOW = 3 * (1 + LINE)  # from a host to the queue of a link down from a core
BACK = 3 + 2 * LINE + 6 * (1 + 64 * 8 / 100e3)  # from the end of its transmission to the acknowledgement
RTT = 6 * (1 + LINE) + 6 * (1 + 64 * 8 / 100e3)
ENTROPIES = 128


def flows_into_pod_0(matrix, hosts):
    """The flows from other pods to the hosts of pod 0."""
    pairs = (line.split()[0].split("->") for line in (DATA / matrix).open() if "->" in line)
    return sum(int(dst) < hosts <= int(src) for src, dst in pairs)


def links():
    """Four links lead into pod 0 of the tree of 16 hosts, one of them slow."""
    flows = flows_into_pod_0("perm_16n_16c_2MB.cm", 4)
    return flows * PACKETS * LINE / (3 + 1 / 4) + RTT


def queue_is_never_full(flows, limit):
    """Whether a slow link's queue of 125 packets cannot overflow if all packets in it are acknowledged by `limit`: what fills
    it would have to arrive before the last moment at which it may be full."""
    last = limit - BACK - 126 * SLOW
    return (last - TO_SLOW) / LINE * flows / 64 < 125


def oblivious(flows):
    """8 of 64 paths into pod 0 are slow, and oblivious spraying gives each path its share of each flow."""
    return TO_SLOW + flows * PACKETS / 64 * SLOW + BACK


def bitmap(flows, limit, prompt, seed):
    """The last acknowledgement over a slow link if an entropy is left out for ever from its first mark on, and every packet
    over a slow link is marked. The first `prompt` packets of a flow leave at line rate, and packet n of the others at the
    latest moment that `limit` allows, when the flow knows most. Every entropy is used once a round, in random order."""
    draw = random.Random(seed)
    marked = [[math.inf] * 16 for _ in range(flows)]  # when the first mark of an entropy is back: two for each slow link
    rounds = [[] for _ in range(flows)]
    free = [0.0] * 8
    for n in range(PACKETS):
        now = n * LINE if n < prompt else limit - RTT - (PACKETS - 1 - n) * LINE
        for flow in range(flows):
            while True:
                if not rounds[flow]:
                    rounds[flow] = draw.sample(range(ENTROPIES), ENTROPIES)
                entropy = rounds[flow].pop()
                if entropy >= 16 or now < marked[flow][entropy]:
                    break
            if entropy < 16:
                link = entropy % 8
                free[link] = max(free[link], now + TO_SLOW) + SLOW
                marked[flow][entropy] = min(marked[flow][entropy], free[link] + BACK)
    return max(free) + BACK


def main():
    flows = flows_into_pod_0("perm_1024n_1024c_0u_2000000b.cm", 64)
    assert queue_is_never_full(flows, 220)
    print(f"permutation of 16 hosts, one slow link: {links():.0f} (limit 210)")
    print(f"oblivious, eight slow links, queues of 500 packets: {oblivious(flows):.0f} (limit 220)")
    least = min(
        sum(bitmap(flows, 220, prompt, seed) for seed in range(5)) / 5 for prompt in range(0, PACKETS, 16)
    )
    print(f"bitmap, eight slow links, queues of 500 packets: {least:.0f} (limit 220)")


if __name__ == "__main__":
    main()
