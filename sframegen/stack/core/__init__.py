"""A core file -> the same, as it was when the process ended."""
