"""What a user names -> the packages there, one after the other: a directory, a list, a glob, a URL, an index of a repository."""
