"""Frames that glibc's backtrace() finds by SFrame sections alone, beside those that it finds by DWARF."""
