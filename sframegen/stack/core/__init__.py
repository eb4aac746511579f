"""A core file -> the threads, registers and memory of the process when it ended."""
