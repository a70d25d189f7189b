#!/usr/bin/env python3
"""Meters a capture of 10 GB that comes through a pipe, and prints the memory of the process that meters.

    target/peers-python/bin/python lab/peers/python/pipe.py [--gigabytes N] [--cpus N]

It needs steerage and pyarrow. A process writes the capture into the pipe, so nothing is on a disk: packets of 60 to 1,514 bytes, five for
each flow, at a tenth of a gigabit per second by their times, so that about 270,000 flows are open at a time. The script fails if packets are
missing, or if the process that meters had more than 300 MB in memory at any time (VmHWM).
"""

import argparse
import os
import random
import re
import struct
import subprocess
import sys
import time

HERE = os.path.abspath(__file__)

MEMORY_MAX = 300e6

FLOW_PACKETS = 5

#: The flows of a block. Each block is written with the times and addresses of its turn.
BLOCK_FLOWS = 512

#: Bytes per second by the times of the packets.
RATE = 12_500_000


def block():
    """A block of packets, and where their records begin. The packets of a flow are spread over the block."""
    chance = random.Random(7)
    data, records = bytearray(), []
    for _ in range(FLOW_PACKETS):
        for flow in range(BLOCK_FLOWS):
            size = chance.choice([60, 60, 590, 1514])
            ip = struct.pack("!BBHHHBBHII", 0x45, 0, size - 14, 0, 0, 64, 17, 0, 10 << 24, 0xC0000201)
            udp = struct.pack("!HHHH", 1024 + flow, 443, size - 34, 0)
            frame = (b"\x02\0\0\0\0\x02\x02\0\0\0\0\x01\x08\0" + ip + udp).ljust(size, b"\0")
            records.append(len(data))
            data += struct.pack("<IIII", 0, 0, size, size) + frame
    return data, records


def write(gigabytes):
    """Write a capture to the standard output, and the number of its packets to the standard error."""
    data, records = block()
    out = sys.stdout.buffer
    out.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262144, 1))
    nanos = len(data) * 1_000_000_000 // RATE // len(records)
    turns = int(gigabytes * 1e9) // len(data)
    now = 1_700_000_000_000_000_000
    for turn in range(turns):
        for at in records:
            now += nanos
            struct.pack_into("<II", data, at, now // 1_000_000_000, now % 1_000_000_000)
            # Behind the header of the record (16 bytes), Ethernet (14) and 12 bytes of IP: the lower 24 bits of the source.
            struct.pack_into("!I", data, at + 42, 10 << 24 | turn)
        out.write(data)
    out.flush()
    print(turns * len(records), turns * len(data), file=sys.stderr)


def read(cpus):
    """Meter the standard input, and print what came."""
    import pyarrow
    import steerage

    flows = steerage.meter(sys.stdin.buffer, cpus=cpus)
    begin, packets, rows = time.perf_counter(), 0, 0
    for batch in pyarrow.RecordBatchReader.from_stream(flows):
        rows += batch.num_rows
        packets += sum(batch.column("packets").to_pylist())
    seconds = time.perf_counter() - begin
    with open("/proc/self/status", encoding="ascii") as status:
        peak = int(re.search(r"VmHWM:\s+(\d+) kB", status.read())[1]) * 1024
    print(packets, rows, peak, f"{seconds:.1f}", flows.report["received"], flows.report["dropped"] or "")


def main():
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Meters a capture of 10 GB that comes through a pipe.")
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--cpus", type=int)
    parser.add_argument("--write", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--read", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        return write(arguments.gigabytes)
    if arguments.read:
        return read(arguments.cpus)
    same = ["--gigabytes", str(arguments.gigabytes), *(["--cpus", str(arguments.cpus)] if arguments.cpus else [])]
    writing = subprocess.Popen([sys.executable, HERE, "--write", *same], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=False)
    reading = subprocess.run([sys.executable, HERE, "--read", *same], stdin=writing.stdout, stdout=subprocess.PIPE, text=True, check=True)
    writing.stdout.close()
    written, size = map(int, writing.stderr.read().split())
    packets, rows, peak, seconds, received, *dropped = reading.stdout.split()
    print(f"{size / 1e9:.1f} GB, {written} packets in {seconds} s: {packets} packets in {rows} flows, at most {int(peak) / 1e6:.0f} MB in memory")
    if writing.wait() or not int(packets) == int(received) == written or dropped:
        sys.exit("packets are missing")
    if int(peak) > MEMORY_MAX:
        sys.exit(f"more than {MEMORY_MAX / 1e6:.0f} MB")
    return None


if __name__ == "__main__":
    main()
