"""A linked file that has an SFrame section -> the same with another one in its place, without it, or as it was before."""
