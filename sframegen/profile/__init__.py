"""Samples the stacks of running processes, walked in the kernel by BPF or from copies, and reports them in many formats."""
