#!/usr/bin/env python3
"""Writes the capture question.pcap to standard output: the endpoint's input in the golden test.

Written from the tables of docs/wire.md alone. Endpoint 10.0.0.1 opens a PDC to endpoint 10.0.0.2 and
sends a message of three packets and one of a single packet; one packet is trimmed, in both formats
that switches use, and comes again whole; one arrives twice; an ACK_REQ and a CLOSE_CMD follow.

usage: make_question.py > question.pcap
"""

import struct
import sys

MTU, PDC, START = 256, 7, 0xFFFFFFFE  # PSNs pass zero
DATA, TRIMMED, LAST_HOP, CONTROL = 8, 16, 18, 46
RETX, AR, SYN = 0x10, 0x08, 0x04
EOM, SOM, HD = 0x02, 0x01, 0x04


def checksum(data):
    total = sum(struct.unpack(f">{len(data) // 2}H", data)) if len(data) % 2 == 0 else checksum_odd(data)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def checksum_odd(data):
    return sum(struct.unpack(f">{len(data) // 2 + 1}H", data + b"\0"))


def ipv4(dscp, ecn, length):
    src, dst = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
    head = struct.pack(">BBHHHBBH", 0x45, dscp << 2 | ecn, length, 0, 0x4000, 62, 17, 0) + src + dst
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:]


def frame(body, dscp=DATA, ecn=2, entropy=5):
    udp = struct.pack(">HHHH", 0xC000 + entropy, 4793, 8 + len(body), 0) + body
    pseudo = bytes([10, 0, 0, 1, 10, 0, 0, 2, 0, 17]) + struct.pack(">H", len(udp))
    udp = udp[:6] + struct.pack(">H", checksum(pseudo + udp) or 0xFFFF) + udp[8:]
    return bytes([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]) + ipv4(dscp, ecn, 20 + len(udp)) + udp


def trim(whole, dscp, keep_length):
    """Cuts the packet after its PDS header, as a trimming switch does."""
    cut = whole[: 14 + 20 + 24]
    if keep_length:
        return cut[:15] + bytes([dscp << 2 | 2]) + cut[16:]
    return cut[:14] + ipv4(dscp, 2, 20 + 24) + cut[34:]


def request(n, flags, message, offset, total, payload, header_data=0):
    """Packet n of the PDC, before the target's PDCID is known."""
    psn = (START + n) & 0xFFFFFFFF
    pds = struct.pack(">HhIHH", 2 << 11 | 3 << 7 | flags | SYN, -1 - n, psn, PDC, n)
    first = offset == 0
    ses_flags = (SOM | HD if first else 0) | (EOM if offset + len(payload) == total else 0)
    place = header_data if first else len(payload) << 32 | offset
    ses = struct.pack(">BBHIHHQIQQI", 5, ses_flags, message, 0, 0, 0, 0, 0, 0, place, total)
    return pds + ses + payload


def control(kind, flags, psn, destination):
    prologue = 11 << 11 | kind << 7 | flags
    return struct.pack(">HHIHHI", prologue, 0, psn & 0xFFFFFFFF, PDC, destination, 0)


def question():
    message = bytes(n * 11 & 255 for n in range(600))
    parts = [message[at : at + MTU] for at in range(0, 600, MTU)]
    first = frame(request(0, 0, 0, 0, 600, parts[0], header_data=0x1122334455667788))
    middle = request(1, 0, 0, 256, 600, parts[1])
    last = frame(request(2, AR, 0, 512, 600, parts[2]), ecn=3, entropy=9)
    yield first
    yield trim(frame(middle, entropy=6), TRIMMED, keep_length=False)
    yield last
    yield last
    yield trim(frame(middle, entropy=7), LAST_HOP, keep_length=True)
    yield frame(request(1, RETX | AR, 0, 256, 600, parts[1]), entropy=8)
    yield first
    yield frame(request(3, AR, 1, 0, 1, b"!"), entropy=10)
    yield frame(control(1, AR, START + 3, 1), dscp=CONTROL, ecn=0)
    yield frame(control(4, AR, START + 4, 1), dscp=CONTROL, ecn=0)
    yield frame(control(4, RETX | AR, START + 4, 1), dscp=CONTROL, ecn=0)


if __name__ == "__main__":
    out = sys.stdout.buffer
    out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
    for number, data in enumerate(question()):
        out.write(struct.pack("<IIII", 0, number, len(data), len(data)) + data)
