#!/usr/bin/env python3
"""Decodes capture files of weft, one line a frame.

Written from the tables of docs/wire.md alone, so that it can tell when the code and they differ.
The test capture_dpdk compares its lines with what weft's own decoder says.

usage: decode_uet.py FILE.pcap
"""

import struct
import sys


class Bits:
    """Fields of a header, most significant bit first."""

    def __init__(self, data):
        self.value, self.left = int.from_bytes(data, "big"), 8 * len(data)

    def take(self, bits):
        self.left -= bits
        return self.value >> self.left & (1 << bits) - 1

    def signed(self, bits):
        value = self.take(bits)
        return value - (1 << bits) if value >> (bits - 1) else value


def line(name, **fields):
    return name + "".join(f" {key}={value}" for key, value in fields.items())


def frames(path):
    with open(path, "rb") as file:
        data = file.read()
    # Times in microseconds or nanoseconds, in the byte order of the writing machine.
    order = {0xA1B2C3D4: "<", 0xA1B23C4D: "<", 0xD4C3B2A1: ">", 0x4D3CB2A1: ">"}.get(struct.unpack("<I", data[:4])[0])
    assert order and struct.unpack(order + "I", data[20:24])[0] == 1, "no capture of Ethernet"
    at = 24
    while at < len(data):
        length = struct.unpack(order + "I", data[at + 8 : at + 12])[0]
        yield data[at + 16 : at + 16 + length]
        at += 16 + length


def datagram(frame):
    """The bytes present after the UDP header, the number of bytes sent, and the DSCP."""
    at = 18 if frame[12:14] == b"\x81\x00" else 14
    if frame[at - 2 : at] == b"\x08\x00":
        dscp, length = frame[at + 1] >> 2, 4 * (frame[at] & 15)
        end = at + struct.unpack(">H", frame[at + 2 : at + 4])[0]
    else:
        assert frame[at - 2 : at] == b"\x86\xdd", "neither IPv4 nor IPv6"
        dscp, length = struct.unpack(">H", frame[at : at + 2])[0] >> 6 & 63, 40
        end = at + 40 + struct.unpack(">H", frame[at + 4 : at + 6])[0]
    udp = frame[at + length : end]
    port, sent = struct.unpack(">HH", udp[2:6])
    assert port == 4793, f"UDP port {port}"
    return udp[8:], sent - 8, dscp


def pdc_or_syn(bits, syn):
    if not syn:
        return {"dpdcid": bits.take(16)}
    fields = {"rsv_pdc": bits.take(1), "_": bits.take(3), "psn_offset": bits.take(12)}
    del fields["_"]
    return fields


def request(bits, kind, next_header, flags):
    fields = dict(next=next_header, retx=flags >> 4 & 1, ar=flags >> 3 & 1, syn=flags >> 2 & 1)
    fields |= dict(clear=bits.signed(16), psn=bits.take(32), spdcid=bits.take(16))
    fields |= pdc_or_syn(bits, fields["syn"])
    if kind in (13, 14):
        fields |= dict(ccc_id=bits.take(8), credit_target=bits.take(24))
    return fields


def ack(bits, kind, next_header, flags):
    probe = flags >> 3 & 1
    fields = dict(next=next_header, m=flags >> 5 & 1, retx=flags >> 4 & 1, req=flags >> 1 & 3)
    fields |= dict(probe=bits.take(16)) if probe else dict(ack_offset=bits.signed(16))
    fields |= dict(cack=bits.take(32), spdcid=bits.take(16), dpdcid=bits.take(16))
    if kind == 7:
        return fields
    cc_type = bits.take(4)
    fields |= dict(cc_type=cc_type, cc_flags=bits.take(4), mpr=bits.take(8), sack_offset=bits.signed(16))
    fields |= dict(sack=f"{bits.take(64):016x}")
    assert kind == 8 and cc_type == 0, "only NSCC's state is expected here"
    fields |= dict(service_time=bits.take(16), rc=bits.take(1), pend=bits.take(7))
    return fields | dict(rcvd_bytes=bits.take(24), ooo=bits.take(16))


def nack(bits, _kind, next_header, flags):
    fields = dict(next=next_header, m=flags >> 5 & 1, retx=flags >> 4 & 1, nt=flags >> 3 & 1)
    fields |= dict(code=bits.take(8), vendor=bits.take(8), psn=bits.take(32))
    return fields | dict(spdcid=bits.take(16), dpdcid=bits.take(16), payload=bits.take(32))


def control(bits, _kind, ctl_type, flags):
    syn = flags >> 2 & 1
    fields = dict(ctl=ctl_type, rod=flags >> 5 & 1, retx=flags >> 4 & 1, ar=flags >> 3 & 1, syn=syn)
    fields |= dict(opaque=bits.take(16), psn=bits.take(32), spdcid=bits.take(16))
    return fields | pdc_or_syn(bits, syn) | dict(payload=bits.take(32))


PDS = {
    2: ("RUD_REQ", 12, request),
    3: ("ROD_REQ", 12, request),
    7: ("ACK", 12, ack),
    8: ("ACK_CC", 32, ack),
    10: ("NACK", 16, nack),
    11: ("CP", 16, control),
    13: ("RUD_CC_REQ", 16, request),
    14: ("ROD_CC_REQ", 16, request),
}


def standard(bits):
    bits.take(2)
    fields = dict(op=bits.take(6), ver=bits.take(2))
    fields |= {flag: bits.take(1) for flag in ("dc", "ie", "rel", "hd", "eom", "som")}
    fields |= dict(msg_id=bits.take(16), ri_gen=bits.take(8), job=bits.take(24))
    bits.take(4)
    fields |= dict(pid=bits.take(12))
    bits.take(4)
    fields |= dict(ri=bits.take(12), buffer_offset=bits.take(64), initiator=bits.take(32))
    fields |= dict(match=bits.take(64))
    if fields["som"]:
        fields |= dict(header_data=bits.take(64))
    else:
        bits.take(18)
        fields |= dict(payload_len=bits.take(14), msg_offset=bits.take(32))
    return line("STANDARD", **fields, request_length=bits.take(32))


def response(bits):
    fields = dict(list=bits.take(2), op=bits.take(6), ver=bits.take(2), rc=bits.take(6), msg_id=bits.take(16))
    return line("RESPONSE", **fields, ri_gen=bits.take(8), job=bits.take(24), modified=bits.take(32))


SES = {0: (0, lambda bits: "NONE"), 3: (44, standard), 4: (12, response)}
TRIMMED = {16: "fabric", 18: "last-hop"}


def decode(frame):
    data, sent, dscp = datagram(frame)
    prologue = Bits(data[:2])
    kind, next_or_type, flags = prologue.take(5), prologue.take(4), prologue.take(7)
    name, length, fields = PDS[kind]
    text = line(name, **fields(Bits(data[2:length]), kind, next_or_type, flags))
    ses_length, ses = SES[0 if kind == 11 else next_or_type]
    headers, body = length + ses_length, data[length:]
    text += " | " + (ses(Bits(body[:ses_length])) if len(body) >= ses_length else "NONE")
    if dscp in TRIMMED:
        return text + f" | trimmed={TRIMMED[dscp]} of={sent - headers}"
    payload = body[ses_length:]
    assert len(payload) == sent - headers, "payload missing although nothing was trimmed"
    return text + f" | payload={len(payload)} sum={sum(payload)}"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for number, frame in enumerate(frames(sys.argv[1])):
        try:
            print(decode(frame))
        except (AssertionError, KeyError, IndexError, struct.error) as error:
            sys.exit(f"frame {number}: {error!r}")
