"""Processes many packages, with local processes or Dask: tables with a row for each ELF file, rewritten packages, a report."""
