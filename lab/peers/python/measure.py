#!/usr/bin/env python3
"""Measures readers for Python that make flows of the same capture, in turn, round after round.

    measure.py [--rounds N] [--packets N] [--flows N] [--cpu A] [--cpu-2 B] [--only SERIES] > runs.jsonl

It runs in an environment that has steerage, pyarrow and the readers; a reader that is not installed is left out. STEERAGE names the
program. Each run is a process of its own on its CPUs. The time of a reader begins after its imports, and that of the program with its
process. Each run prints a line of JSON, as lab/README.md describes. README.md says how the readers differ.
"""

import argparse
import json
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.abspath(__file__)

#: What each flow gets: the columns of the table that all readers fill.
COLUMNS = ["source", "source_port", "destination", "destination_port", "protocol", "first", "last", "packets", "bytes",
           "packets_back", "bytes_back"]  # fmt: skip

#: A slow reader gets one packet in so many, so that each run takes seconds.
SHARES = {"nfstream": 10, "dpkt": 10, "scapy": 100, "pyshark": 1000}

#: The flows of a capture by the capture's share of the packets are the same, so a short capture has fewer packets for each flow.
PACKET_BYTES = 60


def generate(path, packets, flows):
    """Write TCP packets of random flows, in both directions, without payload."""
    chance = random.Random(7)
    ends = [(chance.randrange(1 << 24) | 10 << 24, 1024 + nth % 60_000, 0xC0000200 | chance.randrange(256), 443) for nth in range(flows)]
    frames = []
    for source, port, destination, other in ends:
        for one, one_port, two, two_port in ((source, port, destination, other), (destination, other, source, port)):
            head = b"\x02\0\0\0\0\x02\x02\0\0\0\0\x01\x08\0" + struct.pack("!BBHHHBBH", 0x45, 0, 40, 0, 0, 64, 6, 0)
            tcp = struct.pack("!HHIIBBHHH", one_port, two_port, 1, 1, 0x50, 16, 1000, 0, 0)
            frames.append((head + struct.pack("!II", one, two) + tcp).ljust(PACKET_BYTES, b"\0"))
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262144, 1))
        for nth in range(packets):
            micros = nth * 5
            frame = frames[chance.randrange(len(frames))]
            header = struct.pack("<IIII", 1_700_000_000 + micros // 1_000_000, micros % 1_000_000 * 1000, len(frame), len(frame))
            file.write(header + frame)


class Table(dict):
    """Flows by their endpoints, for readers that return packets."""

    def add(self, source, port, destination, other, protocol, when, length):
        """Count a packet."""
        key, back = (source, port, destination, other, protocol), (destination, other, source, port, protocol)
        row = self.get(key)
        if row is not None:
            row[1], row[2], row[3] = when, row[2] + 1, row[3] + length
            return
        row = self.get(back)
        if row is not None:
            row[1], row[4], row[5] = when, row[4] + 1, row[5] + length
            return
        self[key] = [when, when, 1, length, 0, 0]

    def total(self):
        """The packets of all flows."""
        return sum(row[2] + row[4] for row in self.values())


def read_steerage(path):
    import pyarrow
    import steerage

    yield
    # pyarrow.table would import pandas, if it is installed, and that takes longer than the flows.
    table = pyarrow.RecordBatchReader.from_stream(steerage.meter(path, columns=COLUMNS)).read_all()
    yield sum(table["packets"].to_pylist()) + sum(table["packets_back"].to_pylist())


def read_nfstream(path):
    from nfstream import NFStreamer

    yield
    flows = NFStreamer(source=path, n_dissections=0, n_meters=1, max_nflows=1 << 20)
    yield sum(flow.bidirectional_packets for flow in flows)


def read_scapy(path):
    from scapy.all import IP, TCP, PcapReader

    yield
    table = Table()
    with PcapReader(path) as reader:
        for packet in reader:
            ip, tcp = packet[IP], packet[TCP]
            table.add(ip.src, tcp.sport, ip.dst, tcp.dport, ip.proto, packet.time, packet.wirelen)
    yield table.total()


def read_dpkt(path):
    import socket

    import dpkt

    yield
    table = Table()
    with open(path, "rb") as file:
        for when, data in dpkt.pcap.Reader(file):
            ip = dpkt.ethernet.Ethernet(data).data
            tcp = ip.data
            table.add(socket.inet_ntoa(ip.src), tcp.sport, socket.inet_ntoa(ip.dst), tcp.dport, ip.p, when, len(data))
    yield table.total()


def read_pyshark(path):
    import pyshark

    yield
    table = Table()
    with pyshark.FileCapture(path, keep_packets=False) as packets:
        for packet in packets:
            ip, tcp = packet.ip, packet.tcp
            ends = str(ip.src), int(tcp.srcport), str(ip.dst), int(tcp.dstport), int(ip.proto)
            table.add(*ends, float(packet.sniff_timestamp), int(packet.length))
    yield table.total()


READERS = {"nfstream": read_nfstream, "dpkt": read_dpkt, "scapy": read_scapy, "pyshark": read_pyshark}


def read(reader, path):
    """Run a reader in this process, and print its seconds, packets and memory."""
    run = {"steerage": read_steerage, **READERS}[reader](path)
    next(run)
    begin = time.perf_counter()
    packets = next(run)
    seconds = time.perf_counter() - begin
    # Of the largest process: nfstream and pyshark have processes beside this one.
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(json.dumps({"seconds": seconds, "packets": packets, "mb": peak / 1024}))
    sys.stdout.flush()
    # Some readers leave threads that wait.
    os._exit(0)


def reader_run(reader, path, cpus):
    """Run a reader in a process on these CPUs."""
    command = [sys.executable, HERE, "--read", reader, path]
    ended = subprocess.run(command, stdout=subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, cpus), timeout=600, check=False)
    if ended.returncode:
        return None
    return json.loads(ended.stdout.splitlines()[-1])


def program_run(program, path, cpus, packets):
    """Run the program on these CPUs."""
    command = [program, "meter", path, "--cpus", ",".join(map(str, sorted(cpus)))]
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, cpus)) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return {"seconds": time.perf_counter() - begin, "packets": packets, "mb": usage.ru_maxrss / 1024} if status == 0 else None


def main():
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measures readers for Python that make flows of the same capture.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--packets", type=int, default=4_000_000)
    parser.add_argument("--flows", type=int, default=1024)
    parser.add_argument("--cpu", type=int, default=0)
    parser.add_argument("--cpu-2", type=int, default=1)
    parser.add_argument("--only", action="append", help="only these series, such as scapy")
    parser.add_argument("--read", nargs=2, metavar=("READER", "PATH"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        return read(*given.read)
    program = os.environ.get("STEERAGE") or shutil.which("steerage")
    one, both = {given.cpu}, {given.cpu, given.cpu_2}
    with tempfile.TemporaryDirectory() as directory:
        paths = {}
        for share in {1, *SHARES.values()}:
            paths[share] = os.path.join(directory, f"{share}.pcap")
            generate(paths[share], given.packets // share, given.flows)
        runs = {}
        for name, cpus in (("1 CPU", one), ("2 CPUs", both)):
            runs[f"steerage, {name}"] = (1, lambda cpus=cpus: reader_run("steerage", paths[1], cpus))
            if program:
                runs[f"steerage meter, {name}"] = (1, lambda cpus=cpus: program_run(program, paths[1], cpus, given.packets))
        for name in READERS:
            # nfstream and pyshark have a process for the packets beside the one for the flows, so that they use both CPUs.
            runs[name] = (SHARES[name], lambda name=name: reader_run(name, paths[SHARES[name]], both))
        for turn in range(given.rounds):
            for series, (share, run) in list(runs.items()):
                if given.only and not any(series.startswith(only) for only in given.only):
                    continue
                result = run()
                expected = given.packets // share
                if result is None or result["packets"] != expected:
                    print(f"{series} is left out: {'it failed' if result is None else result}", file=sys.stderr)
                    del runs[series]
                    continue
                values = {"mpps": round(expected / result["seconds"] / 1e6, 6), "mb": round(result["mb"], 1)}
                print(json.dumps({"experiment": "python", "series": series, "x": None, "round": turn, "values": values}), flush=True)


if __name__ == "__main__":
    main()
