"""Each feature of the specification alone, and the pairs that matter: a table a subject."""
