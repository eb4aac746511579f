"""ELF bytes -> segments, sections, symbols, dynamic tags; ranges of addresses, and names as they are printed."""
