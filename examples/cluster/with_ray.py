#!/usr/bin/env python3
"""Meters the files of a recording in the workers of Ray, and writes the flows as Parquet.

    pip install steerage pyarrow ray
    python3 examples/cluster/with_ray.py flows/ monday-*.pcap

The files are given in the order of time. On a cluster, the directory is one that all machines share. With --kill N, the worker that meters
file N is killed in the middle, Ray starts the task again, and the flows are compared with those of the whole (pip install duckdb).
"""

import argparse
import os

import pool
import ray
from killed import Killed, check


@ray.remote(max_retries=3)
def work(number, path, directory, marker):
    """Meter one file, and return its edges."""
    return pool.work(number, Killed(path, marker, os.getpid()) if marker else path, directory)


def main():
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Meters the files of a recording in the workers of Ray.")
    parser.add_argument("directory", help="the directory for the flows")
    parser.add_argument("files", nargs="+", help="captures, in the order of time")
    parser.add_argument("--kill", type=int, metavar="N", help="kill the worker of this file")
    arguments = parser.parse_args()
    directory, marker = os.path.abspath(arguments.directory), os.path.abspath(arguments.directory) + "/killed"
    os.makedirs(directory, exist_ok=True)
    ray.init(include_dashboard=False, log_to_driver=False)
    tasks = [
        work.remote(number, path if "://" in path else os.path.abspath(path), directory, marker if number == arguments.kill else None)
        for number, path in enumerate(arguments.files)
    ]
    merged = pool.join(ray.get(tasks), directory)
    print(f"{len(arguments.files)} files, {merged.joined} flows continued from one file to the next")
    if arguments.kill is not None:
        check(arguments.files, directory, marker)


if __name__ == "__main__":
    main()
