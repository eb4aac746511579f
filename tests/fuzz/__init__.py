"""Coverage-guided fuzzing: `python -m fuzz --help`, with tests/ on the path."""
