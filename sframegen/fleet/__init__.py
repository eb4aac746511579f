"""Many packages -> a row for each of their ELF files, sections, rewritten packages; rows -> a report. Processes or Dask do it."""
