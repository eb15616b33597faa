"""Payloads in Temporal's history that RATCHET_PAYLOAD_KEY encrypts, as `workers/temporal/payload-codec.ts` writes them."""

import base64
import binascii
import dataclasses
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from temporalio.api.common.v1 import Payload
from temporalio.converter import DataConverter, DefaultFailureConverterWithEncodedAttributes, PayloadCodec

from ._errors import RatchetError

_ENCODING = b"binary/encrypted"
_KEY_BYTES = 32
_NONCE_BYTES = 12


def data_converter() -> DataConverter:
    """The converter with the keys of RATCHET_PAYLOAD_KEY or RATCHET_PAYLOAD_KEY_FILE. Without one, it refuses encrypted payloads."""
    keys = read_keys(os.environ)
    plain = dataclasses.replace(DataConverter.default, payload_codec=Codec(keys))
    if not keys:
        return plain
    _require_cryptography()
    return dataclasses.replace(plain, failure_converter_class=DefaultFailureConverterWithEncodedAttributes)


def read_keys(environ: Mapping[str, str]) -> dict[str, bytes]:
    """Keys of 32 bytes, by the name under which payloads refer to them. The first one encrypts."""
    given, file = environ.get("RATCHET_PAYLOAD_KEY"), environ.get("RATCHET_PAYLOAD_KEY_FILE")
    if given and file:
        raise RatchetError(
            "ConfigInvalid", "RATCHET_PAYLOAD_KEY and RATCHET_PAYLOAD_KEY_FILE are both set; unset one of them."
        )
    source = f"RATCHET_PAYLOAD_KEY_FILE ({file})" if file else "RATCHET_PAYLOAD_KEY"
    try:
        text = Path(file).read_text(encoding="utf-8") if file else (given or "")
    except OSError as error:
        raise RatchetError("ConfigInvalid", f"{source}: expected a file, but {error.strerror}.") from error
    words = [word for word in re.split(r"[\s,]+", text) if word]
    if not words and (file or given):
        raise _no_key(source, "nothing")
    keys = [_parsed(word, source) for word in words]
    return {hashlib.sha256(b"ratchet payload key\n" + key).hexdigest()[:12]: key for key in keys}


class Codec(PayloadCodec):
    """AES-256-GCM: each payload whole, metadata included, under a nonce of its own. `data` is nonce, ciphertext, tag."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = keys
        self._current = next(iter(keys.items()), None)

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        if self._current is None:
            return list(payloads)
        name, key = self._current
        return [_encrypted(payload, name, key) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._decrypted(one) if one.metadata.get("encoding") == _ENCODING else one for one in payloads]

    def _decrypted(self, payload: Payload) -> Payload:
        name = payload.metadata.get("encryption-key-id", b"").decode()
        key = self._keys.get(name)
        if key is not None:
            return _decrypted(payload, name, key)
        have = f"this process has {', '.join(self._keys)}" if self._keys else "none is set"
        raise RatchetError(
            "ConfigInvalid",
            f"This run's history is encrypted with the key {name}, and {have}. Put that key into RATCHET_PAYLOAD_KEY, or into "
            "the file that RATCHET_PAYLOAD_KEY_FILE names (after the newest one, if it is an old key).",
        )


def _encrypted(payload: Payload, name: str, key: bytes) -> Payload:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(_NONCE_BYTES)
    data = nonce + AESGCM(key).encrypt(nonce, payload.SerializeToString(), name.encode())
    return Payload(metadata={"encoding": _ENCODING, "encryption-key-id": name.encode()}, data=data)


def _decrypted(payload: Payload, name: str, key: bytes) -> Payload:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce, sealed = payload.data[:_NONCE_BYTES], payload.data[_NONCE_BYTES:]
    try:
        return Payload.FromString(AESGCM(key).decrypt(nonce, sealed, name.encode()))
    except (InvalidTag, ValueError) as error:
        raise RatchetError(
            "Unsupported",
            f"A payload in the history that names the key {name} was changed or cut ({len(payload.data)} bytes); "
            "it is not decrypted.",
        ) from error


def _require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ModuleNotFoundError as error:
        raise RatchetError(
            "Unsupported",
            "RATCHET_PAYLOAD_KEY is set, and the package cryptography is not installed: pip install cryptography.",
        ) from error


def _parsed(word: str, source: str) -> bytes:
    if re.fullmatch(r"[0-9a-fA-F]{64}", word):
        return bytes.fromhex(word)
    try:
        key = base64.b64decode(word.translate(str.maketrans("-_", "+/")).rstrip("=") + "=", validate=True)
    except binascii.Error:
        key = b""
    if len(key) != _KEY_BYTES:
        raise _no_key(source, f"a word of {len(word)} characters")
    return key


def _no_key(source: str, received: str) -> RatchetError:
    """The error names only the length of what was received, which may be most of a key."""
    return RatchetError(
        "ConfigInvalid",
        f"{source}: expected keys of {_KEY_BYTES} bytes in base64 or hex, got {received}. "
        f"One is made by: openssl rand -base64 {_KEY_BYTES}",
    )
