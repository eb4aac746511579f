"""What is fuzzed, a file each: `SEEDS`, the seeds that it starts from, and `run`, which raises where there is a bug."""
