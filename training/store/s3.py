"""Objects in a bucket: AWS S3, or a server that speaks its protocol. Credentials come by boto3's own chain alone.

Every body is under the request's signature and carries its MD5, so a byte that flips on the way is refused by the
server; what is read is checked against its name by :mod:`training.store.chunks`. Newer checksum headers are not sent:
servers that are not AWS refuse some of them.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from training.store.errors import Absent, StoreError, Unreachable
from training.store.objects import Entry, checked_key
from training.store.s3_answers import ABSENT, REFUSED, Where, code, may_pass, told
from training.store.waiting import Bandwidth, with_retries

Answer = TypeVar("Answer")

_PROBE = "probe_of_conditional_writes"
_DELETED_AT_ONCE = 1000  # the most keys that one request may delete


class S3Objects:
    """Keys below ``prefix`` in a bucket. Safe to use from several threads, as boto3's clients are."""

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint: str | None = None,
        region: str | None = None,
        part_mib: float = 16,
        parallel: int = 8,
        mib_per_second: float | None = None,
        retry_seconds: float = 120,
    ) -> None:
        """Make a client; nothing is asked of the server yet."""
        self.bucket, self.prefix = bucket, f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._where = endpoint or "AWS"
        self._part_bytes, self._parallel = int(part_mib * 2**20), parallel
        self._retry_seconds = retry_seconds
        self._bandwidth = Bandwidth(mib_per_second)
        self._client: Any = boto3.session.Session().client(
            "s3",
            endpoint_url=endpoint,
            region_name=region,
            config=Config(
                connect_timeout=5,
                read_timeout=60,
                max_pool_connections=2 * parallel + 2,
                retries={"total_max_attempts": 1},  # ours wait longer, with jitter, and know a deadline
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                s3={"payload_signing_enabled": True, "addressing_style": "path" if endpoint else "auto"},
            ),
        )

    @property
    def address(self) -> str:
        """``s3://bucket/prefix``, and the server where it is not AWS."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def put(self, key: str, data: bytes) -> None:
        """See :class:`~training.store.objects.Objects`; large ones go in parts, several at once."""
        if len(data) > self._part_bytes:
            self._put_in_parts(key, data)
        else:
            self._send("put_object", key, data)

    def create(self, key: str, data: bytes) -> bool:
        """See :class:`~training.store.objects.Objects`; atomic where the server honours ``If-None-Match``."""
        if not self.conditional_writes:
            if self._exists(key):
                return False
            self.put(key, data)
            return True
        try:
            self._send("put_object", key, data, IfNoneMatch="*")
        except (ClientError, BotoCoreError) as error:
            if code(error) in REFUSED:
                return self._is_ours(key, data)
            raise told(error, self._place, key) from error
        return True

    def get(self, key: str) -> bytes:
        """See :class:`~training.store.objects.Objects`."""

        def ask() -> bytes:
            answer = self._client.get_object(Bucket=self.bucket, Key=self._key(key))
            data: bytes = answer["Body"].read()
            if len(data) != answer["ContentLength"]:
                raise Unreachable(f"{self.address}/{key} was cut short on the way")
            return data

        data = self._ask(ask, key)
        self._bandwidth.take(len(data))
        return data

    def listed(self, prefix: str) -> Mapping[str, Entry]:
        """See :class:`~training.store.objects.Objects`."""

        def ask() -> dict[str, Entry]:
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=f"{self.prefix}{prefix}"
            )
            return {
                found["Key"].removeprefix(self.prefix): Entry(found["Size"], found["LastModified"].timestamp())
                for page in pages
                for found in page.get("Contents", ())
            }

        return self._ask(ask, prefix)

    def delete(self, keys: Iterable[str]) -> None:
        """See :class:`~training.store.objects.Objects`."""
        named = [{"Key": self._key(key)} for key in keys]
        for first in range(0, len(named), _DELETED_AT_ONCE):
            part = {"Objects": named[first : first + _DELETED_AT_ONCE], "Quiet": True}

            def ask(part: dict[str, Any] = part) -> list[dict[str, Any]]:
                answer = self._client.delete_objects(Bucket=self.bucket, Delete=part)
                return list(answer.get("Errors", ()))

            failed = [one for one in self._ask(ask, "delete") if one.get("Code") not in ABSENT]
            if failed:
                one = failed[0]
                raise StoreError(f"{self.address}/{one.get('Key')} cannot be deleted: {one.get('Code')}")

    def clear_unfinished(self, prefix: str, older_than_seconds: float) -> int:
        """See :class:`~training.store.objects.Objects`: multipart uploads that nobody completed, which AWS charges."""

        def ask() -> list[dict[str, Any]]:
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self.bucket, Prefix=f"{self.prefix}{prefix}"
            )
            try:
                return [one for page in pages for one in page.get("Uploads", ())]
            except ClientError as error:
                if code(error) in ("NoSuchUpload", "NotImplemented", "501"):  # some servers' word for none
                    return []
                raise

        now = time.time()
        old = [one for one in self._ask(ask, prefix) if now - one["Initiated"].timestamp() >= older_than_seconds]
        for one in old:
            self._abort(one["Key"], one["UploadId"])
        return len(old)

    @functools.cached_property
    def conditional_writes(self) -> bool:
        """Whether the server refuses a second ``If-None-Match: *`` of the same key: tried, since some ignore it."""
        for _ in range(2):
            try:
                self._send(
                    "put_object", _PROBE, b"a writer asks whether this server knows If-None-Match\n", IfNoneMatch="*"
                )
            except (ClientError, BotoCoreError) as error:
                if code(error) in REFUSED:
                    return True
                if code(error) in ("NotImplemented", "501", "InvalidArgument", "InvalidRequest"):
                    return False
                raise told(error, self._place, _PROBE) from error
        return False

    def replication(self) -> list[dict[str, Any]]:
        """Return the bucket's replication rules as the server tells them; none where it knows no such thing."""

        def ask() -> list[dict[str, Any]]:
            try:
                answer = self._client.get_bucket_replication(Bucket=self.bucket)
            except ClientError as error:
                if code(error) in ("ReplicationConfigurationNotFoundError", "NotImplemented", "501", "404"):
                    return []
                raise
            return list(answer.get("ReplicationConfiguration", {}).get("Rules", ()))

        return self._ask(ask, "replication")

    def versioned(self) -> bool:
        """Whether the bucket keeps versions, which AWS demands of a bucket that replicates."""
        answer: dict[str, Any] = self._ask(lambda: self._client.get_bucket_versioning(Bucket=self.bucket), "versioning")
        return answer.get("Status") == "Enabled"

    def _exists(self, key: str) -> bool:
        try:
            self._ask(lambda: self._client.head_object(Bucket=self.bucket, Key=self._key(key)), key)
        except Absent:
            return False
        return True

    def _is_ours(self, key: str, data: bytes) -> bool:
        """Whether what is there is what we wrote: an answer may be lost after the write, and the retry is refused."""
        return self.get(key) == data

    def _send(self, operation: str, key: str, data: bytes | memoryview, **more: Any) -> dict[str, Any]:
        """Send one body; conditional refusals are passed on as they came, everything else is told in our words."""
        digest = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        call: Callable[..., dict[str, Any]] = getattr(self._client, operation)

        def ask() -> dict[str, Any]:
            self._bandwidth.take(len(data))
            return call(Bucket=self.bucket, Key=self._key(key), Body=bytes(data), ContentMD5=digest, **more)

        if "IfNoneMatch" in more:
            return with_retries(ask, may_pass, self._retry_seconds)
        return self._ask(ask, key)

    def _put_in_parts(self, key: str, data: bytes) -> None:
        """Upload parts in parallel and complete them: the object appears whole with the last request."""
        named = {"Bucket": self.bucket, "Key": self._key(key)}
        upload: str = self._ask(lambda: self._client.create_multipart_upload(**named), key)["UploadId"]
        view = memoryview(data)
        pieces = [view[at : at + self._part_bytes] for at in range(0, len(data), self._part_bytes)]
        try:
            with ThreadPoolExecutor(min(self._parallel, len(pieces))) as pool:

                def send(number: int, piece: memoryview) -> dict[str, Any]:
                    answer = self._send("upload_part", key, piece, UploadId=upload, PartNumber=number)
                    return {"PartNumber": number, "ETag": answer["ETag"]}

                parts = list(pool.map(send, range(1, len(pieces) + 1), pieces))
            self._ask(
                lambda: self._client.complete_multipart_upload(
                    **named, UploadId=upload, MultipartUpload={"Parts": parts}
                ),
                key,
            )
        except StoreError:
            self._abort(named["Key"], upload)
            raise

    def _abort(self, full_key: str, upload: str) -> None:
        try:
            self._client.abort_multipart_upload(Bucket=self.bucket, Key=full_key, UploadId=upload)
        except (ClientError, BotoCoreError):
            return  # it is gone already, or clear_unfinished finds it another day

    def _key(self, key: str) -> str:
        return self.prefix + checked_key(key)

    @property
    def _place(self) -> Where:
        return Where(self.address, self.bucket, self._where, self._retry_seconds)

    def _ask(self, ask: Callable[[], Answer], key: str) -> Answer:
        try:
            return with_retries(ask, may_pass, self._retry_seconds)
        except (ClientError, BotoCoreError) as error:
            where = Where(self.address, self.bucket, self._where, self._retry_seconds)
            raise told(error, where, key) from error
