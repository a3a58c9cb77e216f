"""What a bucket's errors mean: which may pass by themselves, and what a person is told of the others."""

from __future__ import annotations

from dataclasses import dataclass

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
)

from training.store.errors import Absent, StoreError, Unreachable

REFUSED = frozenset({"PreconditionFailed", "412"})  # by If-None-Match
_NO_CREDENTIALS = (NoCredentialsError, PartialCredentialsError)
_ON_THE_WAY = (ConnectionError, HTTPClientError, IncompleteReadError)  # the connection's fault, not the request's
# Answers with which the same request may succeed a moment later; so may any of status 429 or 5xx.
_PASSING = frozenset(
    {"BadDigest", "IncompleteBody", "InternalError", "OperationAborted", "RequestTimeout", "SlowDown", "Throttling"}
)
ABSENT = frozenset({"NoSuchKey", "404", "NotFound"})


@dataclass(frozen=True)
class Where:
    """What a sentence about a bucket names: the store's address, bucket and server, and how long it was asked."""

    address: str
    bucket: str
    server: str
    retry_seconds: float


def told(error: ClientError | BotoCoreError, where: Where, key: str) -> StoreError:
    """Return the error in a user's words."""
    if isinstance(error, _NO_CREDENTIALS):
        return StoreError(
            f"{where.address}: boto3 finds no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "AWS_PROFILE, or give the machine a role"
        )
    at, waited = f"{where.address} at {where.server}", f"{where.retry_seconds:g} s"
    if isinstance(error, _ON_THE_WAY):
        return Unreachable(f"{at} did not answer for {waited}: {error}")
    if not isinstance(error, ClientError):
        return StoreError(f"{where.address}/{key}: {error}")
    said, status = code(error), _status(error)
    if said == "NoSuchBucket":
        return StoreError(f"bucket {where.bucket!r} does not exist at {where.server}; create it, or correct the name")
    if said in ABSENT:
        return Absent(f"{where.address}/{key} is missing")
    if may_pass(error):
        return Unreachable(f"{at} answers {said} ({status}) for {waited} already")
    if status in (401, 403):
        return StoreError(
            f"{where.address}/{key} is refused ({said}); the credentials that boto3 finds must read, write, list and "
            "delete there"
        )
    return StoreError(f"{where.address}/{key}: {error}")


def code(error: Exception) -> str:
    """Return the server's own word for an error, empty where it gave none."""
    if not isinstance(error, ClientError):
        return ""
    return str(error.response.get("Error", {}).get("Code", ""))


def may_pass(error: Exception) -> bool:
    """Whether the same request may succeed a moment later."""
    if isinstance(error, ClientError):
        status = _status(error)
        return status == 429 or (status >= 500 and status != 501) or code(error) in _PASSING
    return isinstance(error, (*_ON_THE_WAY, Unreachable))


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
