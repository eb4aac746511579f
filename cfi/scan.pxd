from cfi.search cimport bisect_left
from sframegen.base.columns cimport ByteReader, Entries
