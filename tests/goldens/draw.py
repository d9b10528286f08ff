"""Draws a checkpoint from a seed. `tests/tiny-models/src/draw.rs` draws the same bits from the same `weights.json`.

A tensor is described by integers `low <= high` and an `exponent`. Element i, in row-major order, is `k * 2**exponent` with

    k = low + splitmix64(start + (i + 1) * GAMMA) % (high - low + 1)        all in 64 bits, wrapping
    start = FNV-1a of the UTF-8 text "<seed>/<tensor's name>"               64 bits

so no tensor depends on another, and every value is exact in its dtype. `patches` give a rectangle of the tensor, seen as rows of its last
dimension, bounds of its own: `[first row, end row, first column, end column, low, high]`.

A tensor with `bits` is stored as MLX's affine quantization of these integers (`quantize`): `<layer>.weight` packed into U32, `<layer>.scales`
and `<layer>.biases` in the tensor's dtype. Only integers are divided, so this is exact too. With a `mode` as well it is stored as small
floating-point numbers (`quantize_to_floats`), with one byte a group in `<layer>.scales` and no biases; all of that is integers too. If its name
ends with `_blocks`, the same bits are stored as bytes, those of a group as the last dimension, and the bytes of groups in `<name>_scales`.
"""

import hashlib
import json
import struct
from dataclasses import dataclass, field, replace

import numpy as np

GAMMA = np.uint64(0x9E3779B97F4A7C15)
# How large k may get: what the dtype's significand holds, and enough steps for groups to differ in their scales.
MAX_K = {"F32": 4095, "F16": 2047, "BF16": 255}


@dataclass
class Tensor:
    """One tensor of a checkpoint before it is quantized."""

    shape: tuple
    low: float
    high: float
    dtype: str = "F32"
    bits: int | None = None
    group_size: int | None = None
    mode: str | None = None  # where it is not affine
    patches: list = field(default_factory=list)  # their bounds are numbers too, until `described`

    def with_shape(self, *shape):
        return replace(self, shape=shape)

    def shifted(self, by):
        return replace(self, low=self.low + by, high=self.high + by)

    def described(self):
        """The tensor as `weights.json` has it: its bounds as integers with one exponent."""
        bounds = [abs(bound) for bound in (self.low, self.high, *(b for patch in self.patches for b in patch[4:]))]
        exponent = 0
        if largest := max(bounds):
            exponent = int(np.ceil(np.log2(largest / MAX_K[self.dtype])))
        low, high = round(self.low / 2**exponent), round(self.high / 2**exponent)
        entry = {"dtype": self.dtype, "shape": list(self.shape), "low": low, "high": high, "exponent": exponent}
        if self.bits:
            entry |= {"bits": self.bits, "group_size": self.group_size}
            entry |= {"mode": self.mode} if self.mode else {}
        if self.patches:
            entry["patches"] = [[*patch[:4], *(round(b / 2**exponent) for b in patch[4:])] for patch in self.patches]
        return entry


def uniform(seed, name, low, high, shape):
    """The integers k, in int64; `low` and `high` are numbers or arrays of the shape."""
    start = 0xCBF29CE484222325
    for byte in f"{seed}/{name}".encode():
        start = (start ^ byte) * 0x100000001B3 % 2**64
    z = np.uint64(start) + np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint64) * GAMMA
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = (z ^ (z >> np.uint64(31))).reshape(shape)
    width = np.asarray(high - low + 1, dtype=np.uint64)
    return low + (z % width).astype(np.int64)


def integers(seed, name, entry):
    """The integers of a tensor of `weights.json`, [rows, last dimension]."""
    shape = entry["shape"]
    rows = (int(np.prod(shape[:-1])), shape[-1])
    low, high = np.full(rows, entry["low"]), np.full(rows, entry["high"])
    for row, row_end, column, column_end, patch_low, patch_high in entry.get("patches", []):
        low[row:row_end, column:column_end], high[row:row_end, column:column_end] = patch_low, patch_high
    return uniform(seed, name, low, high, rows)


def to_bytes(values, exponent, dtype):
    """Integers times 2**exponent, little-endian; fails where the dtype rounds one."""
    floats = np.ldexp(values.astype(np.float64), exponent).astype("<f4")
    assert np.array_equal(floats.astype(np.float64), np.ldexp(values.astype(np.float64), exponent)), "not exact in F32"
    if dtype == "F32":
        return floats.tobytes()
    if dtype == "F16":
        halves = floats.astype("<f2")
        assert np.array_equal(halves.astype("<f4"), floats), "not exact in F16"
        return halves.tobytes()
    words = floats.view("<u4")
    assert not (words & 0xFFFF).any(), f"not exact in {dtype}"
    return (words >> 16).astype("<u2").tobytes()


def quantize(values, bits, group_size):
    """Quants, scales and biases of integers [rows, columns]: each group's steps are the smallest whole number that reaches from its lowest
    value to its highest, and its bias is the lowest."""
    groups = values.reshape(len(values), -1, group_size)
    lowest, highest = groups.min(-1), groups.max(-1)
    steps = np.maximum(-(-(highest - lowest) // (2**bits - 1)), 1)
    quants = (groups - lowest[..., None] + steps[..., None] // 2) // steps[..., None]
    return quants.reshape(values.shape), steps, lowest


def floats(exponent_bits, mantissa_bits):
    """The positive numbers of a floating-point format by their code, as integers, and the power of two that one of these integers is."""
    codes = np.arange(2 ** (exponent_bits + mantissa_bits), dtype=np.int64)
    exponents, mantissas = codes >> mantissa_bits, codes & (2**mantissa_bits - 1)
    numbers = np.where(exponents == 0, mantissas, (mantissas + 2**mantissa_bits) << np.maximum(exponents - 1, 0))
    return numbers, 2 - 2 ** (exponent_bits - 1) - mantissa_bits


E2M1 = floats(2, 1)
E4M3 = (floats(4, 3)[0][:-1], floats(4, 3)[1])  # the last is no number
FINER = 20  # powers of two by which scales are finer than the integers


def quantize_to_floats(values, exponent, mode, group_size):
    """Codes and scale bytes of integers [rows, columns], which are counted in 2**exponent: each group's scale is the smallest with which its
    largest number fits, and each number becomes the nearest, of two the smaller."""
    numbers, unit = E4M3 if mode == "mxfp8" else E2M1
    if mode == "nvfp4":
        scales, first = E4M3[0][1:] << (E4M3[1] - exponent + FINER), 1
    else:
        scales, first = 1 << np.arange(40, dtype=np.int64), 127 + exponent - FINER
    groups = values.reshape(len(values), -1, group_size)
    sizes = np.abs(groups) << (FINER - unit)
    chosen = np.searchsorted(scales * numbers[-1], sizes.max(-1))
    codes = np.abs(sizes[..., None] - scales[chosen][..., None, None] * numbers).argmin(-1)
    signs = (groups < 0) * (len(E4M3[0]) + 1 if mode == "mxfp8" else len(numbers))
    return (codes + signs).reshape(values.shape), (chosen + first).astype(np.uint8)


def packed(quants, bits):
    """Each row is a stream of bits, the lowest first, of its quants one after another."""
    stream = (quants[..., None] >> np.arange(bits)) & 1
    return np.packbits(stream.reshape(len(quants), -1).astype(np.uint8), axis=-1, bitorder="little").tobytes()


def draw(seed, entries):
    """The stored tensors: {name: (dtype, shape, bytes)}."""
    stored = {}
    for name, entry in entries.items():
        values, shape, dtype, exponent = integers(seed, name, entry), entry["shape"], entry["dtype"], entry["exponent"]
        if mode := entry.get("mode"):
            bits, layer, lead = entry["bits"], name.removesuffix(".weight"), shape[:-1]
            codes, scales = quantize_to_floats(values, exponent, mode, entry["group_size"])
            if blocks := name.endswith("_blocks"):
                kind, last = "U8", [scales.shape[-1], entry["group_size"] * bits // 8]
            else:
                kind, last = "U32", [shape[-1] * bits // 32]
            stored[name] = (kind, [*lead, *last], packed(codes, bits))
            of_groups = name.replace("_blocks", "_scales") if blocks else f"{layer}.scales"
            stored[of_groups] = ("U8", [*lead, scales.shape[-1]], scales.tobytes())
        elif bits := entry.get("bits"):
            quants, scales, biases = quantize(values, bits, entry["group_size"])
            layer, lead, groups = name.removesuffix(".weight"), shape[:-1], shape[-1] // entry["group_size"]
            stored[name] = ("U32", [*lead, shape[-1] * bits // 32], packed(quants, bits))
            stored[f"{layer}.scales"] = (dtype, [*lead, groups], to_bytes(scales, exponent, dtype))
            stored[f"{layer}.biases"] = (dtype, [*lead, groups], to_bytes(biases, exponent, dtype))
        else:
            stored[name] = (dtype, shape, to_bytes(values, exponent, dtype))
    return dict(sorted(stored.items()))


def digest(stored):
    """SHA-256 over each tensor's line `<name> <dtype> <dimensions joined by x>` and its bytes, by name."""
    hasher = hashlib.sha256()
    for name, (dtype, shape, data) in stored.items():
        hasher.update(f"{name} {dtype} {'x'.join(map(str, shape))}\n".encode())
        hasher.update(data)
    return hasher.hexdigest()


def save(path, stored):
    """Writes a safetensors file."""
    header, offset = {"__metadata__": {"format": "mlx"}}, 0
    for name, (dtype, shape, data) in stored.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in stored.values()))


def save_shards(folder, stored, num_shards):
    """One `model.safetensors`, or shards by the names' order with their index."""
    if num_shards == 1:
        save(folder / "model.safetensors", stored)
        return
    names, index = list(stored), {}
    size = -(-len(names) // num_shards)
    for shard in range(num_shards):
        file = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        part = names[shard * size : (shard + 1) * size]
        save(folder / file, {name: stored[name] for name in part})
        index |= dict.fromkeys(part, file)
    total = sum(len(data) for _, _, data in stored.values())
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=2)
    (folder / "model.safetensors.index.json").write_text(text + "\n")
