"""Profiles in files: of one interval each in a directory, and what is read from such files, or from pprof's of others."""
