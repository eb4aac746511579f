"""Reads DWARF call frame information (`.eh_frame` and `.debug_frame`) into rows. It neither handles SFrame nor writes ELF.

A package of sframegen.
"""
