"""How a message goes out: mail, Slack, PagerDuty. Each raises OSError (or a subclass) where it did not get through."""

from __future__ import annotations

import json
import smtplib
import socket
import ssl
import urllib.request
from email.message import EmailMessage
from typing import Any

from tasks.config.telling import OWNER, Channel, Mail, PagerDuty, Slack, secret
from tasks.telling.message import Message

SECONDS = 10.0  # a look at a running stage waits no longer for a channel
_LONGEST_SLACK = 2900  # a section holds 3000 characters
_LONGEST_SUMMARY = 1024  # of PagerDuty's Events API v2


def send(channel: Channel, message: Message) -> None:
    """Send a message by a channel; raise OSError, its text for people and without the channel's secret."""
    if isinstance(channel, Mail):
        _mail(channel, message)
    elif isinstance(channel, Slack):
        _post(secret(channel.url_file), slack(message), "the webhook")
    else:
        for event in pagerduty(channel, message):
            _post(channel.url, event, channel.url)


def _mail(channel: Mail, message: Message) -> None:
    to = [message.owner if address == OWNER else address for address in channel.to]
    if not (reached := [address for address in to if "@" in address]):
        raise OSError(f"nobody to mail to: {', '.join(address or 'the experiment has no owner' for address in to)}")
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = channel.sender, ", ".join(reached), f"[scaleup] {message.subject}"
    mail["Message-ID"] = f"<{message.key.replace('/', '.')}.{message.severity}@{socket.gethostname()}>"
    mail.set_content(message.text)
    context = ssl.create_default_context()
    kind = smtplib.SMTP_SSL if channel.tls == "implicit" else smtplib.SMTP
    more: dict[str, Any] = {"context": context} if channel.tls == "implicit" else {}
    with kind(channel.host, channel.port, timeout=SECONDS, **more) as server:
        if channel.tls == "starttls":
            server.starttls(context=context)
        if channel.user is not None and channel.password_file is not None:
            server.login(channel.user, secret(channel.password_file))
        server.send_message(mail)


def slack(message: Message) -> dict[str, Any]:
    """Return a message as an incoming webhook takes it: `text` for notifications, blocks for the channel."""
    body = _escaped("\n".join(message.lines))[:_LONGEST_SLACK]
    links = "  ".join(f"<{where}|{_escaped(what)}>" for what, where in message.links if "://" in where)
    sections = [f"*{_escaped(message.subject)}*", f"```{body}```", *([links] if links else [])]
    blocks = [{"type": "section", "text": {"type": "mrkdwn", "text": said}} for said in sections]
    return {"text": message.subject, "blocks": blocks}


def pagerduty(channel: PagerDuty, message: Message) -> list[dict[str, Any]]:
    """Return the events of the Events API v2: one that opens an incident, or those that close what is over."""
    key = secret(channel.key_file)
    if message.severity == "info":
        return [{"routing_key": key, "event_action": "resolve", "dedup_key": old} for old in message.resolves]
    payload = {
        "summary": message.subject[:_LONGEST_SUMMARY], "source": socket.gethostname(), "severity": message.severity,
        "component": message.key.split("/")[0], "custom_details": {"text": message.text},
    }  # fmt: skip
    links = [{"href": where, "text": what} for what, where in message.links if "://" in where]
    return [
        {"routing_key": key, "event_action": "trigger", "dedup_key": message.key, "payload": payload, "links": links}
    ]


def _post(url: str, content: dict[str, Any], name: str) -> None:
    """Post JSON; an answer other than 2xx is an OSError that does not show the address where it is a secret."""
    request = urllib.request.Request(url, json.dumps(content).encode(), {"Content-Type": "application/json"})  # noqa: S310
    if not url.startswith(("http://", "https://")):
        raise OSError(f"{name} is no http address")
    try:
        with urllib.request.urlopen(request, timeout=SECONDS):  # noqa: S310  # checked above
            return
    except OSError as error:
        raise OSError(f"{name} answered: {error}") from None


def _escaped(said: str) -> str:
    return said.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
