"""Converts rows of call frame information to a FunctionTable, and records by reason the code that SFrame cannot express."""
