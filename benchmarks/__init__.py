"""Measurements: `python -m benchmarks.run` writes `benchmarks/RESULTS.md`."""
