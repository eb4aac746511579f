"""What each ABI and its kernel fix: layouts of registers, signal frames, frame pointers. A file for each machine."""
