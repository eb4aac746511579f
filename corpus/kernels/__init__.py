"""The kernel program of `sframegen profile` on Debian's kernels, each in a virtual machine."""
