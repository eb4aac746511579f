"""DWARF call frame information -> rows. Knows `.eh_frame` and `.debug_frame`; knows neither SFrame nor how to write ELF.

A package of sframegen.
"""
