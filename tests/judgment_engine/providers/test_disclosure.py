"""What a service may make us say about the key, its address and the state."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from judgment_engine.providers.disclosure import MAX_CHARACTERS, Disclosure

KEY, URL = "sk-0123456789abcdef", "http://127.0.0.1:8123/v1/systemone"
# A common run this long is always found: probes of 16 characters are 8 apart.
FOUND = 23

texts = st.text("abcdefghij klmnop", min_size=FOUND, max_size=120)
pieces = st.integers(0, 100), st.integers(FOUND, 120)


@given(texts, *pieces, st.text("uvwxyz ", max_size=40), st.text("uvwxyz ", max_size=40))
def test_no_longer_run_of_the_state_is_passed_on(
    state: str, start: int, length: int, before: str, after: str
) -> None:
    quoted = state[start : start + length]
    shown = Disclosure({"text": ["other", state]}, KEY, URL).without_state(before + quoted + after)
    runs = {quoted[at : at + FOUND] for at in range(len(quoted) - FOUND + 1)}
    assert not [run for run in runs if run in shown]


@given(st.text("uvwxyz ", max_size=4000), st.text("uvwxyz ", max_size=40))
def test_the_key_and_the_address_are_replaced_wherever_they_stand(before: str, after: str) -> None:
    shown = Disclosure("", KEY, URL).without_state(f"{before}{KEY}{after}{URL}")
    assert KEY[:8] not in shown
    assert "8123" not in shown
    assert len(shown) <= MAX_CHARACTERS


def test_a_whole_value_is_replaced_though_it_is_short_and_tiny_ones_are_not() -> None:
    state = {"name": "Jane", "pin": "1234", "account": 123456789, "age": 41, "sex": "f", "tags": ["Jane Doe"]}
    shown = Disclosure(state, KEY, URL).without_state("Jane Doe (f, 41), Jane, 1234 and 123456789")
    assert shown == "[state] (f, 41), [state], [state] and [state]"


def test_a_quotation_is_found_in_a_state_of_many_rows() -> None:
    state = {"rows": [f"row number {number} of the table" for number in range(20_000)]}
    shown = Disclosure(state, KEY, URL).without_state("bad value: ow number 19999 of the tab; " + "x" * 900)
    assert shown.startswith("bad value: [state]; xxx")


def test_a_key_of_the_state_is_as_private_as_its_values() -> None:
    state = {"alice@example.com": {"note": ["x"]}}
    shown = Disclosure(state, KEY, URL).without_state("missing at body.state.alice@example.com.note")
    assert "alice" not in shown


def test_what_a_service_says_is_cut_before_it_is_searched() -> None:
    said = "z" * 5_000_000 + KEY
    assert len(Disclosure("a state", KEY, URL).without_quotations(said)) <= MAX_CHARACTERS
