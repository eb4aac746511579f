"""A section and the instructions of its file -> where they contradict each other."""
