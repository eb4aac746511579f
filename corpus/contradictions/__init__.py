"""CFI that instructions contradict, in many files: found, kept, grouped, reported."""
