from __future__ import annotations

from sframegen.cli import main

if __name__ == "__main__":
    main()
