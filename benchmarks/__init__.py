"""Speed, memory and error of `overhand` beside its peers, in one run: `python -m benchmarks`."""
