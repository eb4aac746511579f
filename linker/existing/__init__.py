"""A linked file that has an SFrame section -> the file with another section, without one, or the original."""
