from cfi.columns cimport Entries
