"""Rows of call frame information -> FunctionTable, and what could not be said, by reason."""
