"""Parts of `sframegen link`: finding the file that a linker writes, and shims that run in the place of linkers."""
