"""Processes each ELF file in a package, and writes the package with the changed files or only makes a report.

Packages are wheels, Debian packages and tar archives. Each format is read and written in a pass over its entries, so that no
file is ever created under a name from a package.
"""
