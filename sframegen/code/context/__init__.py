"""A file -> what is known outside each function: starts, callees, jump tables, PLT."""
