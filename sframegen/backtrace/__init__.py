"""Stack traces from inside a process: a C library that walks the stack with the SFrame sections that the process has loaded.

The library needs nothing but libc. Programs may also compile `sframe_backtrace.c` into themselves.
"""
