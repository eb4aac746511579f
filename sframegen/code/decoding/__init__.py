"""Bytes of code -> columns of the instructions that matter."""
