"""Small changes of meaning in the product, drawn with a seed, each judged by the nearest folder of tests: docs/testing.md.

An interpreted environment goes in, a copy of which gets one mutant at a time; killed and surviving mutants come out.
"""
