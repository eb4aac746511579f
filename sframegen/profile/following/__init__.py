"""Records of the kernel and /proc -> which file each process has mapped where."""
