from cfi.columns cimport Entries, Fdes, Programs, Rows
