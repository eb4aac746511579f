"""Addresses in files with debug information -> functions, those inlined there too, with source files and lines."""
