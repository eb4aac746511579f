"""Many packages -> a row for each of their ELF files, sections, rewritten packages; rows -> a report. Processes here or workers of Dask do the work."""
