"""The project's own rules on its sources and documents: `python -m tools.lint` lists all that break one.

A rule is a function that yields offenders, `path:line: text`, of the files that git tracks.
"""
