#!/usr/bin/env python3
"""Measures how many bytes of a recording one core meters in a second, and what that means for a petabyte.

    python3 examples/cluster/rate.py monday-00.pcap             # as a file
    python3 examples/cluster/rate.py --object monday-00.pcap    # as a file object, as an object store gives it
    python3 examples/cluster/rate.py --price 0.05 monday-00.pcap    # with the cost, if an hour of a core costs 0.05

The rate is bytes by CPU time, so it hardly depends on what else the machine does. The first reading is not counted.
"""

import argparse
import os
import time

import pyarrow as pa
import steerage

PETABYTE = 1e15


def metered(path, as_object):
    """Meter a file, and return the CPU time in seconds, and the report."""
    start = time.process_time()
    with open(path, "rb") as file:
        part = steerage.meter_part(file if as_object else path, part=0)
        for _ in pa.RecordBatchReader.from_stream(part):
            pass
    return time.process_time() - start, part.report


def main():
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measures how many bytes of a recording one core meters in a second.")
    parser.add_argument("file", help="a capture of 100 MB or more")
    parser.add_argument("--object", action="store_true", help="read it through a file object")
    parser.add_argument("--price", type=float, metavar="AMOUNT", help="what an hour of a core costs, in any currency")
    arguments = parser.parse_args()
    metered(arguments.file, arguments.object)
    seconds, report = min((metered(arguments.file, arguments.object) for _ in range(5)), key=lambda pair: pair[0])
    rate = os.path.getsize(arguments.file) / seconds
    print(f"{report['received_bytes'] / report['received']:.0f} bytes a packet: {rate / 1e6:.0f} MB per second and core")
    hours = PETABYTE / rate / 3600
    print(f"a petabyte takes {hours:.0f} core hours; the store must deliver {rate * 8 / 1e9:.1f} Gbit/s for each core")
    if arguments.price is not None:
        print(f"these core hours cost {hours * arguments.price:.2f}")


if __name__ == "__main__":
    main()
