"""Finds the objects that a process has loaded, and the rules of their code."""
