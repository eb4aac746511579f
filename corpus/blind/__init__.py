"""The blind test of `sframegen.code`: CFI hidden, found again by the instructions alone, and compared byte by byte."""
