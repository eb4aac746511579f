from __future__ import annotations

import sys

# `python -m` looks for all modules in the current directory first, where click.py may be anything.
if not sys.flags.safe_path and not __file__.startswith(f"{sys.path[0]}/"):
    del sys.path[0]

from sframegen.cli.start import main

if __name__ == "__main__":
    main()
