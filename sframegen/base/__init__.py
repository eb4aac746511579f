"""What every room stands on: errors, typed columns, the boundary of the work on one file, texts for people."""
