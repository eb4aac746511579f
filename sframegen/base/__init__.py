"""The foundation of all packages: errors, typed columns, the boundary of the work on one file, text formatting."""
