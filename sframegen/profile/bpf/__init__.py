"""The kernel program (BPF), which walks and counts user stacks, and the modules that load it and read its results."""
