"""ELF bytes -> segments, sections, symbols, relocations, notes, dynamic tags; ranges of addresses; names and numbers as text."""
