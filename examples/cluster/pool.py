#!/usr/bin/env python3
"""Meters the files of a recording in many processes, and writes the flows as Parquet.

    python3 examples/cluster/pool.py flows/ monday-*.pcap

The files are given in the order of time. Each process writes the flows that no other file can continue to a file of its own, and returns
the other flows, the edges. A process that is killed has changed nothing, and its file is metered again. An engine such as Ray or
Spark does the same with the function `work`: with_ray.py, with_spark.py. A file may be the URL of an object store.
"""

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

import pyarrow as pa
import pyarrow.parquet as pq
import steerage

#: How often the files are tried whose processes were killed.
TRIES_MAX = 3


def write(table, path):
    """Write a table batch by batch. The file has its name only when it is complete."""
    reader = pa.RecordBatchReader.from_stream(table)
    part = f"{path}.{os.getpid()}.part"
    with pq.ParquetWriter(part, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
    os.replace(part, path)


def opened(path):
    """A path, or a file object for the URL of an object store, such as s3://bucket/monday-00.pcap."""
    if "://" not in path:
        return path
    import fsspec  # pip install fsspec, and s3fs for s3

    return fsspec.open(path, "rb").open()


def work(number, source, directory):
    """Meter one file, and return its edges. The source is a path, a URL or a file object."""
    part = steerage.meter_part(opened(source) if isinstance(source, str) else source, part=number)
    write(part, os.path.join(directory, f"flows-{number:05}.parquet"))
    return part.edges


def join(edges, directory):
    """Write the flows that continue from file to file."""
    merged = steerage.merge(edges, finish=True)
    write(merged, os.path.join(directory, "flows-joined.parquet"))
    return merged


def meter(files, directory, processes=None):
    """Meter all files, and write the flows that continue from file to file."""
    todo, edges = dict(enumerate(files)), {}
    for _ in range(TRIES_MAX):
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            running = {pool.submit(work, number, path, directory): number for number, path in todo.items()}
            for future in as_completed(running):
                try:
                    edges[running[future]] = future.result()
                except BrokenProcessPool:
                    continue
                del todo[running[future]]
        if not todo:
            break
    else:
        raise RuntimeError(f"{list(todo.values())} killed each process that metered them: give the processes more memory")
    return join(edges.values(), directory)


def main():
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Meters the files of a recording in many processes.")
    parser.add_argument("directory", help="the directory for the flows")
    parser.add_argument("files", nargs="+", help="captures, in the order of time")
    parser.add_argument("--processes", type=int, help="the number of processes (default: one for each CPU)")
    arguments = parser.parse_args()
    os.makedirs(arguments.directory, exist_ok=True)
    try:
        merged = meter(arguments.files, arguments.directory, arguments.processes)
    except (steerage.SteerageError, RuntimeError) as error:
        sys.exit(f"pool.py: {error}")
    print(f"{len(arguments.files)} files, {merged.joined} flows continued from one file to the next")


if __name__ == "__main__":
    main()
