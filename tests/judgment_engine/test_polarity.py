"""Yes and no are read where a sentence says them of what is asked, and nowhere else."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judgment_engine.polarity import Asked, Sentence, stem

REFUND = "Is the customer eligible for a refund under our returns policy?"
URGENT = "Is the ticket urgent?"
ESCALATE = "Should the conversation be escalated to a human agent?"
THREAT = "Does this message contain a threat?"


@pytest.mark.parametrize(
    ("question", "words", "yes", "case"),
    [
        # As a value
        (REFUND, "Lost parcels should be false", False, "Lost parcels"),
        (REFUND, "Lost parcels: no", False, "Lost parcels"),
        (REFUND, "Lost parcels → yes", True, "Lost parcels"),
        (REFUND, "Lost parcels = false", False, "Lost parcels"),
        (REFUND, "Lost parcels should never be yes", False, "Lost parcels"),
        (REFUND, "The answer for 'the parcel was lost' is no.", False, "the parcel was lost"),
        (REFUND, "The right answer to lost parcels is yes", True, "lost parcels"),
        (REFUND, "Say no for worn shoes", False, "worn shoes"),
        (REFUND, "No for worn shoes", False, "worn shoes"),
        (URGENT, "Outages count as urgent: yes", True, "Outages"),
        # In the words of what is asked
        (REFUND, "Lost parcels are refundable.", True, "Lost parcels"),
        (REFUND, "Lost parcels are not refundable.", False, "Lost parcels"),
        (REFUND, "Lost parcels are non-refundable.", False, "Lost parcels"),
        (REFUND, "Customers who lost the receipt are ineligible for a refund", False, None),
        (REFUND, "Customers who lost the receipt aren't ineligible for a refund", True, None),
        (REFUND, "A shirt that was not worn is eligible", True, "A shirt that was not worn"),
        (REFUND, "A shirt without tags is not eligible", False, "A shirt without tags"),
        (REFUND, "Worn shoes are not refundable without a receipt", False, "Worn shoes, without a receipt"),
        (REFUND, "Worn shoes get no refund", False, "Worn shoes"),
        (REFUND, "Custom-made rings are excluded from refunds", False, "Custom-made rings"),
        (REFUND, "It was worn, so it is not refundable", False, "It was worn"),
        (REFUND, "Lost parcels are refundable, but worn shoes are not", True, "Lost parcels"),
        (REFUND, "We never refund worn shoes", False, "worn shoes"),
        (REFUND, "No refund for worn shoes", False, "worn shoes"),
        (REFUND, "There is no refund on final sale items", False, "final sale items"),
        (REFUND, "Refund damaged shoes", True, "damaged shoes"),
        (URGENT, "It's urgent", True, ""),
        (ESCALATE, "Invoices don't need to be escalated", False, "Invoices"),
        (ESCALATE, "Do not escalate password resets", False, "password resets"),
        (THREAT, "Insults are not threats", False, "Insults"),
        (REFUND, "used shoes arent refundable", False, "used shoes"),
        (REFUND, "used shoes shouldnt get a refund", False, "used shoes"),
        (REFUND, "Used shoes are'nt eligible", False, "Used shoes"),
        (REFUND, "For lost parcels the answer isn't no", True, "lost parcels"),
        (REFUND, "An order with no box is refundable", True, "An order with no box"),
        (REFUND, "A lamp that nobody can repair is refundable", True, "A lamp that nobody can repair"),
        (REFUND, "Customers who think it was late are eligible", True, "Customers who think it was late"),
        (REFUND, "Wrong sizes sent by us are refundable", True, "Wrong sizes sent by us"),
        (REFUND, "Insurance claims above 100 are refundable", True, "Insurance claims above 100"),
        (
            REFUND,
            "We do refund opened boxes, but only within a week",
            True,
            "opened boxes, but only within a week",
        ),
        (REFUND, "Late parcels won't be refunded any more", False, "Late parcels"),
        (URGENT, "Typos are not urgent, outages are", False, "Typos"),
        (URGENT, "Threats are urgent and abusive", True, "Threats"),
        (URGENT, "A user who can't log in is not urgent", False, "A user who can't log in"),
        ("is_urgent", "Outages are urgent", True, "Outages"),
        ("Is the customer ineligible for a refund?", "Used shoes are ineligible", True, "Used shoes"),
        (
            "Is the customer ineligible for a refund?",
            "Used shoes are ineligible for a refund without a receipt",
            True,
            "Used shoes, without a receipt",
        ),
        ("Is the claim invalid?", "Late claims aren't invalid", False, "Late claims"),
        ("Should the refund be denied?", "Used shoes should be denied", True, "Used shoes"),
    ],
)
def test_a_sentence_says_yes_or_no_of_a_case(question: str, words: str, yes: bool, case: str | None) -> None:
    said = Sentence(words).says(Asked.of(question))
    assert said is not None
    assert said.yes is yes
    assert case in (None, said.case)


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (REFUND, "My parcel is lost."),
        (REFUND, "I am not eligible for a refund."),  # a customer's own words tell a case
        (REFUND, "My refund is late."),
        (REFUND, "Is a lost parcel refundable?"),
        (REFUND, "Is a lost parcel refundable"),
        (REFUND, "The refund took long."),
        (REFUND, "The refund policy was printed on the receipt."),
        (REFUND, "Refund requests are slow."),
        (REFUND, "The item was not on the list."),
        (REFUND, "No worn shoes are eligible for a refund."),  # which of the two is denied?
        (REFUND, "There are no parcels."),
        (ESCALATE, "The customer was rude and no agent was there."),
        (REFUND, "Without a receipt nobody is eligible."),
        (REFUND, "After 30 days no customer is eligible."),
        (REFUND, "Hardly anyone with used shoes is eligible."),
        (REFUND, "Neither socks nor shoes are refundable."),
        (REFUND, "Not all sale items are refundable."),
        (REFUND, "Sale items are not always refundable."),
        (REFUND, "Opened boxes might be refundable."),
        (REFUND, "Late parcels used to be refundable."),
        (REFUND, "It isn't true that gift cards are refundable."),
        (REFUND, "It's a myth that gift cards are refundable."),
        (REFUND, "Some people say gift cards are refundable."),
        (REFUND, "Customers think that gift cards are refundable."),
        (REFUND, "Refund approved for the late parcel."),
        (REFUND, "What is refundable: broken lamps."),
        ("Is the customer ineligible for a refund?", "Lost parcels get a refund."),
        ("Is the customer ineligible for a refund?", "Lost parcels are eligible for a refund."),
        ("Is the item non-refundable?", "Sale items are refundable."),
        ("Is the form missing a signature?", "Signed forms have a signature."),
        ("Is a refund not allowed?", "Lost parcels are not refundable."),
    ],
)
def test_a_sentence_that_tells_a_case_or_asks_says_neither(question: str, words: str) -> None:
    assert Sentence(words).says(Asked.of(question)) is None


def test_a_word_is_known_by_its_stem() -> None:
    for words in ("refund refunds refunded refundable", "eligible eligibility", "approve approved approval"):
        assert len({stem(word) for word in words.split()}) == 1
    assert stem("art") != stem("arts and crafts")


@given(st.text(alphabet=f"{string.ascii_letters} .,:'’-→?éß", max_size=200), st.text(max_size=60))
def test_any_sentence_is_read(words: str, question: str) -> None:
    said = Sentence(words).says(Asked.of(question))
    assert said is None or said.case in words or ", " in said.case


@pytest.mark.parametrize(
    ("words", "negated"),
    [
        ("Lost parcels are refundable.", "Lost parcels are not refundable."),
        ("Lost parcels can be refunded.", "Lost parcels can't be refunded."),
        ("Treat lost parcels as refundable.", "Treat lost parcels as not refundable."),
        ("Customers get a refund for lost parcels.", "Customers get no refund for lost parcels."),
    ],
)
def test_a_negation_of_the_verb_turns_the_answer(words: str, negated: str) -> None:
    asked = Asked.of(REFUND)
    said, turned = Sentence(words).says(asked), Sentence(negated).says(asked)
    assert said is not None
    assert turned is not None
    assert (said.yes, turned.yes) == (True, False)
    assert said.case == turned.case
