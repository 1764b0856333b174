"""A proposal is read from a person's words: the answer they state, and the case it is about."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from judgment_engine.errors import EngineError
from judgment_engine.fitting import Vectors
from judgment_engine.model import Example, Model, fit
from judgment_engine.proposals import read_statement
from judgment_engine.requests import parse_request
from judgment_engine.verdicts import answer_leaves, leaf_nodes, read_format

Embed = Callable[[Sequence[str]], Vectors]

QUEUE = "Which queue does the ticket belong in?"
FORMAT = {"properties": {"queue": {"enum": ["billing", "shipping", "account"]}}}
URGENT = "Is the ticket urgent?"
URGENT_FORMAT = {"properties": {"urgent": {"type": "boolean"}}, "required": ["urgent"]}
SEVERITY = "How severe is the defect, from 1 to 5?"
SEVERITY_FORMAT = {"type": "integer", "minimum": 1, "maximum": 5}


def talk(system: str, *turns: str) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": system},
        *({"role": "assistant" if i % 2 else "user", "content": turn} for i, turn in enumerate(turns)),
    ]


def taught(criterion: str, answers: dict[str, Any], format: Any, at: int) -> list[Example]:
    return [
        Example(parse_request(talk(criterion, subject), format), answer, at + second)
        for second, (subject, answer) in enumerate(answers.items())
    ]


@pytest.fixture(scope="module")
def model(taught_tickets: list[Example], embed: Embed) -> Model:
    """Tickets by queue, by urgency, and defects by severity."""
    urgent = {
        "The shop is down.": True,
        "No payment goes through.": True,
        "Nobody can check out.": True,
        "Where is my invoice?": False,
        "I would like another colour.": False,
        "Can you change my name?": False,
    }
    severe = {
        "A scratch on the case.": 1,
        "The paint is a little off.": 1,
        "It starts slowly.": 2,
        "The screen flickers.": 3,
        "It crashes daily.": 4,
        "The battery explodes.": 5,
        "The brakes fail.": 5,
    }
    return fit(
        [
            *taught_tickets,
            *taught(URGENT, urgent, URGENT_FORMAT, 1_790_000_000),
            *taught(SEVERITY, severe, SEVERITY_FORMAT, 1_790_001_000),
        ],
        embed=embed,
    )


# With sight of what was taught


def test_the_double_charge_rule_is_framed_like_the_taught_tickets(model: Model) -> None:
    words = "Double-charge tickets go to billing, even when the order came late."
    proposal = model.propose(parse_request(words)).to_json()
    criterion, subject = proposal["input"]  # type: ignore[misc]  # messages, not a string
    assert criterion == {"role": "system", "content": QUEUE}
    assert subject["role"] == "user"
    assert "double-charge" in subject["content"].lower()
    assert "the order came late" in subject["content"]
    assert "billing" not in subject["content"]
    assert proposal["format"] == FORMAT
    assert proposal["answer"] == {"queue": "billing"}


@pytest.mark.parametrize(
    ("words", "criterion", "answer", "about"),
    [
        ("Tickets about a lost parcel belong in shipping.", QUEUE, {"queue": "shipping"}, "lost parcel"),
        (
            "Wrong, password problems should go to account, not billing.",
            QUEUE,
            {"queue": "account"},
            "password",
        ),
        (
            "Send delivery delays to shipping because the courier handles them.",
            QUEUE,
            {"queue": "shipping"},
            "delays",
        ),
        ("If the card was charged twice, it goes to billing.", QUEUE, {"queue": "billing"}, "charged twice"),
        (
            "Remember that messages about a wrong invoice go to billing.",
            QUEUE,
            {"queue": "billing"},
            "invoice",
        ),
        (
            "My courier never came. That belongs in shipping.",
            QUEUE,
            {"queue": "shipping"},
            "courier never came",
        ),
        ("Refund requests → billing", QUEUE, {"queue": "billing"}, "refund"),
        ("Parcels that came after Friday go to shipping.", QUEUE, {"queue": "shipping"}, "parcels"),
        ("Remember that a payment outage is always urgent.", URGENT, {"urgent": True}, "payment outage"),
        ("Colour wishes are not urgent.", URGENT, {"urgent": False}, "colour wishes"),
        ("Don't treat colour wishes as urgent.", URGENT, {"urgent": False}, "colour wishes"),
        ("An outage that was not announced is urgent.", URGENT, {"urgent": True}, "not announced"),
        (
            "A slow page isn't urgent unless nobody can pay.",
            URGENT,
            {"urgent": False},
            "unless nobody can pay",
        ),
        ("Parcels go to shipping only until Friday.", QUEUE, {"queue": "shipping"}, "only until friday"),
        ("Lost cards dont go to shipping, they go to account.", QUEUE, {"queue": "account"}, "lost cards."),
        ("Use billing for chargebacks.", QUEUE, {"queue": "billing"}, "chargebacks."),
        ("For chargebacks use billing.", QUEUE, {"queue": "billing"}, "chargebacks."),
        ("I'd say chargebacks go to billing.", QUEUE, {"queue": "billing"}, "chargebacks."),
        ("No it goes to billing when the card was charged.", QUEUE, {"queue": "billing"}, "card was charged"),
        (
            "Parcels go to shipping if they were insured, otherwise to account.",
            QUEUE,
            {"queue": "shipping"},
            "parcels, and they were insured.",
        ),
        ("Teach it that double charges go to billing.", QUEUE, {"queue": "billing"}, "double charges"),
        ("An exploding battery is rated 5.", SEVERITY, 5, "exploding battery"),
        ("A flickering screen scores three.", SEVERITY, 3, "flickering screen"),
        ("A leaking battery: 4", SEVERITY, 4, "a leaking battery."),
        ("A leak is 5, not 3.", SEVERITY, 5, "a leak."),
        ("A leak of more than 100 rows is rated 5.", SEVERITY, 5, "a leak of more than 100 rows."),
        ("An outage of 2 hours should be 4.", SEVERITY, 4, "an outage of 2 hours."),
        ("Move leaks from 2 to 4.", SEVERITY, 4, "leaks"),
    ],
)
def test_words_that_state_an_answer_are_framed_by_the_nearest_taught_criterion(
    model: Model, words: str, criterion: str, answer: Any, about: str
) -> None:
    proposal = model.propose(parse_request(words))
    system, user = proposal.input
    assert system == {"role": "system", "content": criterion}
    assert about in user["content"].lower()  # type: ignore[index]  # messages, not a string
    assert proposal.answer == answer


@pytest.mark.parametrize(
    "words",
    [
        "Thanks for your help yesterday!",
        "The weather is nice today.",
        "This belongs in billing.",
        "Severity is a number.",
        "Cats belong in gardens.",
        # A case without an answer gets none, not even the one that it would be judged to have.
        "My parcel is late.",
        "No payment goes through.",
        "No chargebacks in shipping.",
        "Chargebacks dont go to shipping.",
        "A leak is never 5.",
        "Never rate typos above 1.",
        "Outages are at least 4.",
        "Slow pages score between 2 and 3.",
        "Leaks are rated 2 or 3.",
        "I was charged 3 times.",
        "Error: 4 pages crashed.",
    ],
)
def test_words_that_state_no_taught_answer_about_no_case_are_refused(model: Model, words: str) -> None:
    with pytest.raises(EngineError, match="Say which answer the request should get"):
        model.propose(parse_request(words))


def test_a_proposal_can_be_taught_and_is_then_the_answer(model: Model, embed: Embed) -> None:
    proposal = model.propose(parse_request("Double-charge tickets go to billing.")).to_json()
    request = parse_request(proposal["input"], proposal["format"])
    after = fit([*model.examples, Example(request, proposal["answer"], 1_800_000_000)], embed=embed)
    assert after.taught(request) is not None


def test_a_full_request_comes_back_with_the_verdict_it_would_get(model: Model) -> None:
    given = talk(QUEUE, "You took the money from my card two times.")
    for request in (parse_request(given, FORMAT), parse_request(given)):
        proposal = model.propose(request)
        assert proposal.input == given
        assert proposal.format is not None
        assert proposal.format.schema == FORMAT
        assert proposal.answer == {"queue": "billing"}


def test_a_taught_request_comes_back_with_its_taught_answer(model: Model) -> None:
    request = parse_request(talk(QUEUE, "It arrived crushed. I want a refund."), FORMAT)
    assert model.propose(request).answer == {"queue": "billing"}


def test_an_answer_about_no_case_is_refused(model: Model) -> None:
    with pytest.raises(EngineError, match="input states an answer but no case: Say what the case is"):
        model.propose(parse_request(talk(QUEUE, "This belongs in billing."), FORMAT))


def test_an_optional_object_that_nobody_names_is_left_out(embed: Embed) -> None:
    address = {"properties": {"city": {"type": "string"}}, "required": ["city"]}
    format = {"properties": {**FORMAT["properties"], "address": address}, "required": ["queue"]}
    proposal = fit([]).propose(parse_request("Double-charge tickets go to billing.", format))
    assert proposal.answer == {"queue": "billing"}
    needed = {**format, "required": ["queue", "address"]}
    with pytest.raises(EngineError, match=r"input does not say address\.city"):
        fit([]).propose(parse_request("Double-charge tickets go to billing.", needed))


def test_a_full_request_that_states_its_answer_comes_back_with_that_one(model: Model) -> None:
    proposal = model.propose(parse_request(f"{QUEUE} My parcel is late. It belongs in account."))
    assert proposal.input == talk(QUEUE, "My parcel is late.")
    assert proposal.answer == {"queue": "account"}


@pytest.mark.parametrize(
    "correction", ["No, that should be billing.", "Wrong. It belongs in billing, not shipping."]
)
def test_a_correction_is_about_the_request_before_it(model: Model, correction: str) -> None:
    ticket = "My order came late and was charged twice."
    for sight in (model, fit([])):
        request = parse_request(talk(QUEUE, ticket, '{"queue": "shipping"}', correction), FORMAT)
        proposal = sight.propose(request)
        assert proposal.input == talk(QUEUE, ticket)
        assert proposal.answer == {"queue": "billing"}


def test_properties_that_the_words_do_not_name_are_filled_as_they_would_be_judged(embed: Embed) -> None:
    format = {
        "properties": {"queue": {"enum": ["billing", "shipping"]}, "region": {"enum": ["north", "south"]}},
        "required": ["queue", "region"],
    }
    answers = {
        "The Oslo parcel is late.": {"queue": "shipping", "region": "north"},
        "A parcel to Bergen is lost.": {"queue": "shipping", "region": "north"},
        "The invoice from Naples is wrong.": {"queue": "billing", "region": "south"},
        "Refund the order from Rome.": {"queue": "billing", "region": "south"},
    }
    model = fit(taught("Who handles it?", answers, format, 1000), embed=embed)
    proposal = model.propose(parse_request("Broken parcels from Oslo go to billing."))
    assert proposal.answer == {"queue": "billing", "region": "north"}


@pytest.mark.parametrize("format", [{"type": "boolean"}, {"enum": ["no", "yes"]}, None])
@pytest.mark.parametrize(
    ("words", "yes", "case"),
    [
        ("Lost parcels are not refundable.", False, "Lost parcels."),
        ("Lost parcels should be no.", False, "Lost parcels."),
        (
            "Lost parcels are refundable only if they were insured.",
            True,
            "Lost parcels, and they were insured.",
        ),
    ],
)
def test_a_stated_yes_or_no_wins_over_what_was_taught(
    embed: Embed, format: Any, words: str, yes: bool, case: str
) -> None:
    # Taught the other way round, so that a verdict of the model would be the wrong one.
    question = "Is the customer eligible for a refund?"
    answer = yes if format and "type" in format else "yes" if yes else "no"
    other = not yes if format and "type" in format else "no" if yes else "yes"
    cases = {f"My {thing} is lost.": other for thing in ("parcel", "letter", "box", "card", "ring")}
    model = fit(taught(question, {**cases, "I wore it.": answer}, format, 1000), embed=embed)
    for request in (parse_request(words), parse_request(talk(question, words), format)):
        proposal = model.propose(request)
        assert proposal.input == talk(question, case)
        assert proposal.answer == answer


# From the words and the given format alone


def test_without_sight_the_words_alone_are_read() -> None:
    words = "Double-charge tickets go to billing, even when the order came late."
    assert fit([]).propose(parse_request(words)).to_json() == {
        "input": talk("Where does the ticket belong?", "Double-charge, and the order came late."),
        "answer": "billing",
    }


def test_without_sight_a_given_format_says_what_the_answer_is() -> None:
    proposal = fit([]).propose(parse_request("Double-charge tickets go to billing.", FORMAT))
    assert proposal.answer == {"queue": "billing"}
    assert proposal.format is not None
    assert proposal.format.schema == FORMAT


def test_without_sight_a_boolean_is_read_where_its_question_or_a_yes_or_no_is_given() -> None:
    words, boolean = "A parcel that was not sent is refundable.", {"type": "boolean"}
    with pytest.raises(EngineError, match="Say which answer the request should get"):
        fit([]).propose(parse_request(words, boolean))  # refundable or not, it does not say yes or no
    question = "Is the case refundable?"
    proposal = fit([]).propose(parse_request(talk(question, words), boolean))
    assert proposal.input == talk(question, "A parcel that was not sent.")
    assert proposal.answer is True
    assert fit([]).propose(parse_request("Lost parcels should be no.", boolean)).answer is False


@pytest.mark.parametrize("format", [None, FORMAT])
@pytest.mark.parametrize(
    "words", ["Thanks for your help yesterday!", f"{QUEUE} My parcel is late.", "😀", "What is urgent?"]
)
def test_without_sight_words_that_state_nothing_are_refused(words: str, format: Any) -> None:
    with pytest.raises(EngineError, match="Say which answer the request should get"):
        fit([]).propose(parse_request(words, format))


def test_a_question_about_what_was_taught_is_no_proposal(model: Model) -> None:
    with pytest.raises(EngineError, match="input asks what was taught"):
        model.propose(parse_request("What have I taught you about refunds?"))


@pytest.mark.parametrize(
    ("words", "subject"),
    [
        ("No payment goes through. This goes to billing.", "No payment goes through."),
        ("Wrong card numbers go to billing.", "Wrong card numbers."),
        ("Sorry, no. Wrong card numbers go to billing.", "Wrong card numbers."),
        ("That's wrong. Please remember that double charges go to billing.", "Double charges."),
        ("From now on, note: double charges go to billing.", "Double charges."),
    ],
)
def test_only_what_leads_in_is_dropped_from_the_case(words: str, subject: str) -> None:
    found = read_statement(words, leaf_nodes(read_format(FORMAT).shape), {}, QUEUE)
    assert found is not None
    assert found.labels == {("queue",): '"billing"'}
    assert found.subject == subject


# Reading one leaf


@pytest.mark.parametrize(
    ("format", "words", "answer"),
    [
        ({"enum": ["card", "card payments"]}, "Chip errors belong to card payments.", "card payments"),
        ({"enum": ["top_up", "cashBack"]}, "Bonus tickets go to cash back.", "cashBack"),
        ({"enum": ["billing", "shipping"]}, "Late parcels go to shipping instead of billing.", "shipping"),
        ({"enum": ["billing", "shipping"]}, "Never send late parcels to billing.", None),
        ({"enum": ["low", "high"]}, "Outages are highly annoying.", None),
        ({"type": "boolean"}, "Outages count as urgent: yes.", True),
        ({"type": "boolean"}, "Outages aren't urgent.", False),
        ({"type": "boolean"}, "Outages!", None),
        ({"type": "integer", "minimum": 1, "maximum": 5}, "In 2024 outages were rated 4.", 4),
        ({"type": "integer", "minimum": 1, "maximum": 5}, "Outages rate nine.", None),
        ({"type": "number", "multipleOf": 0.5}, "Outages score 2.5 points.", 2.5),
        ({"enum": [1, 2, 3]}, "Outages get a 2.", 2),
        (
            {"type": "array", "items": {"enum": ["late", "rude", "wet"]}},
            "It counts as late and wet.",
            ["late", "wet"],
        ),
        ({"type": "string"}, "Outages get a reply.", None),
    ],
)
def test_a_leaf_is_read_from_words_that_name_its_value(format: Any, words: str, answer: Any) -> None:
    shape = read_format(format).shape
    found = read_statement(words, leaf_nodes(shape), {}, "Is it urgent?")
    if answer is None:
        assert found is None
    else:
        assert found is not None
        assert found.labels == answer_leaves(answer, shape).labels


def test_a_value_that_was_taught_without_an_enum_is_read_too() -> None:
    leaves = leaf_nodes(read_format({"type": "string"}).shape)
    found = read_statement(
        "Late parcels go to the night shift.", leaves, {(): ['"night shift"', '"day"']}, None
    )
    assert found is not None
    assert found.labels == {(): '"night shift"'}
    assert found.subject == "Late parcels."


def test_values_that_are_named_often_do_not_multiply_the_reading() -> None:
    # Without what is remembered of a head, each place of each value reads it again: minutes for these.
    format = {"properties": {"q": {"enum": ["a", *("_" * i + "a" for i in range(1, 60)), *"bcdefghij"]}}}
    proposal = fit([]).propose(parse_request("send a " * 140, format))
    assert proposal.answer == {"q": "a"}


@pytest.mark.parametrize(
    ("values", "words", "answer"),
    [
        (["C", "C++", "C#"], "Template errors go to C++.", "C++"),
        (["tier-1 / urgent", "tier-1"], "Outages go to tier-1 / urgent.", "tier-1 / urgent"),
        (["A", "A-", "B"], "This essay gets an A- because of its end.", "A-"),
        (["A", "A-", "B"], "This essay gets an A - its end is good.", "A"),
        ([".NET", "Java"], "Assembly errors go to .NET.", ".NET"),
        (["past due", "open"], "Late invoices are past_due.", "past due"),
        (["past due", "open"], "Late invoices are PAST - due.", "past due"),
        (["iPhone", "tablet"], "Screen tickets go to iPhone.", "iPhone"),
        (["case", "box"], "Leather tickets go to cases.", "case"),
        (["case", "box"], "Paper tickets go to boxes.", "box"),
        (["Straße", "Platz"], "Kerb tickets go to STRASSE.", "Straße"),
        (["billing", "sales"], "Old tickets go to billing_queue.", None),
        (["billing", "sales"], "Old tickets go to my_billing.", None),
        (["art", "start"], "Old tickets go to started.", None),
    ],
)
def test_a_value_is_named_by_its_words_and_its_punctuation(
    values: list[str], words: str, answer: str | None
) -> None:
    for given in (values, values[::-1]):
        shape = read_format({"enum": given}).shape
        found = read_statement(words, leaf_nodes(shape), {}, None)
        assert (None if found is None else found.labels) == (
            None if answer is None else answer_leaves(answer, shape).labels
        )


# Values with the same words

ALIKE = ["past_due", "past due", "Past Due", "pastDue", "past-due"]


@pytest.mark.parametrize("spelled", ALIKE)
@pytest.mark.parametrize("labels", [ALIKE, ALIKE[::-1]])
def test_of_values_that_read_alike_the_one_spelled_in_the_words_is_meant(
    spelled: str, labels: list[str]
) -> None:
    words = f"Late invoices go to {spelled}."
    free, fixed = {"type": "string"}, {"enum": labels}
    members = {"type": "array", "items": {"enum": labels}}
    for format, answer in ((free, spelled), (fixed, spelled), (members, [spelled])):
        shape = read_format(format).shape
        known = {(): [f'"{label}"' for label in labels]}
        found = read_statement(words, leaf_nodes(shape), known, None)
        assert found is not None
        assert found.labels == answer_leaves(answer, shape).labels
        assert found.strength == 2


def test_the_spelling_chooses_among_values_and_not_among_places() -> None:
    leaves = leaf_nodes(read_format({"enum": ["Billing", "shipping"]}).shape)
    found = read_statement("Billing address changes go to billing.", leaves, {}, None)
    assert found is not None
    assert found.labels == {(): '"Billing"'}
    assert found.subject == "Billing address changes."


def test_values_that_read_alike_are_chosen_among_in_every_process_alike() -> None:
    script = """
from judgment_engine.proposals import read_statement
from judgment_engine.verdicts import Leaf
for name in "abcdefgh":
    taught = frozenset(f'"{name}{mark}due"' for mark in ("_", " ", "__", "-"))
    print(read_statement(f"It goes to {name.upper()} Due.", {(): Leaf("string")}, {(): taught}, None).labels)
"""
    said = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(said) == 1


# How much work a reading is


def calls(text: str, format: Any, taught: Iterable[str] = (), criterion: str | None = None) -> int:
    """How many functions a reading calls, Python's and the interpreter's own."""
    leaves = leaf_nodes(read_format(format).shape)
    count = 0

    def counting(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counting)
    try:
        read_statement(text, leaves, dict.fromkeys(leaves, taught), criterion)
    finally:
        sys.setprofile(before)
    return count


KIND = " ".join(
    f"All the tickets of kind {letter} should go to the desk." for letter in "bcdefghijklmnopqrstu"
)
THE = [f"the {number}" for number in range(1000)]


@pytest.mark.parametrize(
    ("leaf", "taught"),
    [
        ({"enum": THE}, []),
        ({"type": "array", "items": {"enum": THE}}, []),
        ({"type": "string"}, [f'"{value}"' for value in THE]),
    ],
)
def test_a_value_is_not_read_again_for_each_sentence_and_property(leaf: Any, taught: list[str]) -> None:
    # 20 sentences, 10 properties and 1,000 values: 200,000 readings if each were read for each.
    format = {"$defs": {"v": leaf}, "properties": {f"p{i}": {"$ref": "#/$defs/v"} for i in range(10)}}
    assert calls(KIND, format, frozenset(taught)) < 60_000


def test_the_work_for_nested_values_does_not_grow_with_their_number() -> None:
    text = "A " * 400 + "is the text."
    few, many = ([" ".join(["a"] * length) for length in range(1, most)] for most in (20, 200))
    assert calls(text, {"enum": many}) < 4 * calls(text, {"enum": few})


def test_values_that_read_alike_do_not_multiply_the_reading_of_a_list() -> None:
    values = ["_" * length + "a" for length in range(1, 300)]
    assert calls("A " * 400, {"type": "array", "items": {"enum": values}}) < 60_000


def test_numbers_and_booleans_are_not_read_again_for_each_property() -> None:
    numbers = " ".join(" ".join(str(1000 * j + i) for i in range(190)) + "." for j in range(2, 7))
    leaf = {"type": "number", "multipleOf": 7000.5}
    assert calls(numbers, {"properties": {f"p{i}": leaf for i in range(100)}}) < 500_000
    yes = " ".join(["It is " + "no word here " * 70 + "."] * 5)
    format = {"properties": {f"p{i}": {"type": "boolean"} for i in range(200)}}
    assert calls(yes, format, criterion="Is it a thing, and which thing? " * 50) < 60_000


def test_of_many_numbers_the_one_after_a_cue_is_read() -> None:
    leaves = leaf_nodes(read_format({"type": "integer"}).shape)
    found = read_statement(" ".join(map(str, range(20, 60))) + " are rated 4.", leaves, {}, None)
    assert found is not None
    assert found.labels == {(): "4"}


def test_the_case_of_a_statement_is_embedded_once_for_all_groups(embed: Embed) -> None:
    asked: list[Sequence[str]] = []

    def counted(texts: Sequence[str]) -> Vectors:
        asked.append(texts)
        return embed(texts)

    answers = {"My parcel is late.": {"queue": "shipping"}, "The card was charged.": {"queue": "billing"}}
    criteria = [QUEUE, "Which desk reads the letter?", "Who answers the mail?"]
    model = fit(
        [e for i, c in enumerate(criteria) for e in taught(c, answers, FORMAT, 10 * i)], embed=counted
    )
    asked.clear()
    model.propose(parse_request("Double charges go to billing."))
    assert asked[0] == ["Double charges go to billing.", "Double charges."]
