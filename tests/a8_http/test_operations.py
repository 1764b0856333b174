"""Judge, teach, retract, the lists and the test, without an interface in front of them."""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from a8_http.errors import Refused
from a8_http.events import set_certificate
from a8_http.metrics import Metrics
from a8_http.operations import Operations
from a8_http.organizations import create_organization, set_organization
from a8_http.principals import PERMISSIONS, Principal
from a8_http.settings import Settings
from a8_http.store import Store, vectors
from a8_http.tickets import CRITERION, FORMAT, request, teachings
from a8_http.vectors import text_hash
from anyio.from_thread import BlockingPortal, start_blocking_portal
from judgment_engine.requests import parse_request
from sqlalchemy import select

Call = Callable[..., dict[str, Any]]


@contextmanager
def running(store: Store, **changed: Any) -> Iterator[tuple[Call, Operations]]:
    """Operations of one process on a database, called from this thread."""
    url = store.url.render_as_string(hide_password=False)
    # A busy machine may take longer than a person would wait.
    operations = Operations(Settings(**{"database_url": url, "fit_wait": 30, **changed}), Metrics())

    def call(portal: BlockingPortal, name: str, principal: Principal, **arguments: Any) -> dict[str, Any]:
        return portal.call(operations.by_name[name], principal, arguments)

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(operations.running()):
        yield partial(call, portal), operations


@pytest.fixture(scope="module")
def process(store: Store) -> Iterator[tuple[Call, Operations]]:
    with running(store) as started:
        yield started


@pytest.fixture(scope="module")
def call(process: tuple[Call, Operations]) -> Call:
    return process[0]


@pytest.fixture
def organization(store: Store) -> str:
    return create_organization(store, f"Operations {secrets.token_hex(4)}")


def key(organization: str, *permissions: str, name: str = "key_own") -> Principal:
    return Principal(organization, name, frozenset(permissions or PERMISSIONS))


def judged(ticket: str, **more: Any) -> dict[str, Any]:
    return {"input": request(ticket), "format": FORMAT, **more}


@pytest.fixture(scope="module")
def taught(store: Store, call: Call) -> str:
    """An organization that was taught the forty tickets; nothing changes it."""
    organization = create_organization(store, f"Taught {secrets.token_hex(4)}")
    for arguments in teachings():
        call("teach", key(organization), **arguments)
    return organization


# Judging


def test_a_short_judge_that_was_had_before_takes_no_thread_on_a_local_file(
    process: tuple[Call, Operations], taught: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, operations = process
    threads: list[str] = []
    hop = operations._in_thread

    async def counted(work: Callable[..., Any], *arguments: Any) -> Any:
        threads.append(work.__name__)
        return await hop(work, *arguments)

    monkeypatch.setattr(operations, "_in_thread", counted)

    def took(arguments: dict[str, Any]) -> int:
        first = call("judge", key(taught), **arguments)
        threads.clear()
        assert call("judge", key(taught), **arguments) == first
        return len(threads)

    time.sleep(1.1)  # the second of the last lesson is over, and its version is fitted in the next call
    short = judged("The courier has lost my second parcel.", model="a8:80")
    assert took(short) == (0 if operations.store.is_sqlite else 1)
    assert took(judged("The courier lost it. " * 200, model="a8:80")) == 1
    version = call("judge", key(taught), **short)["model"]
    assert took({**short, "model": version}) == 1


def test_a_verdict_names_its_version_and_minimum_accuracy(call: Call, taught: str) -> None:
    result = call("judge", key(taught), **judged("The courier lost my parcel.", model="a8:80"))
    assert result["verdict"] == {"queue": "shipping"}
    assert list(result) == ["verdict", "model", "min_accuracy"]
    assert result["model"].startswith("a8-1-1:80@")
    assert result["min_accuracy"] == 80


def test_the_database_keeps_vectors_of_what_was_taught_and_fitted_and_those_of_judged_texts_for_a_while(
    process: tuple[Call, Operations], store: Store, taught: str
) -> None:
    call, operations = process
    ticket = f"The courier lost parcel {secrets.token_hex(4)}."
    call("judge", key(taught), **judged(ticket, model="a8:80"))
    operations._vectors.flush()
    with store.reading() as connection:
        here = vectors.c.organization_id == taught
        rows = connection.execute(select(vectors.c.text_hash, vectors.c.judged_at).where(here))
        judged_at = {bytes(row[0]): row[1] for row in rows}
    assert abs(judged_at[text_hash(ticket)] - time.time()) < 60
    subjects = [parse_request(one["input"], one["format"]).subject for one in teachings()]
    assert {judged_at[text_hash(subject)] for subject in subjects} == {None}
    # Those of the words that the fit needed, beside the subjects and the criterion.
    assert sum(when is None for when in judged_at.values()) > len(set(subjects)) + 1


def test_an_abstention_is_a_result_with_its_five_members(call: Call, taught: str) -> None:
    result = call("judge", key(taught), **judged("The choir sings on Thursday.", model="a8:80"))
    assert list(result) == ["verdict", "model", "abstention"]
    assert result["verdict"] is None
    assert list(result["abstention"]) == ["kind", "asked", "answerable_at", "earned", "missing"]
    assert (result["abstention"]["kind"], result["abstention"]["asked"]) == ("unfamiliar_subject", 80)


def test_an_organization_that_taught_nothing_gets_an_unfamiliar_criterion(
    call: Call, organization: str
) -> None:
    result = call("judge", key(organization), **judged("My parcel is late."))
    assert result["abstention"]["kind"] == "unfamiliar_criterion"
    assert result["model"].startswith("a8-1-1:90@")


def test_recall_returns_examples_word_for_word_and_no_verdict(call: Call, taught: str) -> None:
    result = call("judge", key(taught, "models:explain"), input="What have I taught you about refunds?")
    assert sorted(result) == ["model", "precedents"]
    examples = result["precedents"]["examples"]
    assert 0 < len(examples) <= 10
    known = [{name: one[name] for name in ("input", "format", "answer")} for one in teachings()]
    for example in examples:
        assert {name: example[name] for name in ("input", "format", "answer")} in known


def test_precedents_come_with_a_verdict_when_the_request_asks_for_them(call: Call, taught: str) -> None:
    messages = [
        {"role": "system", "content": f"{CRITERION} Show the precedents."},
        {"role": "user", "content": "The courier lost my parcel."},
    ]
    result = call("judge", key(taught), input=messages, format=FORMAT, model="a8:80")
    assert result["verdict"] == {"queue": "shipping"}
    assert 0 < len(result["precedents"]["examples"]) <= 10


def test_a_pinned_version_answers_as_it_did_after_a_retract(call: Call, organization: str) -> None:
    lesson = {"input": "Is it urgent? The shop is down.", "format": {"type": "boolean"}}
    recorded = call("teach", key(organization), **lesson, answer=True)
    stamp = recorded["recorded_at"].replace("-", "").replace(":", "").lower()
    pinned = call("judge", key(organization), **lesson, model=f"a8:99@{stamp}")
    assert (pinned["verdict"], pinned["model"]) == (True, f"a8-1-1:99@{stamp}")
    time.sleep(1.05)
    assert call("retract", key(organization), **lesson) == {"retracted": True}
    assert call("judge", key(organization), **lesson)["verdict"] is None
    assert call("judge", key(organization), **lesson, model=f"a8:99@{stamp}") == pinned


def test_who_taught_last_waits_for_it_and_others_do_not(call: Call, organization: str) -> None:
    lesson = {"input": "Is it urgent? The shop is down.", "format": {"type": "boolean"}}
    before = call("judge", key(organization, name="key_other"), **lesson)
    assert before["verdict"] is None
    call("teach", key(organization), **lesson, answer=True)
    started = time.monotonic()
    others = call("judge", key(organization, name="key_other"), **lesson)
    assert time.monotonic() - started < 0.9
    own = call("judge", key(organization), **lesson)
    assert own["verdict"] is True
    # The other saw the version of before, unless the second was over by then.
    assert others["model"] <= own["model"]
    assert others["verdict"] is (True if others["model"] == own["model"] else None)


def test_a_version_that_is_not_ready_in_time_is_said_to_be_fitted(store: Store, organization: str) -> None:
    with running(store, fit_wait=0) as (call, _):
        recorded = call("teach", key(organization), **teachings()[0])
        stamp = recorded["recorded_at"].replace("-", "").replace(":", "").lower()
        with pytest.raises(Refused, match="still being fitted") as refused:
            call("judge", key(organization), **judged("My parcel is late.", model=f"a8@{stamp}"))
        assert refused.value.status == 503


def test_another_process_sees_what_this_one_taught(store: Store, call: Call, organization: str) -> None:
    lesson = {"input": "Is it urgent? The shop is down.", "format": {"type": "boolean"}}
    call("teach", key(organization), **lesson, answer=True)
    with running(store) as (other_call, _):
        assert other_call("judge", key(organization), **lesson)["verdict"] is True


def test_the_strict_certificate_counts_from_the_next_version_on(
    store: Store, call: Call, organization: str
) -> None:
    for arguments in teachings():
        call("teach", key(organization), **arguments)
    question = judged("The courier lost my parcel.", model="a8:99")
    before = call("judge", key(organization), **question)
    time.sleep(1.05)
    set_certificate(store, organization, "key_own", "strict")
    after = call("judge", key(organization), **question)
    # Forty examples without an error support less where nothing is assumed of them.
    assert 80 < after["abstention"]["earned"] < before["abstention"]["earned"]
    assert call("judge", key(organization), **{**question, "model": before["model"]}) == before


# Teaching


def test_a_teach_returns_when_it_was_recorded_and_whether_it_replaced(call: Call, organization: str) -> None:
    lesson = {**teachings()[0]}
    first = call("teach", key(organization), **lesson)
    assert list(first) == ["recorded_at", "replaced"]
    assert first["replaced"] is False
    assert call("teach", key(organization), **lesson) == first
    lesson["answer"] = {"queue": "account"}
    assert call("teach", key(organization), **lesson)["replaced"] is True


def test_words_alone_become_a_proposal_framed_by_what_was_taught(call: Call, taught: str) -> None:
    words = "Double-charge tickets go to billing, even when the order came late."
    result = call("teach", key(taught, "models:train", "models:explain"), input=words)
    assert result["recorded_at"] is None
    assert result["proposal"]["format"] == FORMAT
    assert result["proposal"]["answer"] == {"queue": "billing"}
    assert result["proposal"]["input"][0] == {"role": "system", "content": CRITERION}


def test_a_key_without_explain_gets_no_proposal_framed_by_what_was_taught(call: Call, taught: str) -> None:
    words = "Double-charge tickets go to billing, even when the order came late."
    try:
        shown = str(call("teach", key(taught, "models:train"), input=words))
    except Refused as refused:
        shown = refused.message
    assert CRITERION not in shown
    assert "shipping" not in shown


def test_a_proposal_records_nothing(call: Call, organization: str) -> None:
    call("teach", key(organization), input="Late parcels go to shipping.", format=FORMAT)
    assert call("examples", key(organization))["examples"] == []


def test_retract_says_whether_there_was_something_to_remove(call: Call, organization: str) -> None:
    lesson = teachings()[0]
    call("teach", key(organization), **lesson)
    question = {name: lesson[name] for name in ("input", "format")}
    assert call("retract", key(organization), **question) == {"retracted": True}
    assert call("retract", key(organization), **question) == {"retracted": False}


# The order of checks


NO_ACCESS = (403, "no_access", "This organization does not have access to A8.")


def needs(permission: str) -> tuple[int, str, str]:
    return (403, "permission_denied", f"This request needs the {permission} permission.")


RECALL = "What have I taught you about refunds?"


@pytest.mark.parametrize(
    ("operation", "permissions", "arguments", "expected"),
    [
        ("judge", [], {}, needs("models:infer")),
        ("judge", ["models:train"], judged("Late."), needs("models:infer")),
        ("judge", ["models:explain"], judged("Late."), needs("models:infer")),
        ("judge", ["models:infer"], {"input": RECALL}, needs("models:explain")),
        ("judge", ["models:infer"], {"input": "Is it late? Show the precedents."}, needs("models:explain")),
        ("judge", ["models:explain"], {"input": "Is it late? Show the precedents."}, needs("models:infer")),
        # arguments come before the exact permission, and that before the model
        ("judge", ["models:explain"], {"input": ""}, (400, "invalid_request", None)),
        ("judge", ["models:explain"], judged("Late.", model="a8:120"), needs("models:infer")),
        ("teach", ["models:infer", "models:explain"], {"input": ""}, needs("models:train")),
        ("retract", ["models:infer", "models:explain"], {"input": ""}, needs("models:train")),
        ("examples", ["models:infer", "models:train"], {}, needs("models:explain")),
        ("versions", ["models:infer", "models:train"], {}, needs("models:explain")),
        ("test", ["models:explain", "models:train"], {}, needs("models:infer")),
    ],
)
def test_a_key_may_do_what_its_permissions_say(
    call: Call,
    organization: str,
    operation: str,
    permissions: list[str],
    arguments: Mapping[str, Any],
    expected: tuple[int, str, str | None],
) -> None:
    principal = Principal(organization, "key_own", frozenset(permissions))
    with pytest.raises(Refused) as refused:
        call(operation, principal, **arguments)
    status, type_, message = expected
    assert (refused.value.status, refused.value.type) == (status, type_)
    assert message is None or refused.value.message == message


@pytest.mark.parametrize("operation", ["judge", "teach", "retract", "examples", "versions", "test"])
def test_an_organization_without_access_gets_nothing_whatever_it_sends(
    store: Store, call: Call, organization: str, operation: str
) -> None:
    set_organization(store, organization, access=False)
    for principal in (key(organization), Principal(organization, "key_own", frozenset())):
        with pytest.raises(Refused) as refused:
            call(operation, principal, nonsense=1)
        assert (refused.value.status, refused.value.type, refused.value.message) == NO_ACCESS


@pytest.mark.parametrize(
    ("operation", "arguments", "field", "says"),
    [
        ("judge", {}, "input", "input must be there"),
        ("judge", {"input": ""}, "input", "input is empty"),
        ("judge", {"input": 7}, "input", "input must be a string or a list of messages"),
        (
            "judge",
            {"input": "Late?", "fromat": {}},
            "fromat",
            "fromat is no argument of this call: input, format",
        ),
        ("judge", {"input": "Late?", "format": None}, "format", "format must be a JSON Schema object"),
        ("judge", {"input": "Late?", "model": "a8:120"}, "model", "model's tag must be 0 to 99"),
        ("judge", {"input": "Late?", "model": None}, "model", "model must be a name such as"),
        ("teach", {"input": "Late?", "answer": None}, "answer", "answer must not be null"),
        (
            "teach",
            {"input": "Late? No.", "format": FORMAT, "answer": {"queue": "x"}},
            "answer.queue",
            "answer.queue",
        ),
        ("teach", {"input": RECALL, "answer": True}, "input", "input asks what was taught"),
        ("teach", {"input": "Nothing is said here.", "model": "a8"}, "model", "model is no argument"),
        ("retract", {"input": "Late?", "answer": True}, "answer", "answer is no argument of this call"),
        ("examples", {"cursor": "x"}, "cursor", "cursor must be the `next` of another page"),
        ("versions", {"cursor": "1.2"}, "cursor", "cursor must be the `next` of another page"),
        ("test", {}, "cases", "cases must be a list of 1 to 1,000 objects"),
        ("test", {"cases": []}, "cases", "cases must be a list of 1 to 1,000 objects"),
        ("test", {"cases": [7]}, "cases[0]", "cases[0]: "),
        ("test", {"cases": [{"input": "", "answer": 1}]}, "cases[0]", "cases[0]: input is empty"),
    ],
)
def test_an_argument_that_does_not_pass_is_named_with_the_rule_and_what_passes(
    call: Call, organization: str, operation: str, arguments: Mapping[str, Any], field: str, says: str
) -> None:
    with pytest.raises(Refused) as refused:
        call(operation, key(organization), **arguments)
    assert (refused.value.status, refused.value.field) == (400, field)
    assert refused.value.message.startswith(says)


# The filter


class ScriptedProvider:
    """A judgment provider that finds one word harmful, or fails."""

    def __init__(self) -> None:
        self.down = False
        self.asked: list[str] = []

    def system_one(self, state: Any, questions: Any, model: str) -> Any:
        from judgment_engine.answers import Judgment, NoulAnswer, Usage
        from judgment_engine.providers.base import ProviderUnavailableError

        self.asked.append(state)
        if self.down:
            raise ProviderUnavailableError("down")
        harm = 0.9 if "poison" in state else 0.1
        return Judgment(model, Usage(), {name: NoulAnswer(harm) for name in questions})


@pytest.fixture
def provider(process: tuple[Call, Operations], monkeypatch: pytest.MonkeyPatch) -> ScriptedProvider:
    from a8_http.filtering import HarmFilter

    scripted = ScriptedProvider()
    monkeypatch.setattr(process[1], "_filter", HarmFilter(scripted))
    return scripted


HARMFUL = {"input": "Is it urgent? There is poison in it.", "format": {"type": "boolean"}}
HARMLESS = {"input": "Is it urgent? There is sugar in it.", "format": {"type": "boolean"}}


def test_without_reasoning_no_provider_is_asked(
    call: Call, organization: str, provider: ScriptedProvider
) -> None:
    call("teach", key(organization), **HARMFUL, answer=True)
    assert call("judge", key(organization), **HARMFUL)["verdict"] is True
    assert provider.asked == []


def test_with_reasoning_a_harmful_request_is_filtered_and_nothing_recorded(
    store: Store, call: Call, organization: str, provider: ScriptedProvider
) -> None:
    set_organization(store, organization, reasoning=True)
    for operation, more in (("judge", {}), ("teach", {"answer": True}), ("teach", {})):
        with pytest.raises(Refused) as refused:
            call(operation, key(organization), **HARMFUL, **more)
        assert refused.value.message == "This request was filtered for harmful content."
        assert refused.value.type == "filtered"
    assert call("examples", key(organization))["examples"] == []
    assert call("teach", key(organization), **HARMLESS, answer=True)["replaced"] is False
    assert call("judge", key(organization), **HARMLESS)["verdict"] is True


def test_an_answer_is_filtered_like_an_input(
    store: Store, call: Call, organization: str, provider: ScriptedProvider
) -> None:
    set_organization(store, organization, reasoning=True)
    with pytest.raises(Refused, match="filtered for harmful content"):
        call("teach", key(organization), input="What is in it? White powder.", answer="poison")
    assert call("examples", key(organization))["examples"] == []


def test_a_format_is_filtered_like_an_input(
    store: Store, call: Call, organization: str, provider: ScriptedProvider
) -> None:
    set_organization(store, organization, reasoning=True)
    asked = {"input": "What is in it? White powder.", "format": {"enum": ["sugar", "poison"]}}
    for operation, more in (("judge", {}), ("teach", {"answer": "sugar"}), ("teach", {})):
        with pytest.raises(Refused, match="filtered for harmful content"):
            call(operation, key(organization), **asked, **more)
    assert call("examples", key(organization))["examples"] == []
    # The words are read alone too, where no schema dims them.
    assert {state.count("\n") for state in provider.asked} == {0, 1, 2}


def test_the_threshold_decides(
    store: Store, call: Call, organization: str, provider: ScriptedProvider
) -> None:
    set_organization(store, organization, reasoning=True, filter_threshold=0.95)
    assert call("judge", key(organization), **HARMFUL)["verdict"] is None
    set_organization(store, organization, filter_threshold=0.9)
    with pytest.raises(Refused, match="filtered"):
        call("judge", key(organization), **HARMFUL)


def test_a_provider_that_is_down_stops_teach_always_and_judge_unless_it_may_go_on(
    store: Store, call: Call, organization: str, provider: ScriptedProvider
) -> None:
    set_organization(store, organization, reasoning=True)
    provider.down = True
    for operation, more in (("judge", {}), ("teach", {"answer": True})):
        with pytest.raises(Refused, match="harm filter cannot be asked") as refused:
            call(operation, key(organization), **HARMLESS, **more)
        assert refused.value.status == 503
    set_organization(store, organization, fail_open=True)
    assert call("judge", key(organization), **HARMLESS)["verdict"] is None
    with pytest.raises(Refused, match="harm filter cannot be asked"):
        call("teach", key(organization), **HARMLESS, answer=True)
    assert call("examples", key(organization))["examples"] == []


def test_a_recall_of_nothing_harmful_passes_and_permissions_come_before_the_filter(
    store: Store, call: Call, organization: str, provider: ScriptedProvider
) -> None:
    set_organization(store, organization, reasoning=True)
    with pytest.raises(Refused, match="models:train"):
        call("teach", key(organization, "models:infer"), **HARMFUL, answer=True)
    with pytest.raises(Refused, match="outside of this organization's horizons"):
        call("judge", key(organization), **HARMFUL, model="a8@20010101t000000z")
    assert provider.asked == []
    assert call("judge", key(organization), input=RECALL)["precedents"] == {"examples": []}


# Lists and the test


def test_examples_are_paged_in_the_order_of_teaching(call: Call, organization: str) -> None:
    for number in range(103):
        call("teach", key(organization), input=f"Is it late? Parcel {number}.", answer=number % 2 == 0)
    first = call("examples", key(organization))
    # What is taught between two pages belongs to neither.
    call("teach", key(organization), input="Is it late? Another parcel.", answer=True)
    second = call("examples", key(organization), cursor=first["next"])
    assert [len(first["examples"]), len(second["examples"]), second["next"]] == [100, 3, None]
    inputs = [one["input"] for one in first["examples"] + second["examples"]]
    assert inputs == [f"Is it late? Parcel {number}." for number in range(103)]
    assert sorted(first["examples"][0]) == ["answer", "input", "recorded_at"]


def test_examples_of_a_version_are_those_it_was_fitted_from(call: Call, organization: str) -> None:
    first = call("teach", key(organization), input="Is it late? Parcel 1.", answer=True)
    time.sleep(1.05)
    call("teach", key(organization), input="Is it late? Parcel 2.", answer=True)
    stamp = first["recorded_at"].replace("-", "").replace(":", "").lower()
    listed = call("examples", key(organization), model=f"a8@{stamp}")
    assert [one["input"] for one in listed["examples"]] == ["Is it late? Parcel 1."]


def test_versions_are_listed_newest_first_down_to_the_creation(call: Call, organization: str) -> None:
    time.sleep(1.05)
    recorded = call("teach", key(organization), input="Is it late? Parcel 1.", answer=True)
    judged_by = call("judge", key(organization), input="Is it late? Parcel 1.")["model"]
    listed = call("versions", key(organization))
    assert listed["next"] is None
    assert [one["state"] for one in listed["versions"]] == ["ready", "unfitted"]
    assert listed["versions"][0]["recorded_at"] == recorded["recorded_at"]
    assert listed["versions"][0]["model"] == judged_by.replace(":90", "")
    creation = listed["versions"][1]["model"]
    assert call("judge", key(organization), input="Is it late? Parcel 1.", model=creation)["verdict"] is None


def test_a_test_counts_misses_and_abstentions_apart(call: Call, taught: str) -> None:
    cases = [
        judged("The courier lost my parcel.", answer={"queue": "shipping"}),
        judged("The courier lost my package.", answer={"queue": "account"}),
        judged("The choir sings on Thursday.", answer={"queue": "billing"}),
        {**teachings()[0]},
    ]
    result = call("test", key(taught), cases=cases, model="a8:80")
    assert {name: result[name] for name in ("cases", "answered", "taught", "coverage")} == {
        "cases": 4,
        "answered": 2,
        "taught": 1,
        "coverage": pytest.approx(2 / 3),
    }
    assert result["accuracy"] == 0.5
    assert [(one["verdict"], one["answer"]) for one in result["misses"]] == [
        ({"queue": "shipping"}, {"queue": "account"})
    ]
    assert [one["abstention"]["kind"] for one in result["abstentions"]] == ["unfamiliar_subject"]
    # Taught as it is, with this answer: nothing is tested. Taught with another one: a miss.
    only = call("test", key(taught), cases=[{**teachings()[0]}], model="a8:80")
    assert (only["accuracy"], only["coverage"], only["answered"]) == (None, None, 0)
    other = call("test", key(taught), cases=[{**teachings()[0], "answer": {"queue": "account"}}])
    assert (other["taught"], other["accuracy"], len(other["misses"])) == (0, 0.0, 1)


def test_a_test_that_answers_nothing_has_no_accuracy(call: Call, organization: str) -> None:
    result = call("test", key(organization), cases=[judged("Late.", answer={"queue": "billing"})])
    assert (result["accuracy"], result["coverage"]) == (None, 0.0)


# Between organizations


def test_nothing_of_one_organization_reaches_another(store: Store, call: Call, taught: str) -> None:
    secret = teachings()[0]
    question = {name: secret[name] for name in ("input", "format")}
    pinned = call("judge", key(taught), **question)["model"]
    # An answered version's second is over, so this organization is younger.
    stranger = key(create_organization(store, f"Stranger {secrets.token_hex(4)}"))
    assert call("judge", stranger, **question)["abstention"]["kind"] == "unfamiliar_criterion"
    with pytest.raises(Refused, match="outside of this organization's horizons"):
        call("judge", stranger, **question, model=pinned)
    assert call("judge", stranger, input=RECALL)["precedents"] == {"examples": []}
    assert call("retract", stranger, **question) == {"retracted": False}
    assert call("examples", stranger) == {"examples": [], "next": None}
    assert call("teach", stranger, **{**secret, "answer": {"queue": "account"}})["replaced"] is False
    assert call("judge", key(taught), **question)["verdict"] == secret["answer"]
    (miss,) = call("test", stranger, cases=[secret])["misses"]
    assert miss["verdict"] == {"queue": "account"}
    assert call("test", key(taught), cases=[secret])["misses"] == []
