"""FunctionTable -> FunctionTable: smaller, of another version, joined, compared; many gathered into one."""
