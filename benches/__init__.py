"""Benchmarks of threadloader against its rivals and against the machine's limit.

==================  ==========================================================
`north_star`        The headline: all rivals, interleaved, against the targets.
`gil_vs_nogil`      The same loader on builds with and without the GIL.
`self_driving`      The default number of threads, beside every fixed one.
`interference`      What loading costs a consumer that is bound by launches.
`libraries`         Thirty libraries, each beside torch's loader.
`counting`          This checkout's batches and epochs, beside another one's.
`gpu`               Copies to a CUDA device; `gpu_checks` verifies batches.
`stateful`          Whether samples mix, of datasets that keep handles.
`verdicts`          Whether the verdict names the right cause.
`symptoms`          Memory and start of torch's workers, and of threads.
==================  ==========================================================
`decode`, `parquet`, `rng`, `stores` and `token_batches` are of one page
each.
==================  ==========================================================
`workloads`         What is loaded.
`loaders`           Who loads it: one rival a file.
`harness`           How all of them measure.
`figures`           Writes the documentation's figures from the results;
                    `pictures` draws them, with `drawing`.
==================  ==========================================================

Run them from the repository's root: ``python -m benches.north_star``.
"""
