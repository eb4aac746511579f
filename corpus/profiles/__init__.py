"""Stacks that the kernel program of `sframegen profile` walked, judged at the same stops."""
