"""Benchmarks of threadloader against its rivals and against the machine's limit.

==================  ==========================================================
`workloads`         What is loaded: one dataset class a file.
`loaders`           Who loads it: one rival a file.
`measurement`       One loader, one workload, in one fresh process.
`runner`            Starts that process cleanly and prints its one JSON line.
`north_star`        The headline: all rivals, interleaved, against the targets.
`gil_vs_nogil`      The same loader on builds with and without the GIL.
==================  ==========================================================

Run them from the repository's root: ``python -m benches.north_star``.
"""
