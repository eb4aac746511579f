from cfi.search cimport bisect_left
from cfi.columns cimport Entries
