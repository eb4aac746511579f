"""Digests of all that sframegen writes for real files."""
