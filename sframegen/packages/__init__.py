"""A package and what to do with each ELF file in it -> the same package with other files, or only what was seen.

Packages are wheels, .deb, .rpm, conda, Arch and Alpine packages, tar archives, container images, squashfs images. Each format is
read and written in one pass over its entries: nothing is unpacked under the names that a package gives.
"""
