"""A source -> its packages, one after the other: a directory, a list, a glob, a URL, an index of a repository."""
