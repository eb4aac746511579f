"""Coverage-guided fuzzing: `python -m tests.fuzz --help`."""
