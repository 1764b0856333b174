"""A request is read into a criterion, a subject and a format, and keeps one key however it is written."""

import gc
import json
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judgment_engine.errors import EngineError
from judgment_engine.requests import normal_form, parse_answer, parse_request, signature
from judgment_engine.verdicts import canonical_json

QUESTION = "Which queue does the ticket belong in?"
TICKET = "It arrived crushed. I want a refund."
FORMAT = {"properties": {"queue": {"enum": ["billing", "shipping", "account"]}}}


def talk(*turns: str, system: str | None = None) -> list[dict[str, str]]:
    """User and assistant in turn, after a system text."""
    first = [] if system is None else [{"role": "system", "content": system}]
    return first + [
        {"role": "assistant" if i % 2 else "user", "content": turn} for i, turn in enumerate(turns)
    ]


# Criterion and subject


def test_the_last_system_text_is_the_criterion_and_the_latest_user_message_the_subject() -> None:
    request = parse_request(
        [
            {"role": "system", "content": "You sort mail."},
            {"role": "developer", "content": QUESTION},
            {"role": "user", "content": "My parcel is three days late, where is it now?"},
            {"role": "assistant", "content": '{"queue": "shipping"}'},
            {"role": "user", "content": "Another customer was charged twice last month."},
        ]
    )
    assert request.criterion == QUESTION
    assert request.subject == "Another customer was charged twice last month."


@pytest.mark.parametrize(
    ("text", "criterion", "subject"),
    [
        (f"{QUESTION} {TICKET}", QUESTION, TICKET),
        (f"{TICKET} {QUESTION}", QUESTION, TICKET),
        (f"{TICKET}\n\n{QUESTION}", QUESTION, TICKET),
        (f'{QUESTION} "{TICKET}"', QUESTION, f'"{TICKET}"'),
        ("Where is it? I am cross. Is this urgent?", "Is this urgent?", "Where is it? I am cross."),
        ("Is Dr. Smith's note complete? It has no date.", "Is Dr. Smith's note complete?", "It has no date."),
        ("It costs 3.50 euros. Is that dear?", "Is that dear?", "It costs 3.50 euros."),
        ("Is this e.g. a refund? Money back!", "Is this e.g. a refund?", "Money back!"),
        ("紧急吗？商店关门了。", "紧急吗？", "商店关门了。"),
        ("هل هذا عاجل؟ المتجر مغلق.", "هل هذا عاجل؟", "المتجر مغلق."),
        (TICKET, None, TICKET),
        (QUESTION, QUESTION, ""),
    ],
)
def test_the_last_question_of_a_string_is_the_criterion_and_the_rest_the_subject(
    text: str, criterion: str | None, subject: str
) -> None:
    request = parse_request(text)
    assert (request.criterion, request.subject) == (criterion, subject)


def test_without_a_system_text_the_first_message_holds_the_criterion_and_the_latest_the_subject() -> None:
    request = parse_request(
        talk(f"{QUESTION} {TICKET}", "billing", "My parcel is three days late, says the courier.")
    )
    assert request.criterion == QUESTION
    assert request.subject == "My parcel is three days late, says the courier."


@pytest.mark.parametrize(
    "latest",
    [
        "And my card was charged two times for it.",
        "It was charged two times on my credit card.",
        "That happened after the courier left the box outside.",
        "charged twice",
    ],
)
def test_a_latest_message_that_is_short_or_points_back_is_read_after_the_one_before(latest: str) -> None:
    request = parse_request(talk(TICKET, "billing", latest, system=QUESTION))
    assert request.subject == f"{TICKET}\n{latest}"


def test_blank_messages_between_those_read_together_leave_no_line() -> None:
    turns = [talk(turn)[0] for turn in ("", "a crate", " ", "it leaks", "it stinks")]
    blank = parse_request([*talk(system=QUESTION), *turns])
    assert blank.subject == "a crate\nit leaks\nit stinks"


def test_the_subject_of_a_first_message_is_its_rest_when_a_later_one_is_read_after_it() -> None:
    request = parse_request(talk(f"{QUESTION} {TICKET}", "billing", "and charged twice"))
    assert request.subject == f"{TICKET}\nand charged twice"


@pytest.mark.parametrize(
    ("subject", "missing"),
    [
        ("this one", True),
        ("What about the same ticket?", True),
        ("see above", True),
        ("…", True),
        ("😀😀", True),
        ("refund", False),
        ("email", False),
        ("the ticket", True),
        ("It broke.", False),
        ("返金", False),
    ],
)
def test_a_subject_is_missing_when_it_has_no_word_or_only_points_at_something(
    subject: str, missing: bool
) -> None:
    assert parse_request(talk(subject, system=QUESTION)).subject_missing is missing


def test_a_reference_to_an_earlier_turn_is_no_missing_subject() -> None:
    assert not parse_request(talk(TICKET, "billing", "this one", system=QUESTION)).subject_missing


# The key


def test_a_string_is_the_same_request_as_one_user_message() -> None:
    assert parse_request(TICKET).key == parse_request(talk(TICKET)).key
    assert parse_request(TICKET).input == TICKET
    assert parse_request(talk(TICKET)).input == talk(TICKET)


def test_developer_counts_as_system_and_extra_members_do_not_count() -> None:
    plain = parse_request(talk(TICKET, system=QUESTION))
    other = parse_request(
        [
            {"role": "developer", "content": QUESTION, "id": "m1"},
            {"content": TICKET, "role": "user", "type": "message"},
        ]
    )
    assert other.key == plain.key
    assert other.input == [{"role": "developer", "content": QUESTION}, {"role": "user", "content": TICKET}]


def test_key_order_and_white_space_in_a_format_do_not_matter() -> None:
    one = parse_request(TICKET, {"type": "object", "properties": {"n": {"type": "integer", "maximum": 5.0}}})
    two = parse_request(
        TICKET, '{ "properties": {"n": {"maximum": 5, "type": "integer"}},\n "type": "object" }'
    )
    assert one.key == two.key


def test_every_character_of_a_content_and_the_order_of_enum_values_matter() -> None:
    keys = {
        parse_request(TICKET).key,
        parse_request(TICKET + " ").key,
        parse_request(TICKET.lower()).key,
        parse_request(TICKET, {"enum": ["a", "b"]}).key,
        parse_request(TICKET, {"enum": ["b", "a"]}).key,
        parse_request(talk(TICKET, "a", "b")).key,
    }
    assert len(keys) == 6


def test_the_input_key_leaves_the_format_out() -> None:
    assert parse_request(TICKET).input_key == parse_request(TICKET, FORMAT).input_key


# Precedents and recall


@pytest.mark.parametrize(
    ("asked", "plain"),
    [
        (f"{QUESTION} Show the precedents.", QUESTION),
        (f"{QUESTION} Please cite precedents too.", QUESTION),
        ("Which queue does the ticket belong in, with precedents?", QUESTION),
        ("Which queue does the ticket belong in with its precedents?", QUESTION),
        ("Which queue does the ticket belong in, and show me the nearest precedents?", QUESTION),
        (f"Cite the taught precedents. {QUESTION}", QUESTION),
        (f"I'd like to see your precedents. {QUESTION}", QUESTION),
        (f"{QUESTION}\nCould you include precedents, please?", QUESTION),
    ],
)
def test_the_words_that_ask_for_precedents_take_no_part_in_the_criterion_or_the_key(
    asked: str, plain: str
) -> None:
    request = parse_request(talk(TICKET, system=asked), FORMAT)
    assert request.wants_precedents
    assert request.criterion == plain
    assert request.key == parse_request(talk(TICKET, system=plain), FORMAT).key
    assert request.input == talk(TICKET, system=asked)
    in_a_string = parse_request(f"{asked} {TICKET}")
    assert in_a_string.wants_precedents
    assert in_a_string.criterion == plain
    assert in_a_string.subject == TICKET


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_system_text_of_its_own_may_ask_for_precedents(place: int, role: str) -> None:
    plain = talk(TICKET, system=QUESTION)
    asked = [*plain[:place], {"role": role, "content": "Show the precedents."}, *plain[place:]]
    request = parse_request(asked, FORMAT)
    assert request.wants_precedents
    assert request.key == parse_request(plain, FORMAT).key
    assert request.input == asked
    # Alone it is all the criterion that there is.
    alone = parse_request(talk(TICKET, system="Show the precedents."), FORMAT)
    assert (alone.criterion, alone.wants_precedents) == ("Show the precedents.", False)


@pytest.mark.parametrize(
    "text",
    [
        "Does the brief cite precedents?",
        "Does the ruling name a court and cite precedents?",
        "Is the claim without precedents?",
        "Which lawsuit relies on precedents?",
        "Do not show precedents. Is it urgent?",
        "Has the judge listed the precedents?",
    ],
)
def test_a_question_about_precedents_does_not_ask_for_them(text: str) -> None:
    request = parse_request(talk(TICKET, system=text))
    assert not request.wants_precedents
    assert request.criterion == text


def test_a_subject_that_speaks_of_precedents_is_left_as_it_is() -> None:
    request = parse_request(talk("Show the precedents. The court wants them.", system=QUESTION))
    assert not request.wants_precedents
    assert request.subject == "Show the precedents. The court wants them."


def test_asking_for_precedents_in_a_turn_of_its_own_means_the_request_before() -> None:
    request = parse_request(talk(f"{QUESTION} {TICKET}", '{"queue": "billing"}', "Show the precedents."))
    assert request.wants_precedents
    assert not request.is_recall
    assert request.subject == TICKET


RECALLS = [
    ("What have I taught you about refunds?", "refunds"),
    ("What have we taught you so far about late fees?", "late fees"),
    ("Do you remember what I taught you on gift cards?", "gift cards"),
    ("Which examples do you have on chargebacks?", "chargebacks"),
    ("What examples do we have about broken screens?", "broken screens"),
    ("List our examples for address changes", "address changes"),
    ("What's been taught about returns?", "returns"),
    ("Show me precedents on late orders.", "late orders"),
    ("Have we ever taught you anything about customs?", "customs"),
    ("OK, so what did I teach you about vouchers?", "vouchers"),
    ("Tell me what you've learned about lost parcels", "lost parcels"),
    ("How many examples did I teach you about the price of postage?", "postage"),
    ("What have I taught you?", None),
]


@pytest.mark.parametrize(("text", "topic"), RECALLS)
def test_a_question_about_what_was_taught_is_recall(text: str, topic: str | None) -> None:
    request = parse_request(text)
    assert request.is_recall
    assert request.topic == topic


@pytest.mark.parametrize(
    "text",
    [
        "What should I have told you about the refund?",
        "I was taught to reset my card, what now?",
        "Which queue does the ticket belong in?",
        "What do I need to know about customs?",
        "Do you know when my card arrives?",
        "Which examples of abuse does this post contain?",
        "Does the essay show what the student has learned?",
        "How many parcels have I sent?",
        "Find my order",
        "Show me the way to the station",
        "List the fees for transfers",
        "What have you done with my money?",
        "Give me my money back",
        "My teacher taught me this. Is it correct?",
        "Tell me what you know about the outage, says the customer: it is down",
    ],
)
def test_a_question_that_only_sounds_alike_is_no_recall(text: str) -> None:
    assert not parse_request(text).is_recall


def test_with_a_format_or_a_system_text_nothing_is_recall() -> None:
    text = "What have I taught you about refunds?"
    assert not parse_request(text, {"type": "boolean"}).is_recall
    assert not parse_request(talk(text, system=QUESTION)).is_recall


# What hosts send


def test_messages_and_formats_sent_as_json_text_are_decoded() -> None:
    plain = parse_request(talk(TICKET, system=QUESTION), FORMAT)
    sent = parse_request(json.dumps(talk(TICKET, system=QUESTION)), json.dumps(FORMAT))
    assert sent.key == plain.key
    assert sent.input == plain.input


@pytest.mark.parametrize("text", ['["a", "b"]', '[{"role": "user"}]', "[not json", "[]", '{"role": "user"}'])
def test_other_text_that_looks_like_json_stays_text(text: str) -> None:
    assert parse_request(text).input == text


def test_an_answer_sent_as_json_text_is_decoded_only_where_the_format_wants_no_string() -> None:
    assert parse_answer(parse_request(TICKET, FORMAT), '{"queue": "billing"}') == {"queue": "billing"}
    assert parse_answer(parse_request(TICKET, {"type": "boolean"}), "true") is True
    assert parse_answer(parse_request(TICKET, {"type": "string"}), "true") == "true"
    assert parse_answer(parse_request(TICKET, {"enum": ["1", 1]}), "1") == "1"
    assert parse_answer(parse_request(TICKET), "true") == "true"


# Bad input


@pytest.mark.parametrize(
    ("input", "names"),
    [
        ("", "input is empty"),
        (" \n", "input is empty"),
        ([], "input is empty"),
        (talk(" "), "input is empty"),
        (None, "input must be a string or a list"),
        (7, "input must be a string or a list"),
        (["hello"], "input[0] must be a message"),
        ([{"role": "robot", "content": "x"}], "input[0].role is unknown: system, developer, user"),
        ([{"role": ["user"], "content": "x"}], "input[0].role is unknown"),
        ([{"role": "user", "content": ["x"]}], "input[0].content must be a string"),
        ([{"role": "user", "content": None}], "input[0].content must be a string"),
        ([{"role": "system", "content": "x"}], "input needs at least one user message"),
        ([{"role": "assistant", "content": "x"}], "input needs at least one user message"),
        ("a \ud800 b", "input must be Unicode text"),
        ([{"role": "user", "content": "\udfff"}], "input[0].content must be Unicode text"),
        ([{"role": "user", "content": "x"}] * 1_001, "input has 1001 messages: at most 1000 pass"),
    ],
)
def test_bad_input_is_refused_by_name_rule_and_passing_value(input: Any, names: str) -> None:
    with pytest.raises(EngineError) as refused:
        parse_request(input)
    assert names in str(refused.value)
    assert refused.value.passes
    assert refused.value.field.startswith("input")


@pytest.mark.parametrize(
    ("input", "answer", "names"),
    [
        ("What have I taught you about refunds?", "x", "input asks what was taught"),
        (talk("", system=QUESTION), "x", "input has an empty subject"),
        (QUESTION, "x", "input has an empty subject"),
        (TICKET, None, "answer must not be null"),
    ],
)
def test_an_answer_to_nothing_or_of_nothing_is_refused(input: Any, answer: Any, names: str) -> None:
    with pytest.raises(EngineError, match=names):
        parse_answer(parse_request(input), answer)


ODD_NUMBERS = st.sampled_from([2**53, 10**29, 10**400, -(10**400), 1e308, 1e-300, 5e-324])
ANY_TEXT = st.text() | st.text(st.characters(codec=None, categories=["Cs", "L"]), max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ODD_NUMBERS | ANY_TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["role", "content", "type", "x"]), inner),
    max_leaves=8,
)
FORMATS = JSON | st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["integer", "number", "string"]),
        "minimum": JSON,
        "maximum": JSON,
        "multipleOf": JSON,
        "enum": st.lists(JSON, max_size=3),
        "const": JSON,
    },
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant"]), "content": st.text()}
)


@given(JSON | st.lists(MESSAGE | JSON), FORMATS)
def test_any_json_is_read_or_refused_with_an_engine_error(input: Any, format: Any) -> None:
    try:
        request = parse_request(input, format)
    except EngineError:
        return
    assert parse_request(request.input, request.format and request.format.schema).key == request.key


@given(FORMATS, JSON)
def test_any_answer_to_any_format_is_taken_or_refused_with_an_engine_error(format: Any, answer: Any) -> None:
    try:
        taken = parse_answer(parse_request(TICKET, format), answer)
    except EngineError:
        return
    assert canonical_json(taken).encode()


@pytest.mark.parametrize(
    "text",
    [
        "." * 200_000 + "a",
        " " * 100_000 + "precedents" + " " * 100_000 + "x",
        "show the precedents " * 10_000,
        "what have i " * 17_000,
        "about of on for " * 13_000,
        "? " * 100_000,
        "no please that's wrong, " * 8_000,
        "[" * 200_000,
        "\n" * 200_000 + "is it?",
        "go to " * 33_000,
    ],
)
def test_200_000_odd_characters_are_read_without_a_search_that_explodes(text: str) -> None:
    request = parse_request(text)
    assert len(request.key) == 64
    signature(text)


# Comparing criteria


@pytest.mark.parametrize("read", [normal_form, signature])
@pytest.mark.parametrize(("length", "most"), [(3_000, 32), (70_000, 0)])
def test_few_long_criteria_are_remembered_and_none_of_the_longest(read: Any, length: int, most: int) -> None:
    class Text(str):
        """A text that can be watched."""

    texts = [Text(f"criterion {i}" + " x" * (length // 2)) for i in range(80)]
    watched = [weakref.ref(text) for text in texts]
    assert [read(text) for text in texts] == [read(str(text)) for text in texts]
    del texts
    gc.collect()
    assert sum(ref() is not None for ref in watched) <= most


def test_the_normal_form_ignores_case_spacing_width_and_end_marks() -> None:
    assert normal_form("  Is it\n URGENT ?") == normal_form("is it urgent") == normal_form("Ｉs it urgent：")
    assert normal_form("Is it urgent") != normal_form("Is it not urgent")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Is the reply polite?", "Is the reply not polite?"),
        ("Is the reply polite?", "Does the reply lack politeness?"),
        ("Is the reply complete?", "Is the reply incomplete?"),
        ("Does it name a price?", "Does it avoid naming a price?"),
        ("Does the reply use the notes?", "Does the reply ignore the notes?"),
        ("Does the text give the price?", "Does the text leave out the price?"),
        ("Is the wording appropriate?", "Is the wording inappropriate?"),
        ("Is anything said about price?", "Is nothing said about price?"),
        ("Is the wait longer than 5 days?", "Is the wait shorter than 5 days?"),
        ("Is the wait at least 5 days?", "Is the wait at most 5 days?"),
        ("Is the amount over 1,000?", "Is the amount over 100?"),
        ("Doesn't it mention a date?", "Does it mention a date?"),
    ],
)
def test_negations_directions_and_numbers_tell_criteria_apart(one: str, other: str) -> None:
    assert signature(one) != signature(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Which queue does the ticket belong in?", "What queue should this ticket go to?"),
        ("Is the amount over 1,000 euros?", "Does the amount exceed 1000 euros?"),
        ("Is it not impossible?", "Is it possible?"),
        ("Is the answer under 50 words?", "Is the answer shorter than 50 words?"),
    ],
)
def test_paraphrases_have_the_same_signature(one: str, other: str) -> None:
    assert signature(one) == signature(other)


@pytest.mark.parametrize(
    ("told", "question"),
    [
        ("I filed a motion with precedents.", "Is the file complete?"),
        ("The attorney must argue well and cite precedents.", "Does the memo qualify?"),
        ("They always decide with precedents!", "Which court is it?"),
    ],
)
def test_a_statement_about_precedents_is_part_of_the_case(told: str, question: str) -> None:
    request = parse_request(f"{told} {question}")
    assert (request.criterion, request.subject, request.wants_precedents) == (question, told, False)


def test_a_system_text_orders_precedents_in_a_statement_too() -> None:
    messages = [
        {"role": "system", "content": "You sort tickets into queues and cite precedents."},
        {"role": "user", "content": "It arrived crushed."},
    ]
    request = parse_request(messages)
    assert request.wants_precedents
    assert request.criterion == "You sort tickets into queues."


@pytest.mark.parametrize(
    ("text", "criterion"),
    [
        ("What have you been told about my refund? I have waited three weeks.", None),
        ("Did I teach my son well? He failed the exam.", "Did I teach my son well?"),
        ("Tell me what I told you before. Is the order late?", "Is the order late?"),
        ("Show my examples to the reviewer. Is this done?", "Is this done?"),
    ],
)
def test_a_case_beside_a_question_about_what_was_told_is_judged(text: str, criterion: str | None) -> None:
    request = parse_request(text)
    assert not request.is_recall
    assert request.criterion == (criterion or "What have you been told about my refund?")


@pytest.mark.parametrize(
    "more", ["", " Thanks!", " I forgot.", " Please list them all.", " Show the newest."]
)
def test_a_recall_may_be_polite(more: str) -> None:
    assert parse_request(f"What have I taught you about refunds?{more}").is_recall


@pytest.mark.parametrize("marks", ["?", "?!", "!?", "??", "?...", "?…", "؟", "？！"])
def test_a_question_may_end_in_more_than_its_mark(marks: str) -> None:
    request = parse_request(f"Is it urgent{marks} The shop is down.")
    assert (request.criterion, request.subject) == (f"Is it urgent{marks}", "The shop is down.")


@pytest.mark.parametrize(
    ("latest", "alone"),
    [
        ("发票地址写错了请更正账单", True),
        ("好的", False),
        ("分かりました", False),
        ("请求书の宛先を直してください", True),
    ],
)
def test_a_clause_without_spaces_is_no_short_message(latest: str, alone: bool) -> None:
    earlier = "我的包裹在运输途中损坏了我想要退款"
    turns = [{"role": "user", "content": earlier}, {"role": "user", "content": latest}]
    request = parse_request([{"role": "system", "content": "哪个部门？"}, *turns])
    assert request.subject == (latest if alone else f"{earlier}\n{latest}")
