"""Reads of a web server that takes 10 ms for each: how near 32 threads come to 32 per 10 ms.

``python -m benches.remote_reads``

The server is a process of its own on this machine, which waits 10 ms from a request's arrival and
sends 4 KiB.  Each lane reads the same ranges with as many threads, turn by turn in an order that
rotates; connections are open before the clock starts.  CPU is that of the client's process.

- sleep: threads that sleep 10 ms, which is what this machine can do at all, by themselves and in a
  `ThreadLoader`, which is what the loader costs;
- bare sockets: a loop in each thread with next to no code;
- RemoteFile: a loop over ``read_at`` in each thread, and the same in a `ThreadLoader`;
- fsspec's own client and urllib3, if they are installed: a loop in each thread.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Barrier, Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from benches.harness.machine import describe, python_label
from benches.harness.rounds import Spread
from benches.harness.tables import align, machine_lines, show_ratio, show_spread
from threadloader import ThreadLoader
from threadloader.datasets import RemoteFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LATENCY_S = 0.010
SAMPLE_BYTES = 4096
SAMPLES = 1000  # in the file
CONTENT = np.random.default_rng(17).bytes(SAMPLES * SAMPLE_BYTES)
BATCH = 32  # samples
RANGE = re.compile(rb"bytes=(\d+)-(\d+)")


def main() -> int:
    """Run the rounds, print the table, return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.remote_reads", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=32)
    parser.add_argument("--requests", type=int, default=100, help="of each thread, in a round")
    parser.add_argument("--serve", action="store_true", help="be the server")
    options = parser.parse_args()
    if options.serve:
        serve()
    with _server() as port:
        rates, cores = _measure(_lanes(port, options.threads), options)
    limit = options.threads / LATENCY_S
    print(machine_lines([(python_label(), describe())]))
    rows = [
        [
            name,
            show_spread(Spread.of(rates[name])),
            show_ratio(Spread.of([rate / limit for rate in rates[name]]), 3),
            show_ratio(Spread.of(_ratios(rates[name], rates["bare sockets"])), 3),
            show_ratio(Spread.of(cores[name])),
        ]
        for name in rates
    ]
    header = ["lane", "requests/s", f"x {limit:,.0f}/s", "x bare sockets", "cores"]
    print(f"\n{options.threads} threads, 10 ms a request of {SAMPLE_BYTES} bytes")
    print(align(header, rows))
    return 0


@dataclass(frozen=True, slots=True)
class Samples:
    """A dataset over one remote file.

    Args:
        read: Returns the sample at an offset.
        count: The dataset's length; the file's samples come again and again.
    """

    read: Callable[[int], bytes]
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return np.frombuffer(self.read(index % SAMPLES * SAMPLE_BYTES), np.uint8)


def _lanes(port: int, threads: int) -> dict[str, Callable[[int], tuple[float, float]]]:
    """Return what measures each lane: from requests of a thread to (seconds, seconds of CPU)."""
    url = f"http://127.0.0.1:{port}/data.bin"
    file = RemoteFile(url)

    def loop(make: Callable[[], Callable[[int], bytes]]) -> Callable[[int], tuple[float, float]]:
        return lambda requests: _in_threads(make, threads, requests)

    def read(offset: int) -> bytes:
        return file.read_at(offset, SAMPLE_BYTES)

    found: dict[str, Callable[[int], tuple[float, float]]] = {
        "sleep": loop(lambda: _asleep),
        "sleep, ThreadLoader": lambda requests: _in_a_loader(_asleep, threads, requests),
        "bare sockets": loop(lambda: _on_a_socket(port)),
        "RemoteFile": loop(lambda: read),
        "RemoteFile, ThreadLoader": lambda requests: _in_a_loader(read, threads, requests),
    }
    if importlib.util.find_spec("aiohttp"):
        import fsspec

        system = fsspec.filesystem("http")
        found["fsspec, aiohttp"] = loop(
            lambda: lambda at: system.cat_file(url, start=at, end=at + SAMPLE_BYTES)
        )
    if importlib.util.find_spec("urllib3"):
        import urllib3

        def one() -> Callable[[int], bytes]:
            pool = urllib3.PoolManager(maxsize=1)  # one a thread: they contend for a common one
            return lambda at: (
                pool.request(
                    "GET", url, headers={"Range": f"bytes={at}-{at + SAMPLE_BYTES - 1}"}
                ).data
            )

        found["urllib3"] = loop(one)
    return found


def _measure(
    lanes: dict[str, Callable[[int], tuple[float, float]]], options: argparse.Namespace
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return requests a second and cores in use, by lane and round."""
    rates: dict[str, list[float]] = {name: [] for name in lanes}
    cores: dict[str, list[float]] = {name: [] for name in lanes}
    names = list(lanes)
    for number in range(options.rounds + 1):
        turn = number % len(names)
        for name in (*names[turn:], *names[:turn]):
            seconds, cpu = lanes[name](options.requests if number else 10)
            if number:  # the first round is the warm-up
                rates[name].append(options.threads * options.requests / seconds)
                cores[name].append(cpu / seconds)
        print(f"  round {number}/{options.rounds}", file=sys.stderr)
    return rates, cores


def _in_threads(
    make: Callable[[], Callable[[int], bytes]], threads: int, requests: int
) -> tuple[float, float]:
    """Let each thread read so many ranges; return seconds, and seconds of CPU."""
    barrier = Barrier(threads + 1)

    def run(number: int) -> None:
        read = make()
        read(0)
        barrier.wait()
        for request in range(requests):
            offset = (number * requests + request) % SAMPLES * SAMPLE_BYTES
            if read(offset) != CONTENT[offset : offset + SAMPLE_BYTES]:
                sys.exit("wrong bytes")

    pool = [Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in pool:
        thread.start()
    barrier.wait()
    started, cpu = time.perf_counter(), time.process_time()
    for thread in pool:
        thread.join()
    return time.perf_counter() - started, time.process_time() - cpu


def _in_a_loader(read: Callable[[int], bytes], threads: int, requests: int) -> tuple[float, float]:
    """Load an epoch; return seconds, threads' start included, and seconds of CPU."""
    count = threads * requests
    loader = ThreadLoader(Samples(read, count), BATCH, threads=threads, output="numpy")
    started, cpu = time.perf_counter(), time.process_time()
    seen = 0
    for batch in loader:
        seen += len(batch)
    taken = time.perf_counter() - started, time.process_time() - cpu
    if seen != count:
        sys.exit(f"{seen} samples of {count}")
    return taken


def _asleep(offset: int) -> bytes:
    """Wait as long as a request takes."""
    time.sleep(LATENCY_S)
    return CONTENT[offset : offset + SAMPLE_BYTES]


def _on_a_socket(port: int) -> Callable[[int], bytes]:
    """Return what reads a range on a connection of its own, with next to no code."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def read(offset: int) -> bytes:
        ends = b"%d-%d" % (offset, offset + SAMPLE_BYTES - 1)
        connection.sendall(
            b"GET /data.bin HTTP/1.1\r\nHost: here\r\nRange: bytes=%b\r\n\r\n" % ends
        )
        data = b""
        while not (found := data.partition(b"\r\n\r\n"))[1] or len(found[2]) < SAMPLE_BYTES:
            data += connection.recv(1 << 16)
        return found[2]

    return read


def _ratios(mine: list[float], other: list[float]) -> list[float]:
    """Return the ratios within each round."""
    return [rate / its for rate, its in zip(mine, other, strict=True)]


@contextmanager
def _server() -> Iterator[int]:
    """Run the server in a process of its own; the context's value is its port."""
    command = [sys.executable, "-m", "benches.remote_reads", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None  # noqa: S101  # for the types
            yield int(process.stdout.readline())
        finally:
            process.kill()


def serve() -> None:
    """Answer for ever, each request 10 ms after it has come.

    A thread for each connection: of the ways tried it keeps the time best, next to `select` and
    asyncio, in which answers that are due at once wait for one another.
    """
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    print(listener.getsockname()[1], flush=True)
    while True:
        client, _ = listener.accept()
        Thread(target=_serve, args=(client,), daemon=True).start()


def _serve(client: socket.socket) -> None:
    """Answer the requests of one connection."""
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with client:
        while request := client.recv(1 << 16):
            came = time.monotonic()
            answer = _answer(request)
            time.sleep(max(0.0, came + LATENCY_S - time.monotonic()))
            client.sendall(answer)


def _answer(request: bytes) -> bytes:
    """Return the answer to a request."""
    found = RANGE.search(request)
    if found is None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(CONTENT)
        return head if request.startswith(b"HEAD") else head + CONTENT
    first, last = int(found[1]), int(found[2])
    head = b"Content-Length: %d\r\nContent-Range: bytes %d-%d/%d\r\n" % (
        *(last - first + 1, first, last),
        len(CONTENT),
    )
    body = CONTENT[first : last + 1]
    return b'HTTP/1.1 206 Partial Content\r\nETag: "17"\r\n' + head + b"\r\n" + body


if __name__ == "__main__":
    sys.exit(main())
