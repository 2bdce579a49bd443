"""Inverse frequencies of the rotary embedding, from either spelling of config.json."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .config_fields import ConfigFields

__all__ = ["RopeFrequencies", "read_rope"]


@dataclass(frozen=True)
class RopeFrequencies:
    """`inverse` [width / 2]: radians a position. cos and sin are multiplied by `amplitude`, and the softmax scale by
    `softmax_factor` (YaRN's mscale², on models with latent attention)."""

    inverse: tuple[float, ...]
    amplitude: float = 1.0
    softmax_factor: float = 1.0


def read_rope(fields: ConfigFields, width: int, max_positions: int) -> RopeFrequencies:
    """Read `rope_scaling` and `rope_theta` (DeepSeek's and older Llama files) or `rope_parameters` (transformers 5).

    Frequencies are computed in fp32, operation by operation as the published code does: those are the values that the
    weights were trained with.
    """
    fields.require("partial_rotary_factor", (1.0,), "is not supported: the whole rotary width is rotated")
    theta = fields.number("rope_theta", 10000.0)
    scaling, parameters = fields.child("rope_scaling"), fields.child("rope_parameters")
    if scaling is not None and parameters is not None:
        raise fields.error("rope_scaling", "is given beside rope_parameters; keep one of them")
    rope = parameters or scaling
    if rope is None:
        return RopeFrequencies(_floats(_plain(theta, width)))
    rope.require("partial_rotary_factor", (1.0,), "is not supported: the whole rotary width is rotated")
    theta = rope.number("rope_theta", theta)
    kind_key = "rope_type" if rope.has("rope_type") else "type"
    kind = rope.choice(kind_key, "default", ("default", "linear", "llama3", "yarn"))
    rope.ignore(("type",))  # the older name beside the newer one
    frequencies = _scaled(rope, kind, theta, width, max_positions)
    if unread := rope.unread():
        raise fields.error("rope_parameters" if parameters else "rope_scaling", f"has unsupported keys: {unread}")
    return frequencies


def _scaled(rope: ConfigFields, kind: str, theta: float, width: int, max_positions: int) -> RopeFrequencies:
    if kind == "linear":
        return RopeFrequencies(_floats(_plain(theta, width) / rope.number("factor")))
    if kind == "llama3":
        return RopeFrequencies(_floats(_llama3(rope, _plain(theta, width), max_positions)))
    if kind == "yarn":
        return _yarn(rope, theta, width, max_positions)
    return RopeFrequencies(_floats(_plain(theta, width)))


def _plain(theta: float, width: int) -> Tensor:
    return 1.0 / (theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width))


def _llama3(rope: ConfigFields, inverse: Tensor, max_positions: int) -> Tensor:
    """Long wavelengths are stretched by `factor`, short ones kept, those between interpolated (Llama 3.1)."""
    factor, low, high = (rope.number(key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original = rope.integer("original_max_position_embeddings", max_positions)
    wavelength = 2 * math.pi / inverse
    stretched = torch.where(wavelength > original / low, inverse / factor, inverse)
    smooth = (original / wavelength - low) / (high - low)
    between = (wavelength >= original / high) & (wavelength <= original / low)
    return torch.where(between, (1 - smooth) * stretched / factor + smooth * stretched, stretched)


def _yarn(rope: ConfigFields, theta: float, width: int, max_positions: int) -> RopeFrequencies:
    """YaRN (arXiv 2309.00071) with DeepSeek's two mscale parameters."""
    factor = rope.number("factor")
    original = rope.integer("original_max_position_embeddings", max_positions)
    low = _turning_pair(rope.number("beta_fast", 32.0), theta, width, original)
    high = _turning_pair(rope.number("beta_slow", 1.0), theta, width, original)
    if rope.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    if low == high:
        high += 0.001
    kept = 1 - ((torch.arange(width // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    powers = theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    inverse = (1.0 / (factor * powers)) * (1 - kept) + (1.0 / powers) * kept
    return _with_mscale(rope, factor, _floats(inverse))


def _with_mscale(rope: ConfigFields, factor: float, inverse: tuple[float, ...]) -> RopeFrequencies:
    mscale, all_dim = rope.optional_number("mscale"), rope.optional_number("mscale_all_dim")
    if all_dim is None:
        if mscale not in (None, 1.0):
            raise rope.error(
                "mscale", "needs mscale_all_dim: published implementations disagree on what it means alone"
            )
        amplitude = _mscale(factor, 1.0)
    else:
        if mscale is None:
            raise rope.error(
                "mscale", "must be given with mscale_all_dim: published implementations disagree otherwise"
            )
        amplitude = _mscale(factor, mscale) / _mscale(factor, all_dim)
    if rope.has("attention_factor"):
        amplitude = rope.number("attention_factor")
    return RopeFrequencies(inverse, amplitude, 1.0 if all_dim is None else _mscale(factor, all_dim) ** 2)


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _turning_pair(rotations: float, theta: float, width: int, original: int) -> float:
    """The (fractional) pair that turns `rotations` times over the original length."""
    return width * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))


def _floats(inverse: Tensor) -> tuple[float, ...]:
    return tuple(inverse.tolist())
