"""The size of the ring buffer follows what is sampled."""

from __future__ import annotations

from sframegen.profile.bpf.sampling_settings import MIB, Sampling, ring_bytes

GIB = 1 << 30


def test_size() -> None:
    cases = [
        (Sampling(frequency=999), 2, GIB, 64 * MIB),  # 62.4 MiB are needed
        (Sampling(frequency=99), 2, GIB, 8 * MIB),
        (Sampling(frequency=999), 64, GIB, 64 * MIB),  # the most
        (Sampling(frequency=1), 1, GIB, MIB),  # the least
        (Sampling(frequency=999), 2, 100 * MIB, 8 * MIB),
        (Sampling(frequency=999, buffer_size=3 * MIB), 2, GIB, 2 * MIB),  # no more than was asked for
    ]
    found = [ring_bytes(sampling, cpus, memory) for sampling, cpus, memory, _ in cases]
    assert found == [expected for *_, expected in cases]
