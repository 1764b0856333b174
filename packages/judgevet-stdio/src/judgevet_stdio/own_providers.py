"""The command's own providers, hosted and embedded, under the controls that the settings ask for."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from judgment_engine.providers.audit import AuditFile
from judgment_engine.providers.base import SystemOnePort
from judgment_engine.providers.controls import ControlledProvider, Controls
from judgment_engine.providers.hosted import HostedProvider, Service
from judgment_engine.providers.retries import Retries
from judgment_engine.providers.spend import SpendCap

from judgevet_stdio.settings import ApiSettings


def open_audit(api: ApiSettings) -> AuditFile | None:
    """The audit file, opened; None when none is set. Raises OSError."""
    if api.audit_path is None:
        return None
    return AuditFile(api.audit_path, max_bytes=api.audit_max_bytes, backups=api.audit_backups)


def controls(api: ApiSettings, audit: AuditFile | None) -> Controls:
    """The controls of one process: its cap starts at nothing spent."""
    capped = api.spend_max_attempts is not None or api.spend_max_input_tokens is not None
    return Controls(
        spend=SpendCap(api.spend_max_attempts, api.spend_max_input_tokens) if capped else None,
        audit=audit,
        redact=api.redactor,
    )


def hosted_provider(api: ApiSettings, key: str, controls: Controls) -> HostedProvider:
    """The hosted provider, to be entered on the event loop that calls it."""
    verify: bool | ssl.SSLContext = api.verify
    if api.ca_bundle is not None:
        verify = ssl.create_default_context(cafile=api.ca_bundle)
    service = Service(
        key=key,
        base_url=api.base_url,
        path=api.path,
        timeout=api.timeout_seconds,
        deadline=api.deadline_seconds,
        max_concurrency=api.max_concurrency,
        auth_header=api.auth_header,
        auth_scheme=api.auth_scheme,
        headers=api.headers,
        request_id_header=api.request_id_header,
        proxy=api.proxy,
        verify=verify,
        confidence=api.confidence,
        retries=Retries(api.max_attempts, api.retry_base_delay, api.retry_max_delay, api.retry_transport),
    )
    return HostedProvider(service, controls)


@contextmanager
def embedded_provider(controls: Controls) -> Iterator[SystemOnePort]:
    """The embedded provider, loaded when the block is entered."""
    from judgment_engine.providers.embedded import EmbeddedProvider  # slow to import, and not always needed

    yield ControlledProvider(EmbeddedProvider(), controls)
