"""Time every member of the product's bitwise class for a shape, check its bits, keep the fastest."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
import triton
from torch import Tensor

from .cublaslt import cublaslt
from .matmul import run_member
from .matmul_table import (
    BUCKETS,
    REFERENCE,
    Member,
    TritonMember,
    bucket_rows,
    load_table,
    save_table,
    table_key,
    triton_members,
)

__all__ = ["candidates", "time_graph", "tune_matmul"]

_COLD_BYTES = 256 << 20  # several times the L2, so that a repeat is never served by it


def candidates(rows: int, out_features: int, in_features: int, dtype: torch.dtype) -> list[Member]:
    """Every member that is worth timing for this shape."""
    members: list[Member] = list(triton_members(rows))
    library = cublaslt()
    if in_features % 8 == 0 and out_features % 8 == 0 and library is not None:
        members += library.algorithms(rows, out_features, in_features, dtype)[:10]
    return [m for m in members if in_features % 8 == 0 or (isinstance(m, TritonMember) and not m.tma)]


def tune_matmul(
    shapes: Iterable[tuple[int, int]],
    rows: Sequence[int] = BUCKETS,
    *,
    dtype: torch.dtype = torch.bfloat16,
    report: Callable[[str], None] | None = None,
) -> None:
    """Time the class for weights of `shapes` (out, in) at each bucket of `rows`; keep the fastest in the user's cache.

    A candidate whose bits differ from the reference member's on random data is dropped. Tuned shapes are skipped.
    """
    table = load_table()
    for out_features, in_features in shapes:
        for bucket in sorted({bucket_rows(count) for count in rows}):
            key = table_key(bucket, out_features, in_features, dtype)
            if key not in table:
                table[key] = _fastest(bucket, out_features, in_features, dtype, report)
        save_table(table)


def time_graph(launches: Sequence[Callable[[], object]], *, replays: int = 5) -> float:
    """Microseconds of one launch: the median over replays of a CUDA graph that holds `launches` in order."""
    launches[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    graph.replay()
    times: list[float] = []
    for _ in range(replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(launches))
    return statistics.median(times)


def _fastest(
    rows: int, out_features: int, in_features: int, dtype: torch.dtype, report: Callable[[str], None] | None
) -> Member:
    generator = torch.Generator("cuda").manual_seed(out_features * 1_000_003 + in_features)
    copies = max(2, min(64, _COLD_BYTES // (out_features * in_features * 2)))
    weights = [_random((out_features, in_features), generator) for _ in range(copies)]
    x = _random((rows, in_features), generator)
    fewest = max((bucket for bucket in BUCKETS if bucket < rows), default=0) + 1
    want = _product(REFERENCE, x, weights[0], dtype)
    out = torch.empty_like(want)
    timed: list[tuple[float, Member]] = []
    for member in candidates(rows, out_features, in_features, dtype):
        try:
            got = _product(member, x, weights[0], dtype)
            # The bucket's smallest number of rows too: a library may treat it in another way.
            few = _product(member, x[:fewest], weights[0], dtype)
        except (triton.runtime.errors.OutOfResources, RuntimeError) as error:
            if report is not None:
                report(f"{rows}x{out_features}x{in_features} {member}: {type(error).__name__} {error}")
            continue
        if not torch.equal(got, want) or not torch.equal(few, want[:fewest]):
            if report is not None:
                report(f"{rows}x{out_features}x{in_features} {member}: other bits, dropped")
            continue
        timed.append((time_graph(_launches(member, x, weights, out)), member))
    assert timed, "no member of the class ran"
    finals = [member for _, member in sorted(timed, key=lambda entry: entry[0])[:4]]
    times = [time_graph(_launches(member, x, weights, out), replays=25) for member in finals]
    return finals[times.index(min(times))]


def _launches(member: Member, x: Tensor, weights: Sequence[Tensor], out: Tensor) -> list[Callable[[], object]]:
    return [partial(run_member, member, x, weight, out) for weight in weights]


def _product(member: Member, x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    out = torch.full((x.shape[0], weight.shape[0]), torch.nan, dtype=dtype, device=x.device)
    run_member(member, x, weight, out)
    return out


def _random(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)
