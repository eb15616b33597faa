"""Where Temporal is, and a connection to it."""

import hashlib
import json
import os
import pwd
import re
import socket
from functools import cache
from pathlib import Path
from typing import Any

from temporalio.client import Client, TLSConfig
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

from ._codec import data_converter
from ._errors import RatchetError

_ANSWER_TIMEOUT_S = 1.0


async def connect(address: str | None, namespace: str | None, folder: str | os.PathLike[str]) -> Client:
    """The server at `address` or TEMPORAL_ADDRESS, else the one of the processes of `folder`."""
    elsewhere = address or os.environ.get("TEMPORAL_ADDRESS")
    found = elsewhere or _address_of(Path(folder))
    options: dict[str, Any] = _options_of_environment() if elsewhere else {}
    options["data_converter"] = data_converter()
    if namespace is not None:
        options["namespace"] = namespace
    try:
        return await Client.connect(found, runtime=_quiet(), identity=f"ratchet {_login()} {os.getpid()}", **options)
    except RuntimeError as error:
        raise RatchetError(
            "ServerUnavailable",
            f"No Temporal server answers at {found} ({_why(error)}). Is it running, and is the address right "
            "(address=, or TEMPORAL_ADDRESS)?",
        ) from error


@cache
def _quiet() -> Runtime:
    """Temporal's library logs each repetition of a call. What fails is raised here."""
    logging = LoggingConfig(filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"))
    return Runtime(telemetry=TelemetryConfig(logging=logging))


def _why(error: RuntimeError) -> str:
    """The innermost message: `Connection refused` in a nest of Rust's errors."""
    found: list[str] = re.findall(r'message: "([^"]+)"', str(error))
    return found[-1] if found else str(error)


def refuse_with_roles(what: str, folder: str | os.PathLike[str]) -> None:
    """Who may do what is asked by the npm package alone: where there is a file of roles, nothing is changed from here."""
    named = os.environ.get("RATCHET_ROLES")
    if not named and not (Path(folder) / "roles.toml").exists():
        return
    raise RatchetError(
        "NotAllowed",
        f"{what}: the Python client does not read {named or 'roles.toml'}, which says who may do that. "
        "Use the command ratchet, or ratchet-rl/client of the npm package.",
    )


def _login() -> str:
    """The user of this process at its operating system, which no variable changes."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = f"user {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def _options_of_environment() -> dict[str, Any]:
    """Temporal's own variables, as Ratchet's commands read them."""
    environ = os.environ
    api_key = environ.get("TEMPORAL_API_KEY") or None
    if file := environ.get("TEMPORAL_API_KEY_FILE"):
        api_key = _read("TEMPORAL_API_KEY_FILE", file).decode().strip()
    authority, certificate, key = (
        _material(f"TEMPORAL_TLS_{name}") for name in ("SERVER_CA_CERT", "CLIENT_CERT", "CLIENT_KEY")
    )
    server_name = environ.get("TEMPORAL_TLS_SERVER_NAME") or None
    wants_tls = environ.get("TEMPORAL_TLS", "").strip().lower() in ("true", "1")
    has_tls = wants_tls or any(one is not None for one in (authority, certificate, key, server_name, api_key))
    tls = TLSConfig(
        server_root_ca_cert=authority, domain=server_name, client_cert=certificate, client_private_key=key
    )
    return {
        "namespace": environ.get("TEMPORAL_NAMESPACE") or "default",
        "tls": tls if has_tls else False,
        **({} if api_key is None else {"api_key": api_key}),
    }


def _material(name: str) -> bytes | None:
    if file := os.environ.get(f"{name}_PATH"):
        return _read(f"{name}_PATH", file)
    data = os.environ.get(f"{name}_DATA")
    return data.encode() if data else None


def _read(variable: str, file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise RatchetError(
            "ConfigInvalid", f"{variable}: expected a file, but it cannot be read ({error.strerror}): {file}."
        ) from error


def _address_of(folder: Path) -> str:
    """What the processes of a project's folder say (`workers/stack/held-lock.ts`): they hold a socket."""
    project = os.path.realpath(folder)
    digest = hashlib.sha256(f"project {project}".encode()).hexdigest()[:16]
    runtime = Path(os.environ.get("RATCHET_RUNTIME_DIR", f"/tmp/ratchet-{os.getuid()}"))
    for path in sorted(runtime.glob(f"{digest}.*.sock")) if _is_own(runtime) else []:
        told = _ask(path)
        if told.get("state") == "held" and (address := (told.get("facts") or {}).get("temporalAddress")):
            return str(address)
    raise RatchetError(
        "ServerUnavailable",
        f"Nothing of Ratchet is ready in {project}. Start it with `npx ratchet-rl dev` or `npx ratchet-rl train FILE`, "
        "or give the address of a Temporal server: address=, or TEMPORAL_ADDRESS.",
    )


def _is_own(folder: Path) -> bool:
    """Another user may have made a folder of that name."""
    try:
        return folder.lstat().st_uid == os.getuid()
    except FileNotFoundError:
        return False


def _ask(path: Path) -> dict[str, Any]:
    """What a socket says; nothing if its process is dead or silent."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.settimeout(_ANSWER_TIMEOUT_S)
        try:
            asked.connect(str(path))
            answer = b""
            while chunk := asked.recv(65536):
                answer += chunk
            told = json.loads(answer)
        except (OSError, ValueError):
            return {}
    return told if isinstance(told, dict) else {}
