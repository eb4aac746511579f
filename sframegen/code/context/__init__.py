"""A file -> what is known around its functions: starts, callees, jump tables, PLT."""
