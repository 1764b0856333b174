"""Judgments of the embedded provider."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judgment_engine.answers import ChoiceAnswer, NoulAnswer, ScoreAnswer, choice_confidence, score_confidence
from judgment_engine.criteria import Choice, Noul, Score
from judgment_engine.encoder import load_encoder
from judgment_engine.evidence import judge_with_evidence
from judgment_engine.providers.base import (
    ProviderCapabilityError,
    ProviderRequestError,
    SystemOnePort,
)
from judgment_engine.providers.embedded import EmbeddedProvider, negation, readable, statement, unnegated

TICKET = {
    "subject": "Charged twice",
    "body": "I was charged twice this month. This is terrible, I want my money back now!",
    "customer": {"plan": "business", "tags": ["vip", "eu"]},
    "open": True,
}
QUEUE = Choice(
    "Which queue should this ticket go to?",
    {
        "billing": "charges, invoices and refunds",
        "technical": "errors and crashes of the app",
        "sales": "prices and new contracts",
    },
)
LEVELS = ["The text is very negative.", "The text is neutral.", "The text is very positive."]
FILLER = "The committee met on Tuesday and approved the minutes of the previous meeting. " * 30


@pytest.fixture(scope="module")
def provider() -> EmbeddedProvider:
    return EmbeddedProvider()


def ask(provider: EmbeddedProvider, state: Any, question: Any) -> Any:
    return provider.system_one(state, {"q": question}, "jev-latest").answers["q"]


def noul(provider: EmbeddedProvider, state: Any, question: str) -> float:
    return ask(provider, state, Noul(question)).noul


def test_it_is_a_synchronous_port_that_names_itself_whatever_model_is_asked(
    provider: EmbeddedProvider,
) -> None:
    assert isinstance(provider, SystemOnePort)
    judgment = provider.system_one(state=TICKET, questions={"q": QUEUE}, model="jev-1.13.0")
    assert judgment.model == "embedded-minilm-1"


def test_a_choice_is_the_most_probable_label_with_the_published_confidence(
    provider: EmbeddedProvider,
) -> None:
    answer = ask(provider, TICKET, QUEUE)
    assert isinstance(answer, ChoiceAnswer)
    assert answer.choice == "billing"
    assert list(answer.probabilities) == ["billing", "technical", "sales"]
    assert answer.probabilities["billing"] == max(answer.probabilities.values())
    assert sum(answer.probabilities.values()) == pytest.approx(1)
    assert answer.confidence == choice_confidence(answer.probabilities)


def test_a_description_decides_where_a_name_says_nothing(provider: EmbeddedProvider) -> None:
    described = {"a": "errors and crashes of the app", "b": "charges, invoices and refunds"}
    assert ask(provider, TICKET, Choice("Which queue?", described)).choice == "b"


def test_options_without_descriptions_are_judged_by_their_names(provider: EmbeddedProvider) -> None:
    answer = ask(provider, TICKET, Choice("Which queue?", {"app_crashes": None, "billing_refunds": None}))
    assert answer.choice == "billing_refunds"


def test_one_option_is_certain(provider: EmbeddedProvider) -> None:
    answer = ask(provider, TICKET, Choice(None, {"only": None}))
    assert (answer.choice, answer.confidence, answer.probabilities) == ("only", 1.0, {"only": 1.0})


def test_255_options_pass_and_256_are_refused(provider: EmbeddedProvider) -> None:
    options = {f"option {i}": None for i in range(254)} | {"refund of a double charge": None}
    assert ask(provider, TICKET, Choice("What is it?", options)).choice == "refund of a double charge"
    with pytest.raises(ProviderRequestError, match="question 'q' has 256 options; 1 to 255 pass"):
        ask(provider, TICKET, Choice("What is it?", options | {"one more": None}))


def test_a_score_is_the_expected_level_and_names_its_levels(provider: EmbeddedProvider) -> None:
    answer = ask(provider, "I love it, it works perfectly!", Score("How positive is it?", LEVELS))
    assert isinstance(answer, ScoreAnswer)
    assert answer.legend == dict(enumerate(LEVELS))
    assert answer.score == pytest.approx(sum(i * p for i, p in answer.probabilities.items()))
    assert answer.confidence == score_confidence(answer.probabilities)
    assert answer.score > 1.2
    assert ask(provider, "I hate it, it broke at once.", Score("How positive is it?", LEVELS)).score < 0.8


@pytest.mark.parametrize(
    "levels",
    [
        ["Poor", "Fair", "Good", "Excellent"],
        ["negative", "neutral", "positive"],
        ["Very dissatisfied", "Dissatisfied", "Neutral", "Satisfied", "Very satisfied"],
    ],
)
def test_a_scale_from_bad_to_good_is_read_both_ways(provider: EmbeddedProvider, levels: list[str]) -> None:
    for state, high in (("I love it, it works perfectly!", True), ("It broke after a day. Awful.", False)):
        middle = (len(levels) - 1) / 2
        assert (ask(provider, state, Score("How is it?", levels)).score > middle + 0.2) is high
        assert (ask(provider, state, Score("How is it?", levels[::-1])).score < middle - 0.2) is high


def test_a_scale_of_another_kind_is_not_taken_for_one_from_bad_to_good(provider: EmbeddedProvider) -> None:
    levels = ["It is about cooking.", "It is about cars.", "It is about astronomy."]
    for mood in ("I love it!", "I hate it!"):
        state = f"The telescope shows the moons of Jupiter and a distant galaxy. {mood}"
        assert ask(provider, state, Score("What is it about?", levels)).score > 1.5


def test_20_levels_pass_and_21_are_refused(provider: EmbeddedProvider) -> None:
    levels = [f"{i} of 20 points" for i in range(20)]
    assert 0 <= ask(provider, TICKET, Score("How good?", levels)).score <= 19
    with pytest.raises(ProviderRequestError, match="question 'q' has 21 levels; 1 to 20 pass"):
        ask(provider, TICKET, Score("How good?", [*levels, "top"]))


def test_one_level_is_certain(provider: EmbeddedProvider) -> None:
    answer = ask(provider, TICKET, Score(None, ["Only"]))
    assert (answer.score, answer.confidence, answer.probabilities) == (0.0, 1.0, {0: 1.0})


def test_structured_levels_stay_in_the_legend(provider: EmbeddedProvider) -> None:
    levels = [{"name": "calm", "signs": ["thanks"]}, ["angry", "shouting"]]
    assert ask(provider, TICKET, Score("How angry?", levels)).legend == {0: levels[0], 1: levels[1]}


def test_a_yes_no_question_follows_the_topic(provider: EmbeddedProvider) -> None:
    about_billing = noul(provider, TICKET, "Is this about billing?")
    assert about_billing > 0.6
    assert about_billing > noul(provider, TICKET, "Is this about cooking recipes?") + 0.15


def test_a_yes_no_question_follows_the_mood(provider: EmbeddedProvider) -> None:
    for state, satisfied in (
        ("Excellent, I am delighted with it.", True),
        ("It broke after a day. Awful.", False),
    ):
        assert (noul(provider, state, "Is the customer satisfied?") > 0.5) is satisfied
        assert (noul(provider, state, "Is the customer unhappy?") < 0.5) is satisfied


def test_a_not_in_the_question_turns_the_answer(provider: EmbeddedProvider) -> None:
    for question, turned in (
        ("Is this about billing?", "Is this not about billing?"),
        ("The reply is polite.", "The reply is not polite."),
    ):
        assert noul(provider, TICKET, question) + noul(provider, TICKET, turned) == pytest.approx(1)


def test_a_level_that_says_not_is_the_opposite_of_what_it_names(provider: EmbeddedProvider) -> None:
    scale = Score("Is it spam?", ["Not spam", "Suspicious", "Spam"])
    assert ask(provider, "You have won a million! Click here and enter your bank details.", scale).score > 1.2
    assert ask(provider, "The minutes of yesterday's meeting are attached.", scale).score < 0.8


def test_an_option_that_says_not_is_the_opposite_of_what_it_names(provider: EmbeddedProvider) -> None:
    options = Choice("What is it?", {"spam": None, "not_spam": None})
    assert (
        ask(provider, "You have won a million! Click here, enter your bank details.", options).choice
        == "spam"
    )
    assert ask(provider, "The minutes of yesterday's meeting are attached.", options).choice == "not_spam"


def test_an_option_that_names_something_missing_is_no_opposite(provider: EmbeddedProvider) -> None:
    faults = Choice("Which fault is it?", {"no sound": None, "no picture": None, "remote control": None})
    assert (
        ask(provider, "There is no sound from the speakers of the television.", faults).choice == "no sound"
    )
    orders = {
        "lost": "the parcel has not arrived",
        "broken": "the parcel is damaged",
        "other": "anything else",
    }
    state = "I ordered three weeks ago and still wait for my parcel."
    assert ask(provider, state, Choice("What is wrong?", orders)).choice == "lost"


def test_a_choice_between_yes_and_no_is_the_yes_no_question(provider: EmbeddedProvider) -> None:
    question = "Is this about billing?"
    for criteria in (
        {"yes": "Yes", "no": "No"},
        {"No": None, "Yes": None},
        {"true": None, "false": "False."},
    ):
        answer = ask(provider, TICKET, Choice(question, criteria))
        yes = next(label for label in criteria if label.lower() in ("yes", "true"))
        assert answer.probabilities[yes] == pytest.approx(noul(provider, TICKET, question))
        assert answer.choice == yes
    described = {"yes": "It is about money.", "no": "It is about software."}
    expected = ask(provider, TICKET, Noul(question, {"true": described["yes"], "false": described["no"]}))
    assert ask(provider, TICKET, Choice(question, described)).probabilities["yes"] == expected.noul


def test_yes_and_no_may_be_described_with_or_without_instructions(provider: EmbeddedProvider) -> None:
    criteria = {
        "true": "The message is about money and invoices.",
        "false": "The message is about software errors.",
    }
    alone = ask(provider, TICKET, Noul(None, criteria))
    assert isinstance(alone, NoulAnswer)
    assert alone.noul > 0.55
    assert ask(provider, "The app crashes with error 500.", Noul(None, criteria)).noul < 0.45
    assert ask(provider, TICKET, Noul("Billing?", {"true": criteria["true"], "false": None})).noul > 0.5
    assert ask(provider, TICKET, Noul("Billing?", None)).noul != alone.noul


def test_the_question_id_plays_no_part_and_questions_do_not_touch_each_other(
    provider: EmbeddedProvider,
) -> None:
    both = provider.system_one(TICKET, {"x": QUEUE, "y": Noul("Is it urgent?")}, "m").answers
    assert both["x"] == ask(provider, TICKET, QUEUE)
    assert both["y"] == ask(provider, TICKET, Noul("Is it urgent?"))


def test_raw_questions_are_answered_like_typed_ones(provider: EmbeddedProvider) -> None:
    raw = {"type": "choice", "instructions": QUEUE.instructions, "criteria": dict(QUEUE.criteria)}
    assert ask(provider, TICKET, raw) == ask(provider, TICKET, QUEUE)


def test_what_stands_late_in_a_long_state_still_counts(provider: EmbeddedProvider) -> None:
    late = FILLER + "The customer was charged twice and wants a refund of the invoice. " + FILLER
    assert (
        noul(provider, late, "Is this about a refund?")
        > noul(provider, FILLER * 2, "Is this about a refund?") + 0.03
    )


def test_usage_counts_the_tokens_that_were_read(provider: EmbeddedProvider) -> None:
    count = load_encoder().token_count
    judgment = provider.system_one("The app crashes.", {"q": Noul("Is it a bug?")}, "m")
    assert judgment.usage.input_tokens == count("The app crashes.") + count("Is it a bug?")
    assert judgment.usage.output_tokens == 0
    again = provider.system_one("The app crashes.", {"q": Noul("Is it a bug?")}, "m")
    assert again == judgment


def test_every_process_gives_the_same_answers() -> None:
    code = (
        "import json, sys; from judgment_engine.answers import answer_to_json;"
        "from judgment_engine.providers.embedded import EmbeddedProvider;"
        "state, questions = json.load(sys.stdin);"
        "answers = EmbeddedProvider().system_one(state, questions, 'm').answers;"
        "print(json.dumps({name: answer_to_json(answer) for name, answer in answers.items()}))"
    )
    questions = {
        "n": {"type": "noul", "instructions": "Is the customer angry?"},
        "c": {"type": "choice", "criteria": dict(QUEUE.criteria)},
        "s": {"type": "score", "instructions": "How urgent is it?", "criteria": ["Low", "Medium", "High"]},
    }
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            input=json.dumps([TICKET, questions]),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    }
    assert len(said) == 1


def test_threads_may_share_one_provider() -> None:
    fresh = EmbeddedProvider()
    states = [f"{TICKET['body']} Case {i}." for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda state: ask(fresh, state, QUEUE), states))
    assert together == [ask(EmbeddedProvider(), state, QUEUE) for state in states]


def test_images_are_refused_with_the_capability_error(provider: EmbeddedProvider) -> None:
    image = {"id": "i", "data_base64": "iVBORw0KGgo=", "media_type": "image/png"}
    manifest = json.dumps({"images": [image], "by_question": {"q": ["i"]}})
    with pytest.raises(ProviderCapabilityError):
        judge_with_evidence(provider, TICKET, {"q": QUEUE}, "m", manifest)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_of_a_state_must_be_finite(provider: EmbeddedProvider, number: float) -> None:
    for state in ({"a": [{"b": number}]}, [number]):
        with pytest.raises(ProviderRequestError, match=r"^state must hold finite numbers only$"):
            ask(provider, state, QUEUE)


@pytest.mark.parametrize(
    ("question", "rule"),
    [
        (Noul(None), "question 'q' needs instructions or a description of 'true' or 'false'"),
        (
            Noul("Is it?", {"yes": "x"}),
            "question 'q' has unknown criteria 'yes'; expected 'true' and 'false'",
        ),
        (Noul("Is it?", ["x"]), "question 'q' criteria must be an object that describes 'true' or 'false'"),
        (Noul("Is it?", {"true": 3}), "question 'q' criteria 'true' must be a string, an object or an array"),
        (
            {"type": "noul", "instructions": 3},
            "question 'q' instructions must be a string, an object or an array",
        ),
        ({"type": "choice"}, "question 'q': choice criteria must be a non-empty object"),
        ({"type": "score", "criteria": []}, "question 'q': score criteria must be a non-empty array"),
        ({"type": "box"}, "question 'q': Unknown question type"),
        (Choice("?", {"a": 1}), "question 'q' criteria 'a' must be a string, an object or an array"),  # pyright: ignore[reportArgumentType] - what an untyped caller may send
        (Score("?", [None]), "question 'q' criteria[0] must be a string, an object or an array"),  # pyright: ignore[reportArgumentType] - what an untyped caller may send
        (
            Choice("?", {"a": {"weight": math.nan}}),
            "question 'q' criteria 'a' must hold finite numbers only",
        ),
    ],
)
def test_a_malformed_question_names_the_rule_it_broke(
    provider: EmbeddedProvider, question: Any, rule: str
) -> None:
    with pytest.raises(ProviderRequestError) as caught:
        ask(provider, TICKET, question)
    assert str(caught.value) == rule


def test_no_questions_are_refused(provider: EmbeddedProvider) -> None:
    with pytest.raises(ProviderRequestError, match="questions must be a non-empty object"):
        provider.system_one(TICKET, {}, "m")


@pytest.mark.parametrize(
    "state", ["", "\ud800", {}, [], {"a": None}, [[[[]]]], {"n": 10**6000}, {"": ""}, "é" * 5000]
)
def test_odd_states_get_an_answer(provider: EmbeddedProvider, state: Any) -> None:
    assert 0 <= ask(provider, state, Noul("Is it polite?")).noul <= 1


def test_a_deep_state_gets_an_answer(provider: EmbeddedProvider) -> None:
    state: Any = "charged twice"
    for _ in range(2000):
        state = {"deeper": state}
    assert 0 <= ask(provider, state, Noul("Is it about a charge?")).noul <= 1


def test_json_is_read_as_lines_of_key_and_value() -> None:
    assert readable("state", TICKET).splitlines() == [
        "subject: Charged twice",
        f"body: {TICKET['body']}",
        "customer plan: business",
        "customer tags: vip, eu",
        "open: yes",
    ]
    messages = [{"from_name": "Ann", "text": "Hello"}, {"from_name": "Bo", "text": None}]
    assert readable("state", messages).splitlines() == [
        "from name: Ann",
        "text: Hello",
        "from name: Bo",
        "text: none",
    ]
    assert readable("state", [1, 2.5, "x"]) == "1, 2.5, x"


@pytest.mark.parametrize(
    ("question", "claim"),
    [
        ("Is it polite?", "It is polite."),
        ("Is this about billing?", "This is about billing."),
        ("Is this message about cars?", "This message is about cars."),
        ("Does the customer want a refund?", "The customer wants a refund."),
        ("Do they reply?", "They reply."),
        ("Did they pay?", "They did pay."),
        ("Does it carry a threat?", "It carries a threat."),
        ("Has the customer's card been charged?", "The customer's card has been charged."),
        ("Are there any insults?", "There are some insults."),
        ("Was Jane Doe mentioned?", "Jane Doe was mentioned."),
        ("Is it polite? Look at the tone.", "It is polite. Look at the tone."),
        ("Decide whether the reply is complete", "The reply is complete."),
        ("Which one is it?", "Which one is it?"),
        ("Is speed limited?", "Is speed limited?"),
        ("The reply is complete.", "The reply is complete."),
        ("", ""),
        ("Is", "Is"),
        ("Is it?", "Is it?"),
    ],
)
def test_a_yes_no_question_becomes_a_statement_where_its_subject_is_plain(question: str, claim: str) -> None:
    assert statement(question) == claim


@pytest.mark.parametrize(
    ("claim", "negated"),
    [
        ("The customer is satisfied.", "The customer is not satisfied."),
        ("The customer is not satisfied.", "The customer is satisfied."),
        ("The reviewer liked the movie.", "The reviewer did not liked the movie."),
        ("Spam everywhere.", "It is not true that Spam everywhere."),
        ("Jane Doe sings.", "It is not true that Jane Doe sings."),
    ],
)
def test_a_claim_is_negated_by_a_not(claim: str, negated: str) -> None:
    assert negation(claim) == negated


@pytest.mark.parametrize(
    ("text", "turned"),
    [
        ("Not urgent at all", "urgent"),
        ("No risk", "risk"),
        ("non-technical", "technical"),
        ("It is not late.", "It is late."),
        ("The reply is polite. It is not long.", None),
        ("Nothing", None),
        ("No", None),
        ("No longer active", None),
        ("Not only cars", None),
        ("Notable", None),
        ("The parcel has not arrived.", None),
        ("The app is not working.", None),
        ("Not at all", None),
    ],
)
def test_a_text_is_read_without_the_not_that_turns_it(text: str, turned: str | None) -> None:
    assert unnegated(text) == turned


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
texts = st.text(max_size=40) | st.dictionaries(st.text(max_size=8), json_values, max_size=3)
instructions = st.none() | texts
questions = st.one_of(
    st.builds(Noul, texts, st.none() | st.dictionaries(st.sampled_from(["true", "false"]), instructions)),
    st.builds(
        Choice, instructions, st.dictionaries(st.text(max_size=20), instructions, min_size=1, max_size=6)
    ),
    st.builds(Score, instructions, st.lists(texts, min_size=1, max_size=6)),
)


@given(
    st.text(max_size=200)
    | st.dictionaries(st.text(), json_values, max_size=4)
    | st.lists(json_values, max_size=4),
    st.dictionaries(st.text(min_size=1, max_size=5), questions, min_size=1, max_size=3),
)
@settings(max_examples=25, deadline=None)
def test_every_well_formed_request_gets_valid_answers(state: Any, asked: dict[str, Any]) -> None:
    answers = EmbeddedProvider().system_one(state, asked, "any").answers
    assert list(answers) == list(asked)
    for name, question in asked.items():
        assert answers[name].kind == question.kind


@given(st.text(max_size=60))
def test_any_text_has_a_statement_and_a_negation(text: str) -> None:
    assert isinstance(negation(statement(text)), str)


def test_white_space_after_a_not_costs_no_more_than_its_length() -> None:
    # A pattern that tries every start of a run of blanks takes minutes here, and seconds at a tenth.
    assert unnegated("not a" + " " * 200_000 + "b") == "a" + " " * 200_000 + "b"
