"""A package and what to do with each ELF file in it -> the same package with other files, or only what was seen.

Packages are wheels, Debian packages and tar archives. Each format is read and written in one pass over its entries: nothing is
unpacked under the names that a package gives.
"""
