"""Guard in front of a vLLM that Ratchet starts: `--middleware ratchet_vllm.RequireKey`.

vLLM asks for its key below /v1 alone. Its other routes pause it, exchange its weights and call its workers, and every user of the machine
reaches them on the loopback.
"""

import base64
import hashlib
import hmac
import os


class RequireKey:
    """Requires VLLM_API_KEY on every route but /health. A server without that key does not start."""

    def __init__(self, app):
        key = os.environ.get("VLLM_API_KEY", "")
        if not key:
            raise RuntimeError("ratchet_vllm.RequireKey: expected a key in VLLM_API_KEY, found none.")
        self.app = app
        self.expected = f"Bearer {key}".encode()
        self.secret = os.environ.get("RATCHET_SECRET", "").encode()

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        headers = dict(scope.get("headers") or [])
        if scope["type"] == "http" and scope["path"] == "/health":
            challenge = headers.get(b"ratchet-challenge")
            if challenge is None or not self.secret or not scope.get("server"):
                return await self.app(scope, receive, send)
            proof = proof_of(self.secret, challenge, scope["server"])
            # Also while the engine is dead: a client that knows it is ours may then find that out.
            return await answer(send, 200, b"{}", [(b"ratchet-proof", proof)])
        if hmac.compare_digest(headers.get(b"authorization", b""), self.expected):
            return await self.app(scope, receive, send)
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})
        return await answer(send, 401, refusal)


def proof_of(secret, challenge, server):
    """The same as `proofOf` in engine/server/gate.ts. `server` is the server's end of the connection."""
    host, port = server
    host = host.removeprefix("::ffff:") if "." in host else host
    text = f"ratchet server\n{host} {port}\n".encode() + challenge
    return base64.urlsafe_b64encode(hmac.new(secret, text, hashlib.sha256).digest()).rstrip(b"=")


refusal = b'{"error": "Expected the header \\"Authorization: Bearer KEY\\" with the key that this server was started with."}'


async def answer(send, status, body, headers=()):
    always = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*always, *headers]})
    await send({"type": "http.response.body", "body": body})
