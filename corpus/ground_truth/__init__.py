"""Profiles of programs whose possible stacks are known -> how many stacks cannot be."""
