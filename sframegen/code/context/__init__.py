"""Finds the facts of a file that the analysis of a function needs from outside: starts, callees, jump tables, PLT."""
