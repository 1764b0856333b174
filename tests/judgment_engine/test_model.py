"""A model fitted from taught examples judges, abstains by the first failed check, forgets what it must."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judgment_engine.abstention import Abstention
from judgment_engine.errors import EngineError
from judgment_engine.fitting import FitCache, Vectors
from judgment_engine.model import Example, Model, Verdict, embed_texts, fit
from judgment_engine.requests import Request, parse_request

Embed = Callable[[Sequence[str]], Vectors]
Ask = Callable[[str], Request]

QUEUE = "Which queue does the ticket belong in?"
FORMAT = {"properties": {"queue": {"enum": ["billing", "shipping", "account"]}}}


def asks(criterion: str, subject: str, format: Any = None) -> Request:
    messages = [{"role": "system", "content": criterion}, {"role": "user", "content": subject}]
    return parse_request(messages, format)


def teach(criterion: str, answers: dict[str, Any], format: Any = None, at: int = 1000) -> list[Example]:
    """One example a subject, a second apart."""
    return [
        Example(asks(criterion, subject, format), answer, at + second)
        for second, (subject, answer) in enumerate(answers.items())
    ]


def record(outcome: Verdict | Abstention) -> dict[str, Any]:
    assert isinstance(outcome, Abstention)
    return outcome.to_json()


@pytest.fixture(scope="module")
def model(taught_tickets: list[Example], embed: Embed) -> Model:
    return fit(taught_tickets, embed=embed)


# The recorded examples


def test_a_taught_ticket_gets_its_queue_at_every_minimum_accuracy(model: Model, ticket_request: Ask) -> None:
    for asked in (0, 50, 90, 95, 99):
        verdict = model.judge(ticket_request("It arrived crushed. I want a refund."), asked)
        assert verdict == Verdict({"queue": "billing"})


@pytest.mark.parametrize(
    ("ticket", "queue"),
    [
        ("The parcel never came and tracking is stuck.", "shipping"),
        ("You took the money from my card two times.", "billing"),
        ("I forgot my password and cannot sign in.", "account"),
        ("The courier dropped my box and it broke.", "shipping"),
        ("Please send me an invoice for this payment.", "billing"),
    ],
)
def test_a_new_ticket_is_sorted_at_95(model: Model, ticket_request: Ask, ticket: str, queue: str) -> None:
    assert model.judge(ticket_request(ticket), 95) == Verdict({"queue": queue})


def test_an_unfamiliar_subject_is_recorded_with_what_the_criterion_earned(
    taught_tickets: list[Example], ticket_request: Ask, embed: Embed
) -> None:
    strict = fit(taught_tickets, certificate="strict", embed=embed)
    assert record(strict.judge(ticket_request("Why does the moon pull the tide?"), 95)) == {
        "kind": "unfamiliar_subject",
        "asked": 95,
        "answerable_at": 0,
        "earned": 97,
        "missing": None,
    }


# The checks and their order


@pytest.mark.parametrize(
    "criterion", ["Is the customer angry?", "Which queue does the ticket not belong in?"]
)
def test_a_criterion_that_was_not_taught_is_unfamiliar(model: Model, criterion: str) -> None:
    assert record(model.judge(asks(criterion, "this one", {"type": "boolean"}), 0)) == {
        "kind": "unfamiliar_criterion",
        "asked": 0,
        "answerable_at": None,
        "earned": 0,
        "missing": None,
    }


@pytest.mark.parametrize(
    "criterion", ["which QUEUE does the ticket belong in", "In which queue does this ticket belong?"]
)
def test_a_criterion_in_other_words_is_the_taught_one(model: Model, criterion: str) -> None:
    request = asks(criterion, "The parcel never came and tracking is stuck.", FORMAT)
    assert model.judge(request, 90) == Verdict({"queue": "shipping"})


@pytest.mark.parametrize(
    ("format", "missing"),
    [
        ({"properties": {"queue": {"enum": ["billing"]}, "urgent": {"type": "boolean"}}}, ["urgent"]),
        ({"properties": {"queue": {"enum": ["sales", "legal"]}}}, ["queue"]),
        ({"properties": {"queue": {"type": "boolean"}}}, ["queue"]),
        ({"properties": {"queue": {"type": "array", "items": {"enum": ["billing"]}}}}, ["queue"]),
        ({"properties": {"queue": {"properties": {"name": {"type": "string"}}}}}, ["queue.name"]),
        ({"enum": ["billing", "shipping"]}, ["verdict"]),
    ],
)
def test_a_format_that_the_taught_answers_cannot_fill_is_unfamiliar(
    model: Model, format: Any, missing: list[str]
) -> None:
    found = record(model.judge(asks(QUEUE, "this one", format), 0))
    assert (found["kind"], found["missing"]) == ("unfamiliar_format", missing)
    assert (found["answerable_at"], found["earned"]) == (None, 0)


@pytest.mark.parametrize("subject", ["this one", "…", "😀😀😀", "see above"])
def test_a_subject_without_a_word_of_its_own_is_missing_information(model: Model, subject: str) -> None:
    found = record(model.judge(asks(QUEUE, subject, FORMAT), 0))
    assert found["kind"] == "missing_information"
    assert found["missing"] == ["subject"]
    assert found["answerable_at"] is None
    assert found["earned"] > 90


def test_an_accuracy_that_was_not_earned_says_how_many_more_right_examples_would_earn_it(
    model: Model, ticket_request: Ask
) -> None:
    found = record(model.judge(ticket_request("I forgot my password and cannot sign in."), 99))
    assert found["kind"] == "insufficient_accuracy"
    assert found["earned"] < 99
    assert 0 < found["missing"]["examples"] <= 1000


def test_a_verdict_between_two_values_names_both(model: Model, ticket_request: Ask) -> None:
    found = record(model.judge(ticket_request("The parcel came late, so I want the delivery fee back."), 97))
    assert found["kind"] == "ambiguous_verdict"
    assert found["answerable_at"] < 97 <= found["earned"]
    assert {"queue": "shipping"} in found["missing"]["between"]
    assert {"queue": "billing"} in found["missing"]["between"]


def test_a_model_of_nothing_knows_no_criterion(ticket_request: Ask) -> None:
    empty = fit([])
    assert record(empty.judge(ticket_request("My parcel is late."), 90))["kind"] == "unfamiliar_criterion"
    assert empty.precedents(ticket_request("My parcel is late.")) == []


@pytest.mark.parametrize("wrong", ["Is it late? It is.", None, 7, {"input": "Is it late? It is."}])
def test_what_is_no_request_or_example_is_refused_by_name(model: Model, wrong: Any) -> None:
    for ask in (model.judge, model.recall, model.propose, model.precedents):
        with pytest.raises(EngineError, match=r"request must be a Request: parse_request\(.*\) passes"):
            ask(wrong)
    with pytest.raises(EngineError, match="examples must be Examples: "):
        fit([wrong])
    with pytest.raises(EngineError, match="request must be a Request: "):
        fit([Example(wrong, True, 1000)])
    moment: Any = 1000.5
    with pytest.raises(EngineError, match="recorded_at must be whole seconds since 1970: "):
        fit([Example(parse_request("Is it late? It is."), True, moment)])


def test_asked_must_be_0_to_99(model: Model, ticket_request: Ask) -> None:
    others: list[Any] = ["95", None, 95.0, True]
    for asked in (-1, 100, *others):
        with pytest.raises(EngineError, match="asked must be a whole number from 0 to 99"):
            model.judge(ticket_request("My parcel is late."), asked)


def test_a_question_about_what_was_taught_is_not_judged(model: Model) -> None:
    with pytest.raises(EngineError, match="input asks what was taught"):
        model.judge(parse_request("What have I taught you about refunds?"))


# Criteria that are not named, formats that are not given


def test_without_a_criterion_the_only_taught_one_is_meant(model: Model, embed: Embed) -> None:
    request = parse_request("The parcel never came and tracking is stuck.")
    assert model.judge(request, 90) == Verdict({"queue": "shipping"})
    two = fit([*model.examples, *teach("Is it urgent?", {"The shop is down.": True})], embed=embed)
    assert record(two.judge(request, 0))["kind"] == "unfamiliar_criterion"


def test_examples_taught_without_a_criterion_are_one_group(embed: Embed) -> None:
    taught = [
        Example(parse_request(text), answer, 1000)
        for text, answer in [
            ("The shop is down.", "urgent"),
            ("Nothing works.", "urgent"),
            ("Hello.", "calm"),
        ]
    ]
    model = fit(taught, embed=embed)
    assert model.judge(parse_request("The shop is down."), 99) == Verdict("urgent")
    assert model.judge(parse_request("The whole shop is down!"), 0) == Verdict("urgent")


def test_without_a_format_the_verdict_takes_the_shape_of_the_latest_example(embed: Embed) -> None:
    answers = {
        "The shop is down.": "high",
        "All is well.": "low",
        "We cannot sell.": "high",
        "Thanks!": "low",
    }
    model = fit(
        teach("How urgent is it?", {s: {"level": a, "by": "rule"} for s, a in answers.items()}), embed=embed
    )
    verdict = model.judge(asks("How urgent is it?", "The shop is down again."), 0)
    assert verdict == Verdict({"level": "high", "by": "rule"})


def test_a_format_with_some_of_the_properties_is_answered_with_those(embed: Embed) -> None:
    format = {"properties": {"queue": {"enum": ["a", "b"]}, "urgent": {"type": "boolean"}}}
    taught = teach(
        "Where to?",
        {
            "The server burns.": {"queue": "a", "urgent": True},
            "The server is slow.": {"queue": "a", "urgent": False},
            "The invoice is overdue.": {"queue": "b", "urgent": True},
            "The invoice has a typo.": {"queue": "b", "urgent": False},
        },
        format,
    )
    model = fit(taught, embed=embed)
    asked = asks("Where to?", "The server is on fire.", {"properties": {"queue": {"enum": ["b", "a"]}}})
    assert model.judge(asked, 0) == Verdict({"queue": "a"})
    whole = model.judge(asks("Where to?", "The server is on fire.", format), 0)
    assert isinstance(whole, Verdict)
    assert whole.verdict["queue"] == "a"


def test_an_asked_enum_only_allows_its_own_values(model: Model) -> None:
    narrow = {"properties": {"queue": {"enum": ["account", "billing"]}}}
    verdict = model.judge(asks(QUEUE, "The parcel never came and tracking is stuck.", narrow), 0)
    assert isinstance(verdict, Verdict)
    assert verdict.verdict["queue"] in ("account", "billing")


def test_the_example_taught_without_a_format_answers_first_then_the_only_one(embed: Embed) -> None:
    subject, other = "The shop is down.", {"properties": {"level": {"enum": ["high", "low"]}}}
    with_format = teach("How urgent?", {subject: {"level": "high"}}, other)
    without = teach("How urgent?", {subject: {"level": "low"}})
    third = teach("How urgent?", {subject: {"level": "low"}}, {**other, "required": ["level"]})
    plain = asks("How urgent?", subject)
    assert fit(with_format, embed=embed).judge(plain, 99) == Verdict({"level": "high"})
    assert fit(with_format + without, embed=embed).judge(plain, 99) == Verdict({"level": "low"})
    assert fit(with_format + third, embed=embed).taught(plain) is None


# Leaves of every kind


def test_arrays_numbers_and_nested_objects_are_judged(embed: Embed) -> None:
    format = {
        "properties": {
            "tags": {"type": "array", "items": {"enum": ["late", "broken", "rude"]}},
            "defect": {"properties": {"severity": {"type": "integer", "minimum": 1, "maximum": 5}}},
        },
        "required": ["tags", "defect"],
    }
    answers = {
        "The parcel came a week late.": (["late"], 2),
        "The delivery is overdue by days.": (["late"], 2),
        "The vase was in pieces.": (["broken"], 4),
        "The screen arrived cracked.": (["broken"], 4),
        "It came late and smashed.": (["broken", "late"], 5),
        "Overdue, and the box was crushed.": (["late", "broken"], 5),
        "The driver shouted at me.": (["rude"], 3),
        "Everything is fine.": ([], 1),
    }
    taught = teach(
        "What is wrong?", {s: {"tags": t, "defect": {"severity": n}} for s, (t, n) in answers.items()}, format
    )
    model = fit(taught, embed=embed)
    verdict = model.judge(asks("What is wrong?", "The mirror arrived broken in pieces.", format), 0)
    assert isinstance(verdict, Verdict)
    assert verdict.verdict["tags"] == ["broken"]
    assert 1 <= verdict.verdict["defect"]["severity"] <= 5
    both = model.judge(asks("What is wrong?", "Late by a week, and the box was smashed.", format), 0)
    assert isinstance(both, Verdict)
    assert both.verdict["tags"] == ["late", "broken"]


def test_properties_that_were_left_out_or_null_can_be_judged_so(embed: Embed) -> None:
    format = {
        "properties": {
            "refund": {"type": "boolean"},
            "amount": {"type": ["object", "null"], "properties": {"unit": {"enum": ["euro", "dollar"]}}},
            "items": {"type": ["array", "null"], "items": {"enum": ["vase", "lamp"]}},
        },
        "required": ["refund"],
    }
    answers: dict[str, Any] = {
        "Give me my euros back.": {"refund": True, "amount": {"unit": "euro"}, "items": None},
        "I want the euros returned.": {"refund": True, "amount": {"unit": "euro"}, "items": None},
        "The dollars must come back.": {"refund": True, "amount": {"unit": "dollar"}, "items": ["vase"]},
        "What is the weather like?": {"refund": False, "amount": None},
        "Will it rain tomorrow?": {"refund": False, "amount": None},
        "Hello, who are you?": {"refund": False},
    }
    model = fit(teach("What is asked for?", answers, format), embed=embed)
    money = model.judge(asks("What is asked for?", "I want my euros back.", format), 0)
    assert money == Verdict({"refund": True, "amount": {"unit": "euro"}, "items": None})
    rain = model.judge(asks("What is asked for?", "Will it be rain or sun tomorrow?", format), 0)
    assert rain == Verdict({"refund": False, "amount": None})
    required = {**format, "required": ["refund", "items"]}
    found = model.judge(asks("What is asked for?", "Will it be rain or sun tomorrow?", required), 0)
    assert isinstance(found, Verdict)
    assert "items" in found.verdict


def test_what_the_asked_format_forbids_can_still_stand_second(embed: Embed) -> None:
    format = {"properties": {"pager": {"enum": ["dba", "network"]}}}
    answers: dict[str, Any] = {f"The database index {i} is broken.": {"pager": "dba"} for i in range(30)}
    answers |= {f"The holiday cake {i} is here.": {} for i in range(30)}
    model = fit(teach("Who is paged?", answers, format), embed=embed)
    request = asks("Who is paged?", "The database holiday cake is broken.", {**format, "required": ["pager"]})
    earned = model.judge(request, 99)
    assert isinstance(earned, Abstention)
    told = [record(model.judge(request, asked)) for asked in range(1, earned.earned + 1)]
    between = [one["missing"]["between"] for one in told if one.get("kind") == "ambiguous_verdict"]
    assert between
    assert all(some == [{"pager": "dba"}, {}] for some in between)


def test_free_text_and_numbers_off_any_grid_answer_only_their_very_request_above_0(embed: Embed) -> None:
    texts = {
        f"Case {word}.": f"Reply about {word}." for word in ("rain", "snow", "wind", "sun", "fog", "hail")
    }
    numbers = {subject: index + 0.37 for index, subject in enumerate(texts)}
    for answers, format in ((texts, {"type": "string"}), (numbers, {"type": "number"})):
        model = fit(teach("What now?", answers, format), embed=embed)
        assert model.judge(asks("What now?", "Case snow.", format), 99) == Verdict(answers["Case snow."])
        found = record(model.judge(asks("What now?", "A case of snow.", format), 50))
        assert found["kind"] in ("unfamiliar_subject", "insufficient_accuracy")
        assert found["earned"] == 0


def test_precedents_are_the_nearest_of_the_group_whatever_their_verdict(
    model: Model, ticket_request: Ask
) -> None:
    found = model.precedents(ticket_request("The parcel came late, so I want the delivery fee back."))
    assert len(found) == 10
    assert {example.answer["queue"] for example in found} >= {"billing", "shipping"}
    taught = model.precedents(ticket_request("It arrived crushed. I want a refund."))
    assert taught[0].request.subject == "It arrived crushed. I want a refund."


# Odd teaching and odd subjects


def test_one_example_answers_its_own_request_and_nothing_else_above_0(embed: Embed) -> None:
    model = fit(teach(QUEUE, {"My parcel is late.": {"queue": "shipping"}}, FORMAT), embed=embed)
    assert model.judge(asks(QUEUE, "My parcel is late.", FORMAT), 99) == Verdict({"queue": "shipping"})
    assert record(model.judge(asks(QUEUE, "My parcel is very late.", FORMAT), 1))["answerable_at"] == 0
    assert model.judge(asks(QUEUE, "My parcel is very late.", FORMAT), 0) == Verdict({"queue": "shipping"})


def test_examples_that_are_all_alike_or_contradict_each_other_earn_nothing(embed: Embed) -> None:
    alike = teach(QUEUE, {f"My parcel is late{'!' * n}": {"queue": "shipping"} for n in range(12)}, FORMAT)
    found = record(fit(alike, embed=embed).judge(asks(QUEUE, "My parcel came too late.", FORMAT), 50))
    assert found["earned"] < 50
    torn = teach(
        QUEUE,
        {f"My parcel is late{'!' * n}": {"queue": ("shipping", "billing")[n % 2]} for n in range(12)},
        FORMAT,
    )
    found = record(fit(torn, embed=embed).judge(asks(QUEUE, "My parcel came too late.", FORMAT), 50))
    assert found["earned"] < 50


@pytest.mark.parametrize(
    "subject",
    [
        "The parcel is late. " * 10_000,
        "x" * 200_000,
        "لم تصل الطردية بعد والتتبع لا يعمل",
        "החבילה לא הגיעה",
        "📦❓",
        "\u202eesrever ni\u202c parcel",
        "a\x00b\x07",
        "ﷺ" * 5_000,
    ],
)
def test_any_subject_gets_a_verdict_or_an_abstention(model: Model, ticket_request: Ask, subject: str) -> None:
    request = ticket_request(subject)
    for asked in (0, 90):
        assert isinstance(model.judge(request, asked), Verdict | Abstention)
    assert len(model.precedents(request)) == 10


def test_odd_subjects_can_be_taught(embed: Embed) -> None:
    answers = {"😀": True, "😡": False, "   .": True, "مرحبا": True, "a" * 200_000: False}
    model = fit(teach("Is it kind?", answers), embed=embed)
    for subject, answer in answers.items():
        assert model.judge(asks("Is it kind?", subject), 99) == Verdict(answer)


def test_an_unknown_certificate_is_refused() -> None:
    with pytest.raises(EngineError, match="certificate is unknown: 'lax': default, strict pass"):
        fit([], certificate="lax")  # type: ignore[arg-type]  # what the test is about


# Versions


def test_the_latest_answer_of_a_request_counts_by_time_and_then_by_order(
    ticket_request: Ask, embed: Embed
) -> None:
    request = ticket_request("My parcel is late.")
    first = Example(request, {"queue": "billing"}, 1000, seq=1)
    second = Example(request, {"queue": "account"}, 1000, seq=2)
    later = Example(request, {"queue": "shipping"}, 1001, seq=3)
    assert fit([second, first], embed=embed).judge(request, 99) == Verdict({"queue": "account"})
    assert fit([later, second, first], embed=embed).judge(request, 99) == Verdict({"queue": "shipping"})


def test_a_cache_or_an_earlier_model_change_nothing(taught_tickets: list[Example], embed: Embed) -> None:
    cache = FitCache()
    urgent = teach("Is it urgent?", {"The shop is down.": True, "Thanks.": False})
    before = fit(taught_tickets + urgent, embed=embed, cache=cache)
    after = taught_tickets[:-1] + urgent
    reused = fit(after, embed=embed, cache=cache, previous=before)
    fresh = fit(after, embed=embed)
    assert reused.artefact_hash == fresh.artefact_hash != before.artefact_hash
    assert np.array_equal(reused.vectors, fresh.vectors)


def test_a_changed_criterion_leaves_the_fits_of_the_others(
    taught_tickets: list[Example], embed: Embed
) -> None:
    urgent = teach("Is it urgent?", {"The shop is down.": True, "Thanks.": False})
    more = teach("Is it urgent?", {"Nothing works any more.": True}, at=2000)
    cache = FitCache()
    before = fit(taught_tickets + urgent, embed=embed, cache=cache)
    after = fit(taught_tickets + urgent + more, embed=embed, cache=cache)
    assert fits_of(before, QUEUE) == fits_of(after, QUEUE)
    assert fits_of(before, "Is it urgent?") != fits_of(after, "Is it urgent?")


def fits_of(model: Model, criterion: str) -> list[int]:
    return [id(group.fitted) for group in model.groups_of(criterion)]


SUBJECTS = [
    "My parcel is late.", "The courier lost the box.", "The van never came.", "The crate was wet.",
    "I was charged twice.", "Refund my payment.", "The invoice is wrong.", "The fee is too high.",
    "I cannot log in.", "Reset my password.", "My account is locked.", "Change my email.",
]  # fmt: skip
TAUGHT = st.lists(
    st.tuples(
        st.sampled_from(SUBJECTS),
        st.sampled_from(["billing", "shipping", "account"]),
        st.integers(1000, 1003),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(TAUGHT, st.sampled_from(["default", "strict"]), st.data())
def test_what_every_model_promises(
    ticket_request: Ask,
    embed: Embed,
    taught: list[tuple[str, str, int]],
    certificate: Any,
    data: st.DataObject,
) -> None:
    examples = [
        Example(ticket_request(subject), {"queue": queue}, at, seq)
        for seq, (subject, queue, at) in enumerate(sorted(taught, key=lambda one: one[2]))
    ]
    model = fit(examples, certificate=certificate, embed=embed)
    last = {example.request.key: example for example in examples}

    # An exact taught request returns its answer at every minimum accuracy.
    for example in last.values():
        assert model.judge(example.request, data.draw(st.integers(0, 99))) == Verdict(example.answer)

    # A lower asked accuracy never abstains where a higher one answers; answerable_at tells the truth.
    request = ticket_request(
        data.draw(st.sampled_from(["My box is late.", "Money back!", "No login.", "Moon?"]))
    )
    levels = sorted({0, 50, 90, *data.draw(st.lists(st.integers(0, 99), max_size=5))})
    outcomes = {asked: model.judge(request, asked) for asked in levels}
    answered = [isinstance(outcome, Verdict) for outcome in outcomes.values()]
    assert answered == sorted(answered, reverse=True)
    for outcome in outcomes.values():
        if isinstance(outcome, Verdict):
            continue
        if outcome.answerable_at is None:
            assert not any(answered)
        else:
            assert isinstance(model.judge(request, outcome.answerable_at), Verdict)
            assert isinstance(model.judge(request, outcome.answerable_at + 1), Abstention)

    # Order within a second does not matter beyond the last answer winning.
    shuffled = data.draw(st.permutations(list(last.values())))
    other = fit(
        [Example(e.request, e.answer, e.recorded_at) for e in shuffled], certificate=certificate, embed=embed
    )
    assert other.artefact_hash == model.artefact_hash
    assert [other.judge(request, asked) for asked in (0, 50, 90)] == [outcomes[a] for a in (0, 50, 90)]

    # A retracted example leaves no trace in a later version and all of it in the earlier one.
    if last:
        gone = data.draw(st.sampled_from(list(last.values())))
        rest = [example for example in examples if example.request.key != gone.request.key]
        later = fit(rest, certificate=certificate, embed=embed, cache=FitCache(), previous=model)
        never = fit(rest, certificate=certificate, embed=embed)
        assert later.artefact_hash == never.artefact_hash
        assert later.taught(gone.request) is None
        assert later.judge(gone.request, 50) == never.judge(gone.request, 50)
        assert gone not in later.recall(parse_request("What have I taught you about parcels and payments?"))
        assert model.judge(gone.request, 99) == Verdict(gone.answer)


@pytest.mark.parametrize("certificate", ["default", "strict"])
def test_an_abstention_of_a_large_group_tells_the_truth_about_where_it_would_answer(
    taught_tickets: list[Example], ticket_request: Ask, embed: Embed, certificate: Any
) -> None:
    model = fit(taught_tickets[:90], certificate=certificate, embed=embed)
    kinds: set[str] = set()
    for example in taught_tickets[90:]:
        outcomes = [model.judge(example.request, asked) for asked in range(100)]
        answered = [isinstance(outcome, Verdict) for outcome in outcomes]
        assert answered == sorted(answered, reverse=True)
        abstentions = [outcome for outcome in outcomes if isinstance(outcome, Abstention)]
        assert {abstention.answerable_at for abstention in abstentions} == {sum(answered) - 1}
        kinds |= {abstention.kind for abstention in abstentions}
    assert kinds == {"unfamiliar_subject", "insufficient_accuracy", "ambiguous_verdict"}


# The same everywhere

PROGRAM = """
import json, sys
from pathlib import Path
import numpy as np
from judgment_engine.abstention import Abstention
from judgment_engine.model import Example, fit
from judgment_engine.requests import parse_request

data = json.loads(Path(sys.argv[1]).read_text())
vectors = np.load(sys.argv[2])
place = {text: row for row, text in enumerate(json.loads(Path(sys.argv[3]).read_text()))}
embed = lambda texts: vectors[[place[text] for text in texts]]
system = {"role": "system", "content": data["criterion"]}
ask = lambda text: parse_request([system, {"role": "user", "content": text}], data["format"])
examples = [
    Example(ask(text), {"queue": queue}, 1000 + second)
    for queue, texts in data["tickets"].items() for second, text in enumerate(texts[:-5])
]
out = []
for certificate in ("default", "strict"):
    model = fit(examples, certificate=certificate, embed=embed)
    out.append(model.artefact_hash)
    for texts in data["tickets"].values():
        for text in texts[-5:]:
            for asked in (0, 80, 96, 99):
                found = model.judge(ask(text), asked)
                out.append(found.to_json() if isinstance(found, Abstention) else found.verdict)
print(json.dumps(out))
"""


def test_fresh_processes_agree_whatever_the_blas_kernel_and_the_threads(
    tickets: dict[str, Any], embed: Embed, tmp_path: Path
) -> None:
    names = list(tickets["tickets"])
    views = [v for n in names for v in (n, f"This text is about {n}.", f"{QUEUE} {n}")]
    texts = [QUEUE, *views, *(text for texts in tickets["tickets"].values() for text in texts)]
    np.save(tmp_path / "vectors.npy", embed(texts))
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    arguments = [Path(__file__).parent / "tickets.json", tmp_path / "vectors.npy", tmp_path / "texts.json"]
    outputs: set[str] = set()
    # The machine's own kernel, and two older ones that every x86-64 processor of today runs.
    for kernel, threads in (("", "1"), ("", "2"), ("Nehalem", "1"), ("Sandybridge", "2")):
        settings = {"OPENBLAS_CORETYPE": kernel, "OPENBLAS_NUM_THREADS": threads}
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM, *map(str, arguments)],
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.add(run.stdout)
    (output,) = outputs
    assert "ambiguous_verdict" in output
    assert "insufficient_accuracy" in output


def test_a_long_text_is_the_mean_of_its_windows_and_a_short_one_itself() -> None:
    short, long = embed_texts(["My parcel is late.", "My parcel is late. " * 200])
    for vector in (short, long):
        assert abs(np.linalg.norm(vector.astype(float)) / 8192 - 1) < 1e-3
    assert float(short.astype(float) @ long.astype(float)) / 8192**2 > 0.5
    assert np.array_equal(embed_texts(["My parcel is late."])[0], short)
    assert embed_texts([]).shape == (0, 384)
