"""Versions of an organization's model: their names, when one is ready, and fitting them in the background."""

import heapq
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog
from judgment_engine.model import Model
from sqlalchemy import ColumnElement, delete, select, update

from a8_http.errors import Refused
from a8_http.events import Replay, iso_time, replay, seal, seq_at
from a8_http.logs import where
from a8_http.metrics import Metrics
from a8_http.store import OrganizationRow, Store, events, organizations, versions

# The engine that this server ships. It changes whenever the same events could give another answer.
MAJOR, MINOR = 1, 1
ENGINE = f"a8-{MAJOR}-{MINOR}"
DEFAULT_MINIMUM_ACCURACY = 90

# Memory that a process spends on fitted versions, in bytes: square matrices of up to 1,000 examples, and
# about 4 KB for each example. Versions that share fits are counted as if they did not.
KEPT_BYTES = 512 * 1024 * 1024
SQUARE_BYTES, SQUARE_MOST, EXAMPLE_BYTES = 24, 1_000, 4_096
# Organizations whose replayed events are kept for the next version.
MOST_REPLAYS = 32
FIT_THREADS = 2
# A fit is claimed for this long and the claim renewed while it runs, so that another process takes over soon
# after a crash.
CLAIM_MILLISECONDS = 2_000
RENEW_SECONDS = 0.5
# While an organization teaches on and nobody waits, its next fit rests this many times the last one's
# duration, so that fitting takes a fifth of one processor at most.
REST = 4
# How soon a version that another process fits, or whose second is not over, is looked at again.
RETRY_SECONDS = 0.1

log = structlog.get_logger("a8_http.versions")

_NAME = re.compile(r"(a8(?:-(\d{1,9})(?:-(\d{1,9}))?)?)(?::(-?\d{1,9}))?(?:@(\d{8}t\d{6}z))?", re.ASCII)
_STAMP = "%Y%m%dt%H%M%Sz"


@dataclass(frozen=True, slots=True)
class ModelName:
    """What a `model` asks for: a minimum accuracy, and a horizon in seconds since 1970 or the newest."""

    asked: int
    horizon: int | None


def parse_model(text: object) -> ModelName:
    """Read a model identifier; raises Refused (400, or 404 for an engine that is not shipped)."""
    found = _NAME.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise _invalid(f"model must be a name such as a8, a8:95 or {ENGINE}:95@20260715t140322z.")
    engine, major, minor, tag, time_text = found.groups()
    asked = DEFAULT_MINIMUM_ACCURACY if tag is None else int(tag)
    if not 0 <= asked <= 99:
        raise _invalid(f"model's tag must be 0 to 99: {text} asks for {asked}, a8:95 asks for 95.")
    horizon = None
    if time_text is not None:
        try:
            horizon = int(datetime.strptime(time_text, _STAMP).replace(tzinfo=UTC).timestamp())
        except ValueError:
            raise _invalid(
                f"model's horizon must be a time in UTC: {time_text} is none, 20260715t140322z is one."
            ) from None
    if (major is not None and int(major) != MAJOR) or (minor is not None and int(minor) != MINOR):
        raise Refused(
            "not_found",
            f"model must name an engine of this server: {engine} is none, {ENGINE} is.",
            field="model",
        )
    return ModelName(asked, horizon)


def model_name(asked: int, horizon: int) -> str:
    """The full identifier of a version at a minimum accuracy."""
    return f"{ENGINE}:{asked}@{stamp(horizon)}"


def stamp(seconds: int) -> str:
    """A horizon as it stands in an identifier."""
    # strftime writes the years before 1000 without their zeros.
    return f"{datetime.fromtimestamp(seconds, UTC):%Y%m%dt%H%M%Sz}".rjust(16, "0")


def _invalid(message: str) -> Refused:
    return Refused("invalid_request", message, field="model")


@dataclass(frozen=True, slots=True)
class Version:
    """A fitted version; `horizon` is when its last event was recorded, or the organization's creation."""

    organization_id: str
    seq: int
    horizon: int
    model: Model


class VersionChanged(Exception):
    """A version fitted again gives another artefact than the one that was recorded for it."""


@dataclass(slots=True)
class _Job:
    """A version to make ready: the one at `horizon`, or with `newest` any that is not older."""

    organization_id: str
    horizon: int
    newest: bool
    # Whether somebody waits for it.
    asked: bool = False
    future: "Future[Version]" = field(default_factory=lambda: Future[Version]())


class Versions:
    """The fitted versions of this process, and the threads that fit the next ones.

    Who fits a version is decided in the database: the first process to claim it fits it and records its hash.
    Another process then builds its own copy from the same events and must get the same hash.
    """

    def __init__(self, store: Store, fit: Callable[[str, Replay], Model], metrics: Metrics) -> None:
        self._store = store
        self._fit = fit
        self._metrics = metrics
        self._process = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._kept: OrderedDict[tuple[str, int], Version] = OrderedDict()
        self._kept_bytes = 0
        self._newest: dict[str, int] = {}
        self._replays: OrderedDict[str, Replay] = OrderedDict()
        self._waiting: dict[tuple[str, int | None], _Job] = {}
        self._due: list[tuple[float, int, _Job]] = []
        self._count = 0
        self._claims: set[tuple[str, int]] = set()
        self._rest_until: dict[str, float] = {}
        self._closed = False
        self._threads = ThreadPoolExecutor(FIT_THREADS, thread_name_prefix="a8-fit")
        self._scheduler = threading.Thread(target=self._schedule, name="a8-versions", daemon=True)
        self._scheduler.start()

    def kept(self, organization_id: str, seq: int) -> Version | None:
        """The version after the event `seq`, if this process holds it."""
        with self._lock:
            version = self._kept.get((organization_id, seq))
            if version is not None:
                self._kept.move_to_end((organization_id, seq))
            return version

    def newest_kept(self, organization_id: str) -> Version | None:
        """The newest version of the organization that this process holds."""
        with self._lock:
            seq = self._newest.get(organization_id)
            if seq is None:
                return None
            self._kept.move_to_end((organization_id, seq))
            return self._kept[organization_id, seq]

    def at(self, organization: OrganizationRow, horizon: int) -> "Version | Future[Version]":
        """The version at a horizon, or the promise of it. Raises Refused (404) outside the horizons."""
        self._check_horizon(organization, horizon)
        if horizon <= organization.sealed_at:
            version = self.kept(organization.id, self._seq_at(organization, horizon))
            if version is not None:
                return version
        return self._want(organization.id, horizon, newest=False, asked=True)

    def seq_at(self, organization: OrganizationRow, horizon: int) -> int:
        """The newest event's seq at a horizon. Raises Refused (404; 503 while its second lasts)."""
        self._check_horizon(organization, horizon)
        seq = seal(self._store, organization.id, horizon)
        if seq is None:
            raise Refused(
                "not_ready", "model names the current second: ask again when it is over.", field="model"
            )
        return seq

    def _seq_at(self, organization: OrganizationRow, horizon: int) -> int:
        if horizon >= organization.head_at:
            return organization.head_seq
        with self._store.reading() as connection:
            return seq_at(connection, organization.id, horizon)

    def _check_horizon(self, organization: OrganizationRow, horizon: int) -> None:
        if organization.created_at <= horizon <= organization.sealed_at:
            return
        with self._store.reading() as connection:
            now = self._store.seconds(connection)
        if not organization.created_at <= horizon <= now:
            raise Refused(
                "not_found",
                f"model must name a time from {iso_time(organization.created_at)} to now: "
                f"{stamp(horizon)} is outside of this organization's horizons, "
                f"{ENGINE}@{stamp(organization.created_at)} is its first.",
                field="model",
            )

    def newest(self, organization: OrganizationRow, *, wait: bool) -> "Version | Future[Version]":
        """The version at the newest event, or its promise; without `wait` the newest one that is ready."""
        version = self.kept(organization.id, organization.head_seq)
        if version is not None:
            return version
        ready = None if wait else self.newest_kept(organization.id)
        promise = self._want(organization.id, organization.head_at, newest=True, asked=ready is None)
        return promise if ready is None else ready

    def taught(self, organization_id: str, recorded_at: int) -> None:
        """Fit the version of a new event when its second is over."""
        self._want(organization_id, recorded_at, newest=True, asked=False)

    def _want(self, organization_id: str, horizon: int, *, newest: bool, asked: bool) -> "Future[Version]":
        """Make a version ready: the one at `horizon`, or with `newest` the newest complete one.

        That may be a later one or, while the second `horizon` lasts, an earlier one.
        """
        key = (organization_id, None if newest else horizon)
        with self._wake:
            job = self._waiting.get(key)
            if job is None:
                job = self._waiting[key] = _Job(organization_id, horizon, newest)
                self._push(job, _until_over(horizon))
                self._metrics.fit_queue.set(len(self._waiting))
            job.horizon = max(job.horizon, horizon)
            job.asked = job.asked or asked
            return job.future

    def close(self) -> None:
        """Stop; fits that run are finished, those that wait are dropped."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        self._scheduler.join()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for job in list(self._waiting.values()):
            job.future.cancel()

    def _push(self, job: _Job, delay: float) -> None:
        self._count += 1
        heapq.heappush(self._due, (time.monotonic() + delay, self._count, job))
        self._wake.notify_all()

    def _schedule(self) -> None:
        renewed = time.monotonic()
        while True:
            with self._wake:
                now = time.monotonic()
                times = [self._due[0][0]] if self._due else []
                times += [renewed + RENEW_SECONDS] if self._claims else []
                if not self._closed and (not times or min(times) > now):
                    self._wake.wait(min(times) - now if times else None)
                if self._closed:
                    return
                now = time.monotonic()
                ready: list[_Job] = []
                while self._due and self._due[0][0] <= now:
                    ready.append(heapq.heappop(self._due)[2])
                claims = list(self._claims)
            for job in ready:
                try:
                    self._threads.submit(self._run, job)
                except RuntimeError as error:  # no thread can be started now
                    log.error("fit not started", organization=job.organization_id, **where(error))
                    with self._wake:
                        self._push(job, RETRY_SECONDS)
            if claims and now - renewed >= RENEW_SECONDS:
                renewed = now
                try:
                    self._renew(claims)
                except Exception as error:  # this thread is the only one that starts fits
                    log.error("claims not renewed", **where(error))

    def _run(self, job: _Job) -> None:
        try:
            version = self._attempt(job)
        except Exception as error:
            log.error("version not fitted", organization=job.organization_id, **where(error))
            self._finish(job, None, error)
            return
        if version is None:
            with self._wake:
                self._push(job, RETRY_SECONDS)
        else:
            self._finish(job, version, None)

    def _finish(self, job: _Job, version: Version | None, error: Exception | None) -> None:
        key = (job.organization_id, None if job.newest else job.horizon)
        with self._wake:
            if self._waiting.get(key) is not job:  # finished before: it was started twice
                return
            del self._waiting[key]
            self._metrics.fit_queue.set(len(self._waiting))
        if version is not None:
            job.future.set_result(version)
            if job.newest and version.horizon < job.horizon:
                self._want(job.organization_id, job.horizon, newest=True, asked=False)
        elif error is not None:
            job.future.set_exception(error)

    def _attempt(self, job: _Job) -> Version | None:
        """The version, or None where its second is not over or another process is fitting it."""
        organization_id, horizon = job.organization_id, job.horizon
        if not job.asked and time.monotonic() < self._rest_until.get(organization_id, 0.0):
            return None
        seq = seal(self._store, organization_id, horizon)
        if seq is None and job.newest:
            # Its second is not over. The newest complete one, if it has anything new, is better than waiting.
            seq = self._newest_complete(organization_id)
        if seq is None:
            return None
        version = self.kept(organization_id, seq)
        if version is not None:
            self._keep(version, newest=job.newest)
            return version
        recorded = self._claim(organization_id, seq)
        if recorded is _CLAIMED_ELSEWHERE:
            return None
        started = time.perf_counter()
        try:
            version, hash_ = self._build(organization_id, seq)
        except BaseException:
            self._release(organization_id, seq)
            raise
        seconds = time.perf_counter() - started
        self._rest_until[organization_id] = time.monotonic() + REST * seconds
        if recorded is None:
            self._record(organization_id, seq, hash_, seconds)
            self._metrics.fit_seconds.observe(seconds)
        elif recorded != hash_:
            raise VersionChanged(f"version {seq} was recorded as {recorded} and is now {hash_}")
        self._keep(version, newest=job.newest)
        return version

    def _newest_complete(self, organization_id: str) -> int | None:
        """The newest event's seq at the end of the last second that is over, if no newer version is kept."""
        organization = self._store.organization(organization_id)
        assert organization is not None
        with self._store.reading() as connection:
            over = max(organization.sealed_at, self._store.seconds(connection) - 1)
            seq = seq_at(connection, organization_id, over)
        newest = self.newest_kept(organization_id)
        # In the second of its creation an organization has no version yet.
        if over < organization.created_at or (newest is not None and newest.seq >= seq):
            return None
        return seal(self._store, organization_id, over)

    def _claim(self, organization_id: str, seq: int) -> str | None:
        """The hash that is recorded for a version; None when the version is now ours to fit."""
        mine: dict[str, Any] = {"claimed_by": self._process}
        here = [
            versions.c.organization_id == organization_id,
            versions.c.seq == seq,
            versions.c.engine == ENGINE,
        ]
        look = select(versions.c.hash, versions.c.claimed_until).where(*here)
        with self._store.reading() as connection:
            row = connection.execute(look).first()
        if row is not None and row.hash is not None:
            return row.hash
        with self._store.writing() as connection:
            now = self._store.milliseconds(connection)
            mine["claimed_until"] = now + CLAIM_MILLISECONDS
            if row is None:
                key = {"organization_id": organization_id, "seq": seq, "engine": ENGINE}
                done = connection.execute(
                    self._store.insert_missing(versions).values(**key, **mine),
                    # Without it the row count of an insert is not kept, and on PostgreSQL reads -1.
                    execution_options={"preserve_rowcount": True},
                )
            else:
                # Only one process finds the claim as lapsed as it was read.
                done = connection.execute(
                    update(versions)
                    .where(*here, versions.c.hash.is_(None), versions.c.claimed_until == row.claimed_until)
                    .where(versions.c.claimed_until < now)
                    .values(**mine)
                )
        if done.rowcount != 1:
            return _CLAIMED_ELSEWHERE
        with self._lock:
            self._claims.add((organization_id, seq))
            self._wake.notify_all()
        return None

    def _renew(self, claims: list[tuple[str, int]]) -> None:
        with self._store.writing() as connection:
            until = self._store.milliseconds(connection) + CLAIM_MILLISECONDS
            for organization_id, seq in claims:
                connection.execute(
                    update(versions).where(*self._mine(organization_id, seq)).values(claimed_until=until)
                )

    def _record(self, organization_id: str, seq: int, hash_: str, seconds: float) -> None:
        with self._store.writing() as connection:
            connection.execute(
                update(versions)
                .where(*self._mine(organization_id, seq))
                .values(hash=hash_, fit_milliseconds=round(seconds * 1000))
            )
        self._unclaim(organization_id, seq)

    def _release(self, organization_id: str, seq: int) -> None:
        """Let another process try."""
        self._unclaim(organization_id, seq)
        with self._store.writing() as connection:
            connection.execute(delete(versions).where(*self._mine(organization_id, seq)))

    def _mine(self, organization_id: str, seq: int) -> list[ColumnElement[bool]]:
        """A version that this process is fitting."""
        return [
            versions.c.organization_id == organization_id,
            versions.c.seq == seq,
            versions.c.engine == ENGINE,
            versions.c.claimed_by == self._process,
            versions.c.hash.is_(None),
        ]

    def _unclaim(self, organization_id: str, seq: int) -> None:
        with self._lock:
            self._claims.discard((organization_id, seq))

    def _build(self, organization_id: str, seq: int) -> tuple[Version, str]:
        with self._lock:
            start = self._replays.get(organization_id)
        with self._store.reading() as connection:
            state = replay(connection, organization_id, seq, start)
            horizon = connection.execute(
                select(events.c.recorded_at).where(
                    events.c.organization_id == organization_id, events.c.seq == seq
                )
                if seq
                else select(organizations.c.created_at).where(organizations.c.id == organization_id)
            ).scalar_one()
        with self._lock:
            if start is None or state.seq > start.seq:
                self._replays[organization_id] = state
                self._replays.move_to_end(organization_id)
                while len(self._replays) > MOST_REPLAYS:
                    self._replays.popitem(last=False)
        model = self._fit(organization_id, state)
        return Version(organization_id, seq, horizon, model), model.artefact_hash

    def _keep(self, version: Version, *, newest: bool) -> None:
        """Hold a version; one that was fitted for a pin stands for the newest only after an older one did."""
        key = (version.organization_id, version.seq)
        with self._lock:
            before = self._newest.get(version.organization_id)
            if version.seq > before if before is not None else newest:
                self._newest[version.organization_id] = version.seq
            if key in self._kept:
                return
            self._kept[key] = version
            self._kept_bytes += _bytes_of(version)
            while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
                (organization_id, seq), dropped = self._kept.popitem(last=False)
                self._kept_bytes -= _bytes_of(dropped)
                if self._newest.get(organization_id) == seq:
                    del self._newest[organization_id]


def _bytes_of(version: Version) -> int:
    count = len(version.model.examples)
    return SQUARE_BYTES * min(count, SQUARE_MOST) ** 2 + EXAMPLE_BYTES * count


# What _claim answers while another process fits the version; no hash looks like it.
_CLAIMED_ELSEWHERE = "claimed elsewhere"


def _until_over(horizon: int) -> float:
    """Seconds until the second `horizon` is over on this machine's clock; the database's decides later."""
    return max(0.0, horizon + 1 - time.time()) if horizon + 1 - time.time() < 2 else 0.0
