"""Processes each ELF file in a package, and writes the same package with changed files, or only reports what it saw.

Packages are wheels, Debian packages and tar archives. Each format is read and written in one pass over its entries: nothing is
unpacked under the names that a package gives.
"""
