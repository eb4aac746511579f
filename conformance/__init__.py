"""The specification of SFrame, as small sections with verdicts, for whoever writes a reader, a writer or a linker: README.md.

Nothing that decides what a section says imports sframegen, so that sframegen is judged, too.
"""

from __future__ import annotations

VERSION = "1"  # of the suite: another one where a verdict or an answer changes
