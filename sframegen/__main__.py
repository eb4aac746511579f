"""Runs the program for `python -m sframegen`."""

from __future__ import annotations

import sys

# `python -m` puts the current directory first on sys.path, where a file such as click.py could replace a module of ours.
if not sys.flags.safe_path and not __file__.startswith(f"{sys.path[0]}/"):
    del sys.path[0]

from sframegen.cli.start import main

if __name__ == "__main__":
    main()
