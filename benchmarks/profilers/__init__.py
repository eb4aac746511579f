"""`sframegen profile` and the profilers that people use instead: whole stacks, cost for the target, cost of a sample, memory."""
