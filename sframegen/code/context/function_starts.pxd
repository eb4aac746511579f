from cfi.search cimport bisect_right
