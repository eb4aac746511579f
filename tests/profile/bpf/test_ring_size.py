"""The size of the ring buffer follows what is sampled."""

from __future__ import annotations

from sframegen.profile.bpf.kernel_walker import MIB, choose_ring_size


def test_size() -> None:
    cases = [
        (999, 2, 64 * MIB),  # 62.4 MiB are needed
        (99, 2, 8 * MIB),
        (999, 64, 64 * MIB),  # the most
        (1, 1, MIB),  # the least
        (0, 1, 8 * MIB),  # page faults
    ]
    assert [choose_ring_size(hertz, cpus) for hertz, cpus, _ in cases] == [expected for *_, expected in cases]
