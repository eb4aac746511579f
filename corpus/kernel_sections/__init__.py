"""Sections of kernels and their modules: Debian's, and a stock kernel built with the step."""
