#!/usr/bin/env python3
"""Meters the files of a recording in the executors of Spark, and writes the flows as Parquet.

    pip install steerage pyarrow pandas pyspark
    python3 examples/cluster/with_spark.py flows/ monday-*.pcap

The files are given in the order of time. On a cluster, `--master` names it, and the directory is one that all machines share. With
--kill N, the executor that meters file N is killed in the middle, Spark starts the task again, and the flows are compared with those of
the whole (pip install duckdb).
"""

import argparse
import os
import sys

import pool
import pyarrow as pa
from killed import Killed, check, parent
from pyspark.sql import SparkSession

HERE = os.path.dirname(os.path.abspath(__file__))


def metering(directory, victim, marker):
    """The function for `mapInArrow`: numbers and paths come in, numbers and edges go out."""

    def work(batches):
        for batch in batches:
            for number, path in zip(*(column.to_pylist() for column in batch.columns)):
                # The parent of this process is Spark's daemon, whose parent is the executor.
                source = Killed(path, marker, parent(os.getppid())) if number == victim else path
                edges = pool.work(number, source, directory)
                yield pa.RecordBatch.from_pydict({"number": [number], "edges": [edges]})

    return work


def main():
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Meters the files of a recording in the executors of Spark.")
    parser.add_argument("directory", help="the directory for the flows")
    parser.add_argument("files", nargs="+", help="captures, in the order of time")
    parser.add_argument("--master", default="local-cluster[2,1,1024]", help="default: two executors on this machine")
    parser.add_argument("--kill", type=int, metavar="N", help="kill the executor of this file")
    arguments = parser.parse_args()
    directory, marker = os.path.abspath(arguments.directory), os.path.abspath(arguments.directory) + "/killed"
    os.makedirs(directory, exist_ok=True)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    options = {"spark.executorEnv.PYTHONPATH": HERE, "spark.ui.enabled": "false"}
    spark = SparkSession.builder.master(arguments.master).config(map=options).getOrCreate()
    files = [(number, path if "://" in path else os.path.abspath(path)) for number, path in enumerate(arguments.files)]
    # A task for each file, so that a file is all that is metered again.
    rows = spark.sparkContext.parallelize(files, len(files)).toDF("number long, path string")
    parts = rows.mapInArrow(metering(directory, arguments.kill, marker), "number long, edges binary").collect()
    spark.stop()
    merged = pool.join([bytes(part.edges) for part in parts], directory)
    print(f"{len(files)} files, {merged.joined} flows continued from one file to the next")
    if arguments.kill is not None:
        check(arguments.files, directory, marker)


if __name__ == "__main__":
    main()
