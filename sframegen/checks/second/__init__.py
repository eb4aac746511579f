"""Compares a section with the call frame information as pyelftools reads it, independently of the package `cfi`."""
