"""Benchmarks of threadloader against its rivals and against the machine's limit.

==================  ==========================================================
`north_star`        The headline: all rivals, interleaved, against the targets.
`gil_vs_nogil`      The same loader on builds with and without the GIL.
`figures`           Writes the documentation's figures from the results.
`pictures`          Draws them; `drawing` is what they are drawn with.
`decode`            Image decoders on several interpreters.
`gather`            Array datasets, next to indexing the array.
`remote_reads`      Ranges of a web server that takes its time.
`rng`               What a random stream for each sample costs.
`stateful`          Whether samples mix, of datasets that keep what they work on.
`gpu`               Copies to a CUDA device; `gpu_checks` verifies batches there.
==================  ==========================================================
`workloads`         What is loaded: one dataset class a file.
`loaders`           Who loads it: one rival a file.
`harness`           How all of them measure.
`results`           What was measured, and its pictures.
==================  ==========================================================

Run them from the repository's root: ``python -m benches.north_star``.
"""
