"""Streams, measured: queues, workers and the server of a stream as real processes. Chapters of `python -m benchmarks.run`."""
