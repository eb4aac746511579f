"""Reads ELF files: segments, sections, symbols, relocations, notes, dynamic tags; ranges of addresses; function names."""
