"""Sections in ELF files, linked and as objects, for tools that read files and for linkers."""
