"""Who loads: one rival a file, all behind the protocol of `benches.loaders.catalog`."""
