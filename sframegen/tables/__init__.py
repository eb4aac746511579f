"""FunctionTable -> FunctionTable: smaller, of another version, joined, compared."""
