"""Lists and fetches the packages of a source: a directory, a list, a glob, a URL, or a repository's index."""
