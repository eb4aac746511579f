"""For `link`: the file that a linker writes, and shims in the place of linkers."""
