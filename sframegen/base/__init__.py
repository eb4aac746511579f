"""The base of all packages: errors, typed columns, the boundary of the work on one file, and text formatting."""
