"""Seeds of requests, and of everything derived from a request."""

import hashlib
import secrets
from collections.abc import Sequence

__all__ = ["SEED_LIMIT", "derive_seed", "draw_seed", "sample_seed"]

SEED_LIMIT = 2**63


def draw_seed() -> int:
    """A seed 0 <= seed < 2**63 from the operating system, for a request that names none."""
    return secrets.randbits(63)


def sample_seed(seed: int, sample: int) -> int:
    """The seed of sample number `sample` of n. Sample 0 has the request's own: it equals the result of n = 1."""
    return derive_seed(seed, ("sample", sample)) if sample else seed


def derive_seed(seed: int, path: Sequence[str | int]) -> int:
    """The seed 0 <= s < 2**63 that belongs to `path` below `seed`, for example ``("branch", 2, "gen", "answer")``.

    It is the first 8 bytes, as a big-endian number with the top bit cleared, of SHA-256 over these bytes: the seed as 8
    bytes; then for each element of the path either ``i`` and the number as 8 bytes, two's complement, or ``s``, the
    number of UTF-8 bytes as 8 bytes and these bytes (a lone surrogate as its three-byte form). All numbers are
    big-endian. No two paths have the same bytes.
    """
    digest = hashlib.sha256(seed.to_bytes(8, "big"))
    for element in path:
        if isinstance(element, str):
            text = element.encode("utf-8", "surrogatepass")
            digest.update(b"s" + len(text).to_bytes(8, "big") + text)
        else:
            digest.update(b"i" + element.to_bytes(8, "big", signed=True))
    return int.from_bytes(digest.digest()[:8], "big") % SEED_LIMIT
