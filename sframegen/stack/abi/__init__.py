"""The stack conventions of ABIs and kernels: layouts of registers, signal frames, frame pointers. A file for each machine."""
