"""Analyses all functions of a file, and makes rows for code without call frame information."""
