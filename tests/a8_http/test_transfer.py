"""Import and export as they are resumed, without a process around them."""

import json
import secrets
from pathlib import Path
from typing import Any

import pytest
from a8_http import transfer
from a8_http.organizations import create_organization, find_organization
from a8_http.store import Store
from a8_http.tickets import teachings
from a8_http.versions import stamp


@pytest.fixture
def organization(store: Store) -> str:
    return create_organization(store, f"Transfer {secrets.token_hex(4)}")


def encoded(examples: list[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(example).encode() + b"\n" for example in examples]


def teach(store: Store, organization: str, examples: list[dict[str, Any]]) -> transfer.Imported:
    return transfer.import_examples(store, organization, iter(encoded(examples)), lambda read: None)


def export(store: Store, organization: str, target: Path) -> int:
    row = find_organization(store, organization)
    return transfer.export_examples(store, row, target, lambda done: None)


def test_of_a_request_that_comes_twice_the_last_answer_is_held(
    store: Store, organization: str, tmp_path: Path
) -> None:
    first, other = teachings()[0], {**teachings()[0], "answer": {"queue": "account"}}
    assert teach(store, organization, [first, other]) == (1, 0, 0)
    export(store, organization, tmp_path / "out.jsonl")
    assert json.loads((tmp_path / "out.jsonl").read_text())["answer"] == {"queue": "account"}


def test_an_import_in_several_batches_tells_how_far_it_is(
    store: Store, organization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "BATCH", 4)
    lines = encoded(teachings()[:10])
    told: list[int] = []
    assert transfer.import_examples(store, organization, iter(lines), told.append) == (10, 0, 0)
    assert told == [sum(map(len, lines[:4])), sum(map(len, lines[:8]))]


def test_an_interrupted_import_keeps_what_it_read(store: Store, organization: str) -> None:
    def interrupted() -> Any:
        yield from encoded(teachings()[:3])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transfer.import_examples(store, organization, interrupted(), lambda read: None)
    assert teach(store, organization, teachings()[:5]) == (2, 0, 3)


def test_an_import_counts_the_answers_that_it_replaced(store: Store, organization: str) -> None:
    teach(store, organization, teachings()[:3])
    other = [{**one, "answer": {"queue": "account"}} for one in teachings()[:2]]
    assert teach(store, organization, [*other, *teachings()[2:4]]) == (3, 2, 1)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{", "line 1: is no JSON."),
        (b"[" * 100_000, "line 1: is no JSON."),
        (b"\xff", "line 1: "),
        (b"7", "line 1: must be an object with input, answer and, where there is one, format."),
        (b'{"input": "Late?"}', "line 1: must be an object with input, answer"),
        (b'{"input": "Late?", "answer": null}', "line 1: must be an object with input, answer"),
        (b'{"input": "", "answer": 1}', "line 1: input is empty"),
        (b'{"input": "Is it late? 1.", "format": {"type": "boolean"}, "answer": 7}', "line 1: answer "),
    ],
)
def test_a_line_that_cannot_be_taught_is_named(
    store: Store, organization: str, line: bytes, says: str
) -> None:
    with pytest.raises(transfer.LineError) as error:
        transfer.import_examples(store, organization, iter([line]), lambda read: None)
    assert str(error.value).startswith(says)
    assert str(error.value).count("\n") == 0


def test_an_export_goes_on_where_it_was_broken_off_at_the_same_time_of_the_history(
    store: Store, organization: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "BATCH", 4)
    teach(store, organization, teachings()[:10])
    target = tmp_path / "out.jsonl"

    def breaks(done: int) -> None:
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transfer.export_examples(store, find_organization(store, organization), target, breaks)
    assert not target.exists()
    [unfinished] = tmp_path.glob("out.jsonl.*.partial")
    # The break may have cut a line.
    unfinished.write_bytes(unfinished.read_bytes()[:-7])
    teach(store, organization, teachings()[10:12])
    assert export(store, organization, target) == 10
    exported = [json.loads(line)["input"] for line in target.read_text().splitlines()]
    assert exported == [one["input"] for one in teachings()[:10]]
    assert list(tmp_path.iterdir()) == [target]
    assert export(store, organization, target) == 12


def break_off(store: Store, organization: str, target: Path, after: int) -> None:
    def breaks(done: int) -> None:
        if done == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transfer.export_examples(store, find_organization(store, organization), target, breaks)


def test_an_export_never_goes_on_with_another_organization_s_file(
    store: Store, organization: str, tmp_path: Path
) -> None:
    other = create_organization(store, f"Transfer {secrets.token_hex(4)}")
    teach(store, organization, teachings()[:3])
    teach(store, other, teachings()[3:6])
    target = tmp_path / "out.jsonl"
    break_off(store, organization, target, 2)
    assert export(store, other, target) == 3
    exported = [json.loads(line)["input"] for line in target.read_text().splitlines()]
    assert exported == [one["input"] for one in teachings()[3:6]]
    assert export(store, organization, target) == 3
    exported = [json.loads(line)["input"] for line in target.read_text().splitlines()]
    assert exported == [one["input"] for one in teachings()[:3]]


@pytest.mark.parametrize(
    "foreign",
    [
        "out[1].jsonl.partial",
        "out[1].jsonl.notes.partial",
        "out[1].jsonl.20260715t140322z.partial",
        "out[1].jsonl.{organization}.99999999t999999z.partial",
        "out[1].jsonl.{organization}.20990101t000000z.partial",
        "out1.jsonl.{organization}.{now}.partial",
    ],
)
def test_an_export_leaves_files_alone_that_are_not_its_own(
    store: Store, organization: str, tmp_path: Path, foreign: str
) -> None:
    teach(store, organization, teachings()[:2])
    now = stamp(find_organization(store, organization)["head_at"])
    file = tmp_path / foreign.format(organization=organization, now=now)
    file.write_bytes(b"line\n")
    assert export(store, organization, tmp_path / "out[1].jsonl") == 2
    assert len((tmp_path / "out[1].jsonl").read_text().splitlines()) == 2
    assert file.read_bytes() == b"line\n"


def test_text_of_any_script_is_written_as_itself(store: Store, organization: str, tmp_path: Path) -> None:
    lesson = {"input": "¿Está roto? 壊れています 📦", "answer": "sí"}
    teach(store, organization, [lesson])
    export(store, organization, tmp_path / "out.jsonl")
    written = (tmp_path / "out.jsonl").read_text("utf-8")
    assert "壊れています 📦" in written
    assert {name: json.loads(written)[name] for name in lesson} == lesson
