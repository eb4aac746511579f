"""Samples of running processes -> stacks -> pictures: in the kernel by BPF, or from copies of stacks."""
