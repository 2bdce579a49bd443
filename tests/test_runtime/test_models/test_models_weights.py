"""Loading: storage types, shards, what is missing, extra or damaged, memory, and the content hash."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from drawloom.errors import ModelError, RequestError
from drawloom.runtime import weights as module
from drawloom.runtime.memory import available_memory
from drawloom.runtime.weights import checkpoint_hash, load_model, memory_need

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
EXPERT = "model.layers.1.mlp.experts.3.down_proj.weight"


@pytest.fixture
def folder(checkpoint: Callable[..., tuple[Any, Path]]) -> Path:
    return checkpoint("v3")[1]


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    return load_model(folder, dtype=dtype, progress=False)


def edit(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / SINGLE)
    change(tensors)
    save_file(tensors, folder / SINGLE)


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 weight and fp32 scales, one a block of 128 x 128."""
    rows, columns = (-(-size // 128) for size in weight.shape)
    scale = torch.empty(rows, columns)
    stored = torch.empty_like(weight)
    for i in range(rows):
        for j in range(columns):
            block = (slice(i * 128, i * 128 + 128), slice(j * 128, j * 128 + 128))
            scale[i, j] = weight[block].abs().max() / 448
            stored[block] = weight[block] / scale[i, j]
    return stored.to(torch.float8_e4m3fn), scale


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.float8_e8m0fnu])
def test_fp8_blocks_load_as_their_dequantised_values(
    scale_dtype: torch.dtype,
    checkpoint: Callable[..., tuple[Any, Path]],
    tmp_path: Path,
    token_ids: list[int],
    run_model: Callable[..., Tensor],
    edit_config: Callable[..., None],
) -> None:
    sizes = {"hidden_size": 160, "intermediate_size": 300, "moe_intermediate_size": 130, "kv_lora_rank": 136}
    _, folder = checkpoint("v3", std=0.1, **sizes)
    plain = tmp_path / "dequantised"
    shutil.copytree(folder, plain)
    quantised, dequantised = {}, {}
    for name, weight in load_file(folder / SINGLE).items():
        quantised[name] = dequantised[name] = weight
        if "_proj" in name:
            stored, scale = quantize(weight)
            scale = scale.to(scale_dtype)
            quantised[name], quantised[name + "_scale_inv"] = stored, scale
            wide = scale.float().repeat_interleave(128, 0)[: weight.shape[0]].repeat_interleave(128, 1)
            dequantised[name] = stored.float() * wide[:, : weight.shape[1]]
            assert not torch.equal(dequantised[name], weight)
    save_file(quantised, folder / SINGLE)
    save_file(dequantised, plain / SINGLE)
    with pytest.raises(ModelError, match="quantization_config"):
        load(folder)
    block = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    edit_config(folder, quantization_config=block)
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(run_model(load(folder, dtype), token_ids), run_model(load(plain, dtype), token_ids))

    scale_name = EXPERT + "_scale_inv"
    edit(folder, lambda tensors: tensors.update({scale_name: torch.ones(1, 1)}))
    refuse(folder, "misshapen", scale_name, ([2, 2], [1, 1]))
    edit(folder, lambda tensors: tensors.pop(scale_name))
    refuse(folder, "missing", scale_name, ([2, 2], None))


def refuse(folder: Path, message: str, tensor: str, shapes: tuple[Any, Any] | None, file: str = SINGLE) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        load(folder)
    assert caught.value.tensor == tensor and caught.value.file == str(folder / file)
    found = caught.value.shapes and tuple(None if shape is None else list(shape) for shape in caught.value.shapes)
    assert found == shapes


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_narrow_types_widen_exactly(
    stored: torch.dtype, folder: Path, token_ids: list[int], run_model: Callable[..., Tensor]
) -> None:
    edit(folder, lambda tensors: tensors.update({k: v.to(stored).float() for k, v in tensors.items()}))
    want = run_model(load(folder), token_ids)
    edit(folder, lambda tensors: tensors.update({k: v.to(stored) for k, v in tensors.items()}))
    assert torch.equal(run_model(load(folder), token_ids), want)


def test_shards_load_like_one_file(
    checkpoint: Callable[..., tuple[Any, Path]], tmp_path: Path, token_ids: list[int], run_model: Callable[..., Tensor]
) -> None:
    theirs, folder = checkpoint("v3")
    sharded = tmp_path / "sharded"
    theirs.save_pretrained(sharded, max_shard_size="60KB")
    assert len(list(sharded.glob("*.safetensors"))) > 3 and not (sharded / SINGLE).exists()
    assert torch.equal(run_model(load(sharded), token_ids), run_model(load(folder), token_ids))

    index = json.loads((sharded / INDEX).read_text())
    file = index["weight_map"][EXPERT]
    other = next(name for name in index["weight_map"].values() if name != file)
    index["weight_map"][EXPERT] = other
    (sharded / INDEX).write_text(json.dumps(index))
    refuse(sharded, "file without the tensor", EXPERT, None, other)
    index["weight_map"][EXPERT] = "../elsewhere.safetensors"
    (sharded / INDEX).write_text(json.dumps(index))
    refuse(sharded, "no name of a file", EXPERT, None, INDEX)
    index["weight_map"][EXPERT] = file
    (sharded / INDEX).write_text(json.dumps(index))
    save_file(load_file(sharded / file) | {EXPERT: torch.zeros(64, 32)}, sharded / other)
    with pytest.raises(ModelError, match="the tensor is also in"):
        load(sharded)
    (sharded / file).unlink()
    with pytest.raises(ModelError, match="file is missing") as caught:
        load(sharded)
    assert caught.value.file == str(sharded / file)


def test_missing_extra_and_misshapen_tensors_are_named(folder: Path) -> None:
    original = (folder / SINGLE).read_bytes()
    edit(folder, lambda tensors: tensors.pop(EXPERT))
    refuse(folder, "missing tensor", EXPERT, ([64, 32], None))
    (folder / SINGLE).write_bytes(original)
    edit(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(5)}))
    refuse(folder, "extra tensor", "model.layers.0.self_attn.q_proj.bias", (None, [5]))
    (folder / SINGLE).write_bytes(original)
    edit(folder, lambda tensors: tensors.update({EXPERT: torch.zeros(32, 64)}))
    refuse(folder, "misshapen tensor", EXPERT, ([64, 32], [32, 64]))
    (folder / SINGLE).write_bytes(original)
    edit(folder, lambda tensors: tensors.update({EXPERT: torch.zeros(64, 32, dtype=torch.int8)}))
    refuse(folder, "type I8, which is not supported", EXPERT, None)


def test_all_problems_are_found_at_once_and_before_loading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(tensors: dict[str, Tensor]) -> None:
        del tensors["model.norm.weight"]
        tensors["surplus"] = torch.zeros(1)
        tensors[EXPERT] = torch.zeros(3)

    edit(folder, spoil)
    monkeypatch.setattr(module, "FileSource", lambda *_, **__: pytest.fail("nothing may be read"))
    with pytest.raises(ModelError, match="2 more problems") as caught:
        load(folder)
    assert all(name in str(caught.value) for name in ("model.norm.weight", "surplus", EXPERT))


def test_damaged_files_are_named(folder: Path) -> None:
    data = (folder / SINGLE).read_bytes()
    for damaged in (data[:-1], data + b"\0", data[:100], data[:4], data[:8] + b"x" + data[9:]):
        (folder / SINGLE).write_bytes(damaged)
        with pytest.raises(ModelError, match="truncated|malformed") as caught:
            load(folder)
        assert caught.value.file == str(folder / SINGLE)
    (folder / SINGLE).unlink()
    with pytest.raises(ModelError, match=f"neither {SINGLE} nor {INDEX}"):
        load(folder)
    (folder / "config.json").write_text("[1]")
    with pytest.raises(ModelError, match="JSON object"):
        load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match="file is missing"):
        load(folder)


def test_a_repeated_head_must_be_the_embedding(
    checkpoint: Callable[..., tuple[Any, Path]], token_ids: list[int], run_model: Callable[..., Tensor]
) -> None:
    _, folder = checkpoint("llama", tie_word_embeddings=True)
    want = run_model(load(folder), token_ids)
    copy = load_file(folder / SINGLE)["model.embed_tokens.weight"]
    derived = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    edit(folder, lambda tensors: tensors.update({"lm_head.weight": copy.clone()} | derived))
    assert torch.equal(run_model(load(folder), token_ids), want)
    edit(folder, lambda tensors: tensors.update({"lm_head.weight": copy + 1}))
    with pytest.raises(ModelError, match="ties the tensor") as caught:
        load(folder)
    assert caught.value.tensor == "lm_head.weight"


def test_the_memory_needed_is_known_before_and_compared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        need = memory_need(folder, dtype=dtype)
        assert need.weights == load(folder, dtype).memory_bytes
        assert need.peak > need.weights and need.available == pytest.approx(available_memory(), rel=0.5)
    need = memory_need(folder, dtype=torch.float32)
    monkeypatch.setattr(module, "available_memory", lambda: need.peak - 1)
    with pytest.raises(ModelError, match=f"{need.peak} bytes.*{need.peak - 1} bytes"):
        load(folder)
    for enough in (need.peak, None):
        monkeypatch.setattr(module, "available_memory", lambda enough=enough: enough)
        load(folder)


def test_available_memory(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:     42 kB\n")
    assert available_memory(tmp_path / "meminfo") == 42 * 1024
    total = available_memory(tmp_path / "absent")
    assert total is None or total > 1 << 20


def test_the_progress_bar_is_on_stderr_and_optional(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load_model(folder, dtype=torch.float32)
    shown = capsys.readouterr()
    assert shown.out == "" and re.search(r"Loading v3 \(\d.*MB in memory\).*100%", shown.err, re.DOTALL)
    load(folder)
    assert capsys.readouterr() == ("", "")


def test_other_dtypes_are_refused(folder: Path) -> None:
    with pytest.raises(RequestError, match="dtype"):
        load(folder, torch.float16)


def test_the_hash_names_the_content(folder: Path, tmp_path: Path, edit_config: Callable[..., None]) -> None:
    first = checkpoint_hash(folder)
    assert re.fullmatch("[0-9a-f]{64}", first)
    copy = tmp_path / "elsewhere"
    shutil.copytree(folder, copy)
    assert checkpoint_hash(copy) == first
    edit(copy, lambda tensors: tensors.update({EXPERT: tensors[EXPERT] * 2}))
    changed = checkpoint_hash(copy)
    edit_config(copy, rope_theta=5.0)
    assert len({first, changed, checkpoint_hash(copy)}) == 3
