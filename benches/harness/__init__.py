"""How all benches measure: fresh processes, interleaved rounds, and tables with their spread."""
