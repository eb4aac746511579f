from __future__ import annotations

from sframegen.program import main

if __name__ == "__main__":
    main()
