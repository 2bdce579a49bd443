"""Time the Triton kernels, or check their invariance bit for bit, on one GPU.

    python benchmarks/gpu.py kernels --json results.json
    python benchmarks/gpu.py invariance --json results.json

Times are microseconds of one launch: medians over replays of CUDA graphs that rotate over enough inputs to keep the L2
cache from serving a repeat; data are random. The floor of a row is the larger of its bytes over the measured copy
bandwidth and its operations over the measured rate of a large product. `peer` is torch.matmul in the same run, or
FlashMLA's published-source build measured on another day on the same kind of GPU.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
import triton
from torch import Tensor

from drawloom.kernels import (
    embedding,
    log_softmax,
    matmul,
    matmul_table,
    matmul_tuning,
    mla_decode,
    mla_plan,
    moe_gate,
    moe_grouped_gemm,
    moe_permute,
    rms_norm,
    rope,
    sampling,
    swiglu,
)
from drawloom.kernels.matmul_tuning import time_graph

HEAD_DIM, LATENT, ROPE, PAGE = 576, 512, 64, 64
COLD = 400 << 20
MATMUL_SHAPES = [(2048, 2048), (7168, 2048), (18432, 2048), (2048, 7168), (7168, 7168), (18432, 7168)]  # out, in
MATMUL_ROWS = [1, 8, 32, 128, 512, 4096]
V2_LITE = [(3072, 2048), (576, 2048), (2048, 2048), (5632, 2048), (2048, 2816), (21888, 2048), (2048, 10944)]
V2_LITE += [(102400, 2048), (64, 2048)]
V3 = [(1536, 7168), (576, 7168), (24576, 1536), (7168, 16384), (36864, 7168), (7168, 18432), (4096, 7168)]
V3 += [(7168, 2048), (256, 7168), (129280, 7168)]
FP32_OUT = (64, 256, 102400, 129280)  # routers and heads
# FlashMLA (9241ae3) on an H200, November 2026: microseconds by query tokens, then batch, at 1k, 4k, 16k and 32k keys.
FLASH_MLA = {
    1: {1: (11.2, 23.0, 40.0, 45.5), 8: (13.0, 23.0, 49.0, 85.4), 32: (20.9, 47.7, 152.8, 288.1),
        128: (44.4, 147.9, 570.3, 1121.9)},
    2: {1: (12.1, 23.8, 40.4, 45.3), 8: (14.4, 24.3, 50.7, 86.0), 32: (22.1, 49.6, 153.5, 293.9),
        128: (45.7, 150.2, 598.8, 1163.0)},
}  # fmt: skip
LENGTHS = (1024, 4096, 16384, 32768)

Item = TypeVar("Item")


@dataclass
class Timing:
    kernel: str
    case: str
    us: float
    floor_us: float
    peer_us: float | None = None

    def row(self) -> str:
        peer = "" if self.peer_us is None else f"{self.peer_us:9.1f} {self.us / self.peer_us:6.2f}x"
        floor = f"{self.floor_us:9.2f} {self.us / self.floor_us:6.2f}x"
        return f"{self.kernel:18} {self.case:34} {self.us:9.1f} {floor} {peer}"


class Bench:
    def __init__(self) -> None:
        self.generator = torch.Generator("cuda").manual_seed(1)
        self.timings: list[Timing] = []
        big = torch.empty(1 << 30, dtype=torch.int32, device="cuda").random_(generator=self.generator)
        target = torch.empty_like(big)
        self.bandwidth = 2 * big.nbytes / time_graph([partial(torch.add, big, 1, out=target)])  # bytes a microsecond
        a, b = self.random(8192, 8192), self.random(8192, 8192)
        self.rate = 2 * 8192**3 / time_graph([lambda: torch.matmul(a, b)] * 4)  # operations a microsecond
        empty = torch.zeros(1, device="cuda")
        self.empty_us = time_graph([lambda: empty.add_(1)] * 64)

    def random(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(shape, generator=self.generator, device="cuda", dtype=dtype)

    def add(
        self, kernel: str, case: str, us: float, *, moved: float, operations: float = 0.0, peer: float | None = None
    ) -> None:
        floor = max(moved / self.bandwidth, operations / self.rate)
        self.timings.append(Timing(kernel, case, us, floor, peer))
        print(self.timings[-1].row(), flush=True)

    def sets(self, make: Callable[[], Item], nbytes: int) -> list[Item]:
        """Input sets that together exceed the L2 cache several times."""
        return [make() for _ in range(max(2, min(48, COLD // max(1, nbytes))))]


def bench_matmul(bench: Bench) -> None:
    matmul_tuning.tune_matmul(MATMUL_SHAPES, MATMUL_ROWS, report=print)
    for out_features, in_features in MATMUL_SHAPES:
        copies = max(3, min(48, COLD // (out_features * in_features * 2)))
        packed = [matmul.pack_weight(bench.random(out_features, in_features)) for _ in range(copies)]
        for rows in MATMUL_ROWS:
            x = bench.random(rows, in_features)
            ours = [lambda w=w: matmul.matmul(x, w) for w in packed]
            theirs = [lambda w=w: torch.matmul(x, w.data.t()) for w in packed]
            # Alternating, because the clock drifts with the power limit.
            times = [(time_graph(ours), time_graph(theirs)) for _ in range(3)]
            us, peer = (statistics.median(column) for column in zip(*times, strict=True))
            moved = 2 * (out_features * in_features + rows * (in_features + out_features))
            operations = 2.0 * rows * out_features * in_features
            case = f"rows {rows} in {in_features} out {out_features}"
            bench.add("matmul", case, us, moved=moved, operations=operations, peer=peer)


def bench_mla(bench: Bench) -> None:
    pages = 4_300_000 // PAGE
    cache = torch.empty((pages, PAGE, HEAD_DIM), dtype=torch.bfloat16, device="cuda")
    for start in range(0, pages, 8192):
        cache[start : start + 8192] = bench.random(min(8192, pages - start), PAGE, HEAD_DIM)
    shuffled = torch.randperm(pages, dtype=torch.int32).cuda()

    def timed(batch: int, length: int, query_len: int) -> float:
        need = batch * length // PAGE
        count = max(2, min(256, (320 << 20) // (batch * length * HEAD_DIM * 2)))
        plan = mla_plan.plan_mla([[0]] * batch, [length] * batch, [query_len] * batch, num_heads=16, device="cuda")
        starts = [(i * need) % (pages - need + 1) for i in range(count)]
        plans = [replace(plan, page_table=shuffled[s : s + need].view(batch, -1)) for s in starts]
        q = bench.random(batch * query_len, 16, HEAD_DIM)
        return time_graph([partial(mla_decode.mla_decode, q, cache, p, scale=0.07, latent_dim=LATENT) for p in plans])

    for query_len, table in FLASH_MLA.items():
        for batch, peers in table.items():
            for length, peer in zip(LENGTHS, peers, strict=True):
                us = timed(batch, length, query_len)
                moved = batch * length * HEAD_DIM * 2
                operations = 2.0 * batch * query_len * 16 * length * (HEAD_DIM + LATENT)
                case = f"16 heads, {query_len} new, batch {batch}, {length} keys"
                bench.add("mla_decode", case, us, moved=moved, operations=operations, peer=peer)
    for length in (1024, 4096, 16384, 32768):
        chunk = min(length, 2048)
        us = timed(1, length, chunk)
        seen = chunk * (2 * length - chunk + 1) / 2
        operations = 2.0 * 16 * seen * (HEAD_DIM + LATENT)
        bench.add("mla_decode", f"16 heads, prefill {chunk} of {length}", us, moved=0, operations=operations)


def bench_experts(bench: Bench) -> None:
    experts, k = 64, 6
    for name, out_features, in_features, fused in (("gate+up+swiglu", 2816, 2048, True), ("down", 2048, 1408, False)):
        weights = bench.random(experts, out_features, in_features)
        for tokens in (1, 32, 128, 512, 4096):
            inputs, hits = [], []
            for _ in range(8 if tokens == 1 else 2):
                ids = torch.rand(tokens, experts, generator=bench.generator, device="cuda").topk(k, -1).indices
                offsets = moe_permute.moe_permute(ids, experts)[1]
                hits.append(int((offsets.diff() > 0).sum()))
                inputs.append((bench.random(tokens * k, in_features), weights, offsets))
            run = moe_grouped_gemm.moe_grouped_gemm
            us = time_graph([partial(run, *a, swiglu=fused) for a in inputs] * 2)
            columns = out_features // 2 if fused else out_features
            moved = statistics.mean(hits) * out_features * in_features * 2 + tokens * k * (in_features + columns) * 2
            operations = 2.0 * tokens * k * out_features * in_features
            case = f"{name}, {tokens} tokens, {statistics.mean(hits):.0f} hit"
            bench.add("moe_grouped_gemm", case, us, moved=moved, operations=operations)


def bench_rows(bench: Bench) -> None:
    weight, latent_weight = bench.random(2048), bench.random(LATENT)
    for tokens in (32, 4096):
        x = bench.sets(lambda: (bench.random(tokens, 2048), bench.random(tokens, 2048)), tokens * 8192)
        us = time_graph([partial(rms_norm.rms_norm, a, weight, 1e-6) for a, _ in x])
        bench.add("rms_norm", f"{tokens} x 2048", us, moved=tokens * 8192)
        us = time_graph([partial(rms_norm.add_rms_norm, a, b, weight, 1e-6) for a, b in x])
        bench.add("add_rms_norm", f"{tokens} x 2048", us, moved=tokens * 16384)
        cache = bench.random(tokens // PAGE + 8, PAGE, HEAD_DIM)
        turns = bench.random(tokens, ROPE // 2, 2, dtype=torch.float32)
        slots = torch.randperm(cache.shape[0] * PAGE, device="cuda")[:tokens]
        kv = bench.sets(lambda: bench.random(tokens, HEAD_DIM), tokens * HEAD_DIM * 4)
        us = time_graph([partial(rope.write_latent, a, latent_weight, 1e-6, turns, slots, cache) for a in kv])
        bench.add("write_latent", f"{tokens} x {HEAD_DIM}", us, moved=tokens * (HEAD_DIM * 4 + 264))
        q = bench.sets(lambda: bench.random(tokens, 16, ROPE), tokens * 4096)
        us = time_graph([partial(rope.apply_rope, a, turns) for a in q])
        bench.add("apply_rope", f"{tokens} x 16 x {ROPE}", us, moved=tokens * (4096 + 256))
        gate_up = bench.sets(lambda: bench.random(tokens, 5632), tokens * 5632 * 3)
        us = time_graph([partial(swiglu.swiglu, a) for a in gate_up])
        bench.add("swiglu", f"{tokens} x 5632", us, moved=tokens * 5632 * 3)
        logits = bench.sets(lambda: bench.random(tokens, 64, dtype=torch.float32), tokens * 256)
        us = time_graph(
            [partial(moe_gate.moe_gate, a, k=6, scoring="softmax", normalize=False, scale=1.0) for a in logits]
        )
        bench.add("moe_gate", f"{tokens} x 64, 6 best", us, moved=tokens * (256 + 72))
        ids, weights = moe_gate.moe_gate(logits[0], k=6, scoring="softmax", normalize=False, scale=1.0)
        us = time_graph([partial(moe_permute.moe_permute, ids, 64)] * 8)
        bench.add("moe_permute", f"{tokens} x 6 of 64", us, moved=tokens * 6 * 16)
        order, _ = moe_permute.moe_permute(ids, 64)
        y = bench.sets(lambda: bench.random(tokens * 6, 2048), tokens * 6 * 4096)
        us = time_graph([partial(moe_permute.moe_combine, a, order, weights) for a in y])
        bench.add("moe_combine", f"{tokens} x 6 x 2048", us, moved=tokens * (6 * 4096 + 8192))
        table = bench.random(102400, 2048)
        tokens_ids = [torch.randint(0, 102400, (tokens,), generator=bench.generator, device="cuda") for _ in range(4)]
        us = time_graph([partial(embedding.embedding, a, table) for a in tokens_ids])
        bench.add("embedding", f"{tokens} x 2048", us, moved=tokens * 8192)
    rows, size = 32, 129280
    many = [bench.random(rows, size, dtype=torch.float32) * 3 for _ in range(16)]
    total = torch.empty(rows * size // 64, device="cuda")
    reading = time_graph([partial(torch.sum, a.view(-1, 64), dim=1, out=total) for a in many])
    bench.add("(torch.sum)", f"{rows} x {size}, reads once", reading, moved=rows * size * 4)
    mask = torch.randint(-(2**31), 2**31 - 1, (rows, size // 32), device="cuda", dtype=torch.int64).to(torch.int32)
    heat, seeds = torch.full((rows,), 0.8, device="cuda"), torch.arange(rows, device="cuda") + 7
    for name, bits in (("", None), (", bitmask", mask)):
        us = time_graph([partial(sampling.sample_tokens, a, heat, seeds, seeds, bits) for a in many])
        bench.add("sample_tokens", f"{rows} x {size}{name}", us, moved=rows * size * 4)
    us = time_graph([partial(log_softmax.log_softmax, a) for a in many])
    bench.add("log_softmax", f"{rows} x {size}", us, moved=rows * size * 8)


def geometric_means(timings: list[Timing]) -> dict[str, float]:
    """Of the ratio to the peer, by the groups that the targets speak of."""
    groups: dict[str, list[float]] = {}
    for timing in timings:
        if timing.peer_us is None:
            continue
        ratio = timing.us / timing.peer_us
        if timing.kernel == "matmul":
            groups.setdefault("matmul " + " ".join(timing.case.split()[:2]), []).append(ratio)
        elif timing.kernel == "mla_decode":
            new, batch = timing.case.split(", ")[1:3]
            groups.setdefault(f"mla_decode {new}", []).append(ratio)
            if int(batch.split()[1]) >= 32:
                groups.setdefault(f"mla_decode {new}, batch >= 32", []).append(ratio)
    return {
        name: round(math.exp(statistics.mean(math.log(ratio) for ratio in ratios)), 3)
        for name, ratios in groups.items()
    } | {f"{name}, worst": round(max(ratios), 3) for name, ratios in groups.items()}


def check_matmul(shapes: list[tuple[int, int]]) -> dict[str, bool]:
    """Rows of every M from 1 to 512 equal those of M = 4096, for each weight shape; bf16, and fp32 where logits are."""
    generator = torch.Generator("cuda").manual_seed(2)
    results = {}
    for out_features, in_features in shapes:
        weight = torch.randn(out_features, in_features, generator=generator, device="cuda").bfloat16()
        packed = matmul.pack_weight(weight)
        x = torch.randn(4096, in_features, generator=generator, device="cuda").bfloat16()
        dtype = torch.float32 if out_features in FP32_OUT else torch.bfloat16
        rows = 512 if dtype == torch.float32 and out_features > 1000 else 4096
        want = matmul.matmul(x[:rows], packed, out_dtype=dtype)
        reference = x[:64].double() @ weight.double().t()
        error = float((want[:64].double() - reference).norm() / reference.norm())
        equal = torch.stack([(matmul.matmul(x[:n], packed, out_dtype=dtype) == want[:n]).all() for n in range(1, 513)])
        tuned = sum(key.split()[0].endswith(f"x{out_features}x{in_features}") for key in matmul_table.load_table())
        results[f"matmul {out_features}x{in_features}"] = bool(equal.all()) and error < 4e-3
        print(f"matmul {out_features} x {in_features}, {tuned} tuned: {int(equal.sum())} of 512, error {error:.1e}")
    return results


def check_attention(heads: int) -> bool:
    """Decode, verification of 2 to 8 tokens and prefill give a token the same bits; neighbours don't matter."""
    generator = torch.Generator("cuda").manual_seed(3)
    lengths = [4000, 70, 9, 5000, 257, 9000]
    pages = [-(-length // PAGE) for length in lengths]
    order = torch.randperm(sum(pages), generator=torch.Generator().manual_seed(4)).tolist()
    tables = [[order.pop() for _ in range(count)] for count in pages]
    cache = torch.randn(sum(pages), PAGE, HEAD_DIM, generator=generator, device="cuda").bfloat16()
    q = torch.randn(8 * len(lengths), heads, HEAD_DIM, generator=generator, device="cuda").bfloat16()

    def run(which: list[int], query_len: int, cut: int = 0) -> Tensor:
        plan = mla_plan.plan_mla(
            [tables[i] for i in which], [lengths[i] - cut for i in which], [query_len] * len(which),
            num_heads=heads, device="cuda",
        )  # fmt: skip
        rows = [8 * i + 8 - cut - query_len + t for i in which for t in range(query_len)]
        return mla_decode.mla_decode(q[rows], cache, plan, scale=0.05, latent_dim=LATENT)

    everyone = list(range(len(lengths)))
    want = run(everyone, 8).view(len(lengths), 8, heads, LATENT)
    same = all(torch.equal(run(everyone, 1, cut), want[:, 7 - cut]) for cut in range(8))
    same &= all(
        torch.equal(run(everyone, n).view(len(lengths), n, heads, LATENT), want[:, 8 - n :]) for n in range(2, 8)
    )
    return same and all(torch.equal(run([i], 8), want[i]) and torch.equal(run([i], 1)[0], want[i, 7]) for i in everyone)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["kernels", "invariance"])
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device")
        return 2
    started = time.time()
    result: dict[str, object] = {
        "what": arguments.what,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "gpu": torch.cuda.get_device_name(),
        "driver": _driver(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    failed = False
    if arguments.what == "kernels":
        bench = Bench()
        for part in (bench_matmul, bench_mla, bench_experts, bench_rows):
            part(bench)
        result["copy_bandwidth_tb_s"] = round(bench.bandwidth / 1e6, 3)
        result["bf16_tflop_s"] = round(bench.rate / 1e6, 1)
        result["empty_kernel_us"] = round(bench.empty_us, 2)
        result["geometric_means"] = geometric_means(bench.timings)
        result["timings"] = [asdict(timing) for timing in bench.timings]
        summary = {key: value for key, value in result.items() if key != "timings"}
    else:
        buckets = [8, 16, 32, 64, 128, 256, 512, 4096]
        matmul_tuning.tune_matmul(V2_LITE + V3, buckets, report=print)
        logits = [shape for shape in V2_LITE + V3 if shape[0] in FP32_OUT]
        matmul_tuning.tune_matmul(logits, buckets[:-1], dtype=torch.float32, report=print)
        checks = check_matmul(V2_LITE + V3)
        checks |= {f"mla_decode {heads} heads": check_attention(heads) for heads in (16, 20, 32, 128)}
        result["checks"] = checks
        failed = not all(checks.values())
        summary = result
    result["seconds"] = round(time.time() - started, 1)
    arguments.json.write_text(json.dumps(result, indent=1))
    print(json.dumps(summary, indent=1))
    return int(failed)


def _driver() -> str:
    try:
        return Path("/proc/driver/nvidia/version").read_text().split("Kernel Module")[1].split("  ")[1]
    except (OSError, IndexError):
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
