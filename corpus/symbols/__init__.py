"""Source lines and inlined functions that `sframegen profile` finds, judged by llvm-symbolizer."""
