"""Stack traces from inside a process: a C library, `sframe_backtrace.h` and `sframe_backtrace.c`.

What goes in are the SFrame sections that the process has loaded; what comes out are return addresses. The library needs
nothing but a C library; programs may also compile the two files in.
"""
