from collections.abc import Iterator

CS_ARCH_ARM64: int
CS_ARCH_X86: int
CS_MODE_64: int
CS_MODE_ARM: int

class Cs:
    skipdata: bool
    def __init__(self, arch: int, mode: int) -> None: ...
    def disasm_lite(self, code: bytes, offset: int, count: int = 0) -> Iterator[tuple[int, int, str, str]]: ...
