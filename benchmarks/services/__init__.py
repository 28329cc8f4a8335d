"""`python -m benchmarks services`: how fast a deployment is, beside what it is made of."""
