"""What surrounds a provider's calls: the redactor, the spend cap and the audit file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from judgment_engine.answers import Judgment
from judgment_engine.criteria import State
from judgment_engine.providers.audit import AuditFile, Outcome, audit_record, state_fingerprint
from judgment_engine.providers.base import ProviderRequestError, Questions, SystemOnePort
from judgment_engine.providers.spend import SpendCap

logger = logging.getLogger(__name__)

# Returns the state as it may leave; it must not change the state it is given.
Redactor = Callable[[State], State]


class ControlledCall:
    """One logical call while it runs; the provider says here what it learns."""

    def __init__(self, state: State, spend: SpendCap | None) -> None:
        self.state = state
        self.judgment: Judgment | None = None
        self.status_code: int | None = None
        self.request_id: str | None = None
        self._spend = spend

    def claim(self) -> None:
        """Claims the next attempt before it is made. Raises JevBudgetExceededError."""
        self.status_code = None
        self.request_id = None
        if self._spend is not None:
            self._spend.claim()

    def answered(self, judgment: Judgment) -> Judgment:
        """Counts an answered attempt."""
        self.judgment = judgment
        if self._spend is not None:
            self._spend.count(judgment.usage)
        return judgment


@dataclass(frozen=True)
class Controls:
    """The controls of one provider, each optional. The audit file stays open when a provider closes.

    With `fingerprint_key`, records hold a keyed fingerprint of the state as it was sent.
    """

    spend: SpendCap | None = None
    audit: AuditFile | None = None
    redact: Redactor | None = None
    fingerprint_key: bytes | None = None

    @contextmanager
    def call(self, state: State, questions: Questions, model: str) -> Generator[ControlledCall]:
        """Surrounds one logical call and records how it ended."""
        call = ControlledCall(state, self.spend)
        try:
            yield call
        except Exception as error:
            self._record(call, "error", questions, model, error)
            raise
        except BaseException as error:
            self._record(call, "cancelled", questions, model, error)
            raise
        self._record(call, "success", questions, model, None)

    def redacted(self, state: State) -> State:
        """The state as it may leave. Raises ProviderRequestError when the redactor fails."""
        if self.redact is None:
            return state
        try:
            return self.redact(state)
        except Exception as error:
            # The error may quote the state, so only its type is kept.
            raise ProviderRequestError(
                f"state could not be redacted ({type(error).__name__}); nothing was sent"
            ) from None

    def _record(
        self,
        call: ControlledCall,
        outcome: Outcome,
        questions: Questions,
        model: str,
        error: BaseException | None,
    ) -> None:
        if self.audit is None:
            return
        try:
            fingerprint = None
            if self.fingerprint_key is not None:
                fingerprint = state_fingerprint(call.state, self.fingerprint_key)
            self.audit.record(
                audit_record(
                    outcome=outcome,
                    model=model,
                    questions=questions,
                    judgment=call.judgment if error is None else None,
                    error=error,
                    status_code=call.status_code,
                    request_id=call.request_id,
                    state_fingerprint=fingerprint,
                )
            )
        except Exception as failure:
            # A call never fails because of its record.
            logger.error("audit sink failed", extra={"sink": "record", "error": type(failure).__name__})


class ControlledProvider:
    """A synchronous provider under controls: every call is one attempt."""

    def __init__(self, port: SystemOnePort, controls: Controls) -> None:
        self._port = port
        self._controls = controls

    def system_one(self, state: State, questions: Questions, model: str) -> Judgment:
        """The provider's judgment. Raises its errors, JevBudgetExceededError and ProviderRequestError."""
        with self._controls.call(state, questions, model) as call:
            call.state = self._controls.redacted(state)
            call.claim()
            return call.answered(self._port.system_one(call.state, questions, model))
