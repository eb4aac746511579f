"""Reads from a process's memory which code it made at run time, and the rules of that code: docs/registration.md."""
