"""Packets and captures for tests, made by hand."""

from __future__ import annotations

import ipaddress
import struct
from typing import Iterable, List, Tuple

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16

Packet = Tuple[int, bytes]


def ethernet(payload: bytes, ethertype: int = 0x0800, vlan: int = 0) -> bytes:
    tag = struct.pack("!HH", 0x8100, vlan) if vlan else b""
    return b"\x02\0\0\0\0\x02\x02\0\0\0\0\x01" + tag + struct.pack("!H", ethertype) + payload


def ipv4(source: str, destination: str, protocol: int, payload: bytes) -> bytes:
    ends = ipaddress.ip_address(source).packed + ipaddress.ip_address(destination).packed
    return struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 0, 0, 64, protocol, 0) + ends + payload


def udp(source: Tuple[str, int], destination: Tuple[str, int], payload: bytes = b"", vlan: int = 0) -> bytes:
    header = struct.pack("!HHHH", source[1], destination[1], 8 + len(payload), 0)
    return ethernet(ipv4(source[0], destination[0], 17, header + payload), vlan=vlan)


def tcp(
    source: Tuple[str, int], destination: Tuple[str, int], flags: int, seq: int = 0, ack: int = 0, payload: bytes = b""
) -> bytes:
    header = struct.pack("!HHIIBBHHH", source[1], destination[1], seq, ack, 0x50, flags, 1000, 0, 0)
    return ethernet(ipv4(source[0], destination[0], 6, header + payload))


def pcap(packets: Iterable[Packet], link: int = 1) -> bytes:
    parts = [struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262144, link)]
    for time, data in packets:
        parts.append(struct.pack("<IIII", time // SECOND, time % SECOND, len(data), len(data)) + data)
    return b"".join(parts)


def connection(client: Tuple[str, int], server: Tuple[str, int], at: int, request: bytes = b"x" * 100) -> List[Packet]:
    """A TCP connection of 10 packets in 0.9 s: handshake, a request of at most 100 bytes, an answer of 1000 bytes, FIN of both."""
    out = lambda flags, seq, ack, data=b"": tcp(client, server, flags, seq, ack, data)  # noqa: E731
    back = lambda flags, seq, ack, data=b"": tcp(server, client, flags, seq, ack, data)  # noqa: E731
    frames = [
        out(SYN, 100, 0),
        back(SYN | ACK, 900, 101),
        out(ACK, 101, 901),
        out(PSH | ACK, 101, 901, request),
        back(ACK, 901, 201),
        back(PSH | ACK, 901, 201, b"y" * 1000),
        out(ACK, 201, 1901),
        out(FIN | ACK, 201, 1901),
        back(FIN | ACK, 1901, 202),
        out(ACK, 202, 1902),
    ]
    return [(at + nth * SECOND // 10, frame) for nth, frame in enumerate(frames)]


def many(flows: int, packets_of_a_flow: int = 2) -> List[Packet]:
    """Flows of UDP, each with these packets, a microsecond apart."""
    packets = []
    for nth in range(flows * packets_of_a_flow):
        flow = nth % flows
        source = (f"10.{flow >> 16 & 255}.{flow >> 8 & 255}.{flow & 255}", 1000 + flow % 7)
        packets.append((START + nth * 1000, udp(source, ("192.0.2.1", 53), bytes(flow % 50))))
    return packets
