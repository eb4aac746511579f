"""A file -> facts from outside each function: starts, callees, jump tables, PLT."""
