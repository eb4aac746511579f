"""Python's own zstd, which is a package before 3.14: `from tests.support.zstandard import zstd`."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["zstd"]
