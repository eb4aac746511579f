"""Counted stacks -> names -> tables, flame graphs, and the formats of other profilers."""
