"""Where a run's objects are: a folder, or a prefix of a bucket. Both are only read."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from ._errors import RatchetError

_TAIL = ".tail/"
"""Parts of a log in a bucket lie beside it, `LOG.tail/OFFSET`, by their offset in it (`store/log-tail.ts`)."""
_ASKS = 3
"""A listing, or an object that is being written, may be older than what was read before."""


class Store(ABC):
    """Objects by their keys, relative to the run's folder."""

    uri: str

    @abstractmethod
    def read(self, key: str) -> bytes | None:
        """An object, a log with its tail; None if there is none."""

    @abstractmethod
    def keys(self, prefix: str) -> list[str]:
        """Keys that begin with `prefix`, sorted. It is a folder: empty, or with a slash at its end."""

    @abstractmethod
    def place(self, key: str) -> str:
        """A key for people."""


def open_store(place: str) -> Store:
    """Raises RatchetError `Unsupported` for a bucket if boto3 is not installed, `ConfigInvalid` for anything else."""
    if place.startswith("s3:"):
        return BucketStore(place)
    scheme, is_uri, _ = place.partition("://")
    if is_uri and scheme != "file":
        raise RatchetError(
            "ConfigInvalid", f"{place}: expected a run's folder, as in outputs/words, file:///… or s3://BUCKET/…/words."
        )
    folder = Path(unquote(urlsplit(place).path)) if place.startswith("file:///") else Path(place.removeprefix("file:"))
    return FolderStore(folder.expanduser().resolve())


class FolderStore(Store):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.uri = f"{path.as_uri()}/"

    def read(self, key: str) -> bytes | None:
        file = self.path / key
        content = file.read_bytes() if file.is_file() else None
        # A copy of a bucket has the tail as it was there.
        parts = self.keys(f"{key}{_TAIL}")
        return content if not parts else _joined(content or b"", {one: (self.path / one).read_bytes() for one in parts})

    def keys(self, prefix: str) -> list[str]:
        found = []
        for folder, _, names in os.walk(self.path / prefix):
            found += [(Path(folder) / name).relative_to(self.path).as_posix() for name in names]
        return sorted(found)

    def place(self, key: str) -> str:
        return str(self.path / key)


class BucketStore(Store):
    """`s3://BUCKET/PREFIX`, with the options `endpoint`, `region` and `path_style` as in `store.uri` of a run file."""

    def __init__(self, uri: str) -> None:
        parts = urlsplit(uri)
        options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        self._bucket = parts.netloc
        self._prefix = f"{unquote(parts.path).strip('/')}/"
        self.uri = f"s3://{self._bucket}/{self._prefix}"
        self._client = _client(options)

    def read(self, key: str) -> bytes | None:
        for ask in range(1, _ASKS + 1):
            try:
                return self._read(key)
            except _Changed as error:
                if ask == _ASKS:
                    raise RatchetError("CheckpointDamaged", f"{self.place(key)}: {error}.") from error
        return None

    def keys(self, prefix: str) -> list[str]:
        return [key for key in self._all_keys(prefix) if _TAIL not in key]

    def place(self, key: str) -> str:
        return self.uri + key

    def _read(self, key: str) -> bytes | None:
        found = self._get(key)
        if found is None:
            return None
        content, metadata = found
        if "ratchet-log" not in metadata:
            return content
        parts = {}
        for one in self._all_keys(f"{key}{_TAIL}"):
            if _offset(one) >= len(content) and (part := self._get(one)) is not None:
                parts[one] = part[0]
        return _joined(content, parts, is_whole=True)

    def _get(self, key: str) -> tuple[bytes, dict[str, str]] | None:
        try:
            answer = self._asked("GetObject", key, lambda: self._client.get_object(Bucket=self._bucket, Key=self._prefix + key))
        except _Absent:
            return None
        content: bytes = self._asked("GetObject", key, answer["Body"].read)
        metadata: dict[str, str] = answer.get("Metadata", {})
        expected = metadata.get("ratchet-sha256")
        if expected is not None and hashlib.sha256(content).hexdigest() != expected:
            raise _Changed(f"expected sha256 {expected[:12]}…, found other bytes")
        return content, metadata

    def _all_keys(self, prefix: str) -> Iterator[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix + prefix)
        found = self._asked("ListObjectsV2", prefix, lambda: [one for page in pages for one in page.get("Contents", [])])
        yield from sorted(one["Key"].removeprefix(self._prefix) for one in found if not one["Key"].endswith("/"))

    def _asked(self, operation: str, key: str, ask: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return ask()
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code"))
            if code in ("NoSuchKey", "404"):
                raise _Absent from error
            raise self._unavailable(operation, key, error) from error
        except BotoCoreError as error:
            raise self._unavailable(operation, key, error) from error

    def _unavailable(self, operation: str, key: str, error: Exception) -> RatchetError:
        return RatchetError(
            "StoreUnavailable",
            f"{operation} of {self.place(key)} failed: {error}. Expected credentials from the usual AWS chain that may get and "
            "list there, and the region and endpoint of the bucket (AWS_REGION, AWS_ENDPOINT_URL_S3, or ?region= and ?endpoint= "
            "behind the address).",
        )


class _Absent(Exception):
    pass


class _Changed(Exception):
    pass


def _client(options: dict[str, str]) -> Any:
    try:
        import boto3
        from botocore.config import Config
    except ModuleNotFoundError as error:
        raise RatchetError("Unsupported", "boto3, which reads runs in S3, is not installed: pip install boto3.") from error
    endpoint = options.get("endpoint")
    is_elsewhere = endpoint is not None or "AWS_ENDPOINT_URL_S3" in os.environ
    region = options.get("region") or os.environ.get("AWS_REGION") or boto3.session.Session().region_name
    style = "path" if is_elsewhere or options.get("path_style") == "true" else "auto"
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=region or ("us-east-1" if is_elsewhere else None),
        config=Config(s3={"addressing_style": style}, retries={"mode": "standard", "total_max_attempts": 5}),
    )


def _offset(part: str) -> int:
    return int(part.rpartition("/")[2])


def _joined(body: bytes, parts: dict[str, bytes], is_whole: bool = False) -> bytes:
    """Body and those parts of the tail that it does not hold yet. A bucket keeps all of them until it does."""
    joined = body
    for part in sorted((one for one in parts if _offset(one) >= len(body)), key=_offset):
        if is_whole and _offset(part) != len(joined):
            raise _Changed(f"its tail has a hole: expected byte {len(joined)}, found the next part at {_offset(part)}")
        joined += parts[part]
    return joined
