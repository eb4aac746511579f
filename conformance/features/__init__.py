"""Each feature of the specification alone, and the pairs that matter: a table a subject, for each version and machine that has it."""
