"""``configs/telling.yaml``: who is told when a ladder stops, asks, lags or goes up, and by which channel."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Discriminator, Field, StrictStr, Tag, ValidationError

from tasks.config import files
from tasks.config.errors import Problem, dotted, from_pydantic, invalid, unknown
from tasks.config.values import Count, Positive, Strict, Text

Kind = Literal[
    "stopped", "needs_decision", "queue_late", "checkpoint_old", "paged", "promoted", "regression", "recovered"
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
OWNER = "owner"  # in `to:`, the experiment's owner


class Mail(Strict):
    """Mail over SMTP."""

    kind: Literal["smtp"]
    host: Text = Field(description="the mail server")
    port: Count = 25
    sender: Text = Field(alias="from", description="the sender's address")
    to: tuple[Text, ...] = Field(description="addresses, or the word owner for the experiment's", min_length=1)
    tls: Literal["none", "starttls", "implicit"] = "none"
    user: Text | None = None
    password_file: Text | None = Field(default=None, description="a file of mode 0600 with the user's password")


class Slack(Strict):
    """A Slack channel, by an incoming webhook."""

    kind: Literal["slack"]
    url_file: Text = Field(description="a file of mode 0600 with the webhook's address, which is a secret")


class PagerDuty(Strict):
    """A PagerDuty service, by the Events API v2."""

    kind: Literal["pagerduty"]
    key_file: Text = Field(description="a file of mode 0600 with the integration's routing key")
    url: Annotated[StrictStr, Field(pattern=r"^https?://")] = "https://events.pagerduty.com/v2/enqueue"


Channel = Annotated[
    Annotated[Mail, Tag("=smtp")] | Annotated[Slack, Tag("=slack")] | Annotated[PagerDuty, Tag("=pagerduty")],
    Discriminator(lambda said: f"={said.get('kind') if isinstance(said, dict) else getattr(said, 'kind', '')}"),
]


class Telling(Strict):
    """All of the file; without it nobody is told anything."""

    channels: dict[str, Channel] = Field(default_factory=dict, description="mail: {kind: smtp, ...}")
    tell: dict[Kind, tuple[Text, ...]] = Field(default_factory=dict, description="stopped: [mail]")
    checkpoint_hours: Positive = Field(default=1.0, description="older than this, the newest checkpoint is told of")
    tries: Count = Field(default=5, description="how often a channel that fails is asked")


def load_telling() -> Telling:
    """Return the file's content, or nobody to tell where there is none; raise ConfigInvalid with all that is wrong."""
    path = files.config_root() / "telling.yaml"
    if not path.exists():
        return Telling()
    raw = files.parse(path, "file of channels")
    try:
        loaded = Telling.model_validate(raw)
    except ValidationError as error:
        raise invalid(path, "file of channels", from_pydantic(error.errors(), Telling)) from None
    problems = list(_problems(loaded))
    if problems:
        raise invalid(path, "file of channels", problems)
    return loaded


def secret(file: str) -> str:
    """Return the secret in a file, without the line's end."""
    return Path(file).expanduser().read_text().strip()


def _problems(loaded: Telling) -> Iterator[Problem]:
    for kind, names in loaded.tell.items():
        for index, name in enumerate(names):
            if name not in loaded.channels:
                yield Problem(dotted(("tell", kind, index)), unknown("channel", name, sorted(loaded.channels)))
    for name, channel in loaded.channels.items():
        for key in ("password_file", "url_file", "key_file"):
            file = getattr(channel, key, None)
            if file is not None:
                yield from _file(f"channels.{name}.{key}", Path(file).expanduser())
        if isinstance(channel, Mail) and (channel.user is None) != (channel.password_file is None):
            yield Problem(f"channels.{name}", "user and password_file go together; one of them is missing")


def _file(where: str, file: Path) -> Iterator[Problem]:
    if not file.is_file():
        yield Problem(where, f"{str(file)!r} does not exist; write the secret there and `chmod 600` it")
    elif (mode := stat.S_IMODE(file.stat().st_mode)) & 0o077:
        yield Problem(where, f"{str(file)!r} has mode {mode:04o}, so others may read it; `chmod 600` it")
