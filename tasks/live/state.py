"""All that the live rules of a stage remember between two looks, and the one way in: records, in the order written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tasks.live.alarms import Alarm, with_new
from tasks.live.drift import Drift
from tasks.live.finite import Finite
from tasks.live.hang import Hang
from tasks.live.spikes import Spikes
from tasks.live.steps import Step, Terms, finite, positive

CHECKPOINT_ROWS = 50  # the newest; older ones are pruned, or are nobody's choice any more


@dataclass
class LiveState:
    """``live.json``: alarms, and what each rule remembers. The same records give the same, in looks of any size."""

    begun: float = 0.0  # when the try began whose hours and restarts count: a person's new try begins anew
    attempt: int = 1
    offset: int = 0  # bytes of metrics.jsonl that have been taken
    furthest: int = 0  # highest step seen; a resumed attempt repeats steps, and none counts twice
    fingerprint: str = ""
    start: tuple[float, float] | None = None  # tokens and held-out loss with which the stage began
    rows: dict[str, int] = field(default_factory=dict)  # step of each checkpoint that the trainer reported, by path
    alarms: list[Alarm] = field(default_factory=list)
    throughput: Drift = field(default_factory=lambda: Drift.of("throughput"))
    loss: Drift = field(default_factory=lambda: Drift.of("loss"))
    spikes: Spikes = field(default_factory=Spikes)
    finite: Finite = field(default_factory=Finite)
    hang: Hang = field(default_factory=Hang)

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> LiveState:
        """Read what :meth:`to_json` wrote; of no file: nothing has been seen."""
        if value is None:
            return cls()
        said = dict(value["state"])
        said |= {name: Drift.from_json(said[name]) for name in ("throughput", "loss")}
        said |= {"spikes": Spikes.from_json(said["spikes"]), "finite": Finite.from_json(said["finite"])}
        said["hang"] = Hang.from_json(said["hang"])
        said["start"] = tuple(said["start"]) if said["start"] else None
        return cls(**said, alarms=[Alarm.from_json(alarm) for alarm in value["alarms"]])

    def to_json(self) -> dict[str, Any]:
        """Return what ``live.json`` holds."""
        state = {key: value for key, value in vars(self).items() if key != "alarms"}
        for name in ("throughput", "loss", "spikes", "finite", "hang"):
            state[name] = state[name].to_json()
        return {"alarms": [alarm.to_json() for alarm in self.alarms], "state": state}

    def begin(self, begun: float, attempt: int) -> None:
        """Go on with another attempt; with a person's new try restarts count from none."""
        if begun != self.begun:
            self.finite.restarted = []
        if (begun, attempt) != (self.begun, self.attempt):
            self._begin_again()
            self.finite.begin_again()
            self.hang.begin_again()
        self.begun, self.attempt = begun, attempt

    def _begin_again(self) -> None:
        for rule in (self.throughput, self.loss, self.spikes):
            rule.begin_again()

    def feed(self, records: Sequence[Mapping[str, Any]], terms: Terms, now: float) -> list[Alarm]:
        """Take records in the order written; return the alarms that they raise."""
        new = [replace(alarm, attempt=self.attempt) for record in records for alarm in self._take(record, terms, now)]
        self.alarms = with_new(self.alarms, new)
        return new

    def silence(self, new: Sequence[Any], running: bool, terms: Terms, now: float) -> list[Alarm]:
        """Take a look's clock, before its records are fed; return the alarm of a hang, if it is one."""
        found = self.hang.look(new, running, self.furthest, terms, now)
        said = [replace(alarm, attempt=self.attempt) for alarm in found]
        self.alarms = with_new(self.alarms, said)
        return said

    def _take(self, record: Mapping[str, Any], terms: Terms, now: float) -> Iterator[Alarm]:
        kind = record.get("kind", "step")
        if kind == "step":
            step = terms.read(record, now)
            if step is not None:
                yield from self._step(step, terms)
        elif kind == "header":
            self.fingerprint = str(record.get("fingerprint") or "")
            self._begin_again()
            self.hang.header()
        elif kind == "held_out" and record.get("at") == "start" and self.start is None:
            tokens, loss = positive(record.get("tokens")), finite(record.get("loss"))
            self.start = (tokens, loss) if tokens is not None and loss is not None else None
        elif kind == "checkpoint" and isinstance(record.get("step"), int):
            self.rows = dict([*self.rows.items(), (str(record.get("path")), int(record["step"]))][-CHECKPOINT_ROWS:])

    def _step(self, step: Step, terms: Terms) -> Iterator[Alarm]:
        self.hang.see(step)
        yield from self.finite.see(step, terms, self.attempt)
        if step.number <= self.furthest:
            return
        self.furthest = step.number
        yield from self.spikes.see(step, terms)
        span = terms.span_of(step.number)
        if span is None or span.phase == "replay":
            return
        canary, batch = span.phase == "canary", span.batch_sequences
        if batch != self.throughput.regime:
            self.throughput, self.loss = Drift.of("throughput", batch), Drift.of("loss", batch)
        for stream, value in ((self.throughput, step.step_seconds), (self.loss, step.loss)):
            yield from stream.see(step, value, canary, lambda: terms.known(self.fingerprint, self.start), terms)
