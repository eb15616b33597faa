"""Generates rollouts of verifiers environments for Ratchet: a long-lived process that exchanges JSON lines with its parent.

Model calls do not leave this process over HTTP: verifiers gets a client (`policy.py`, `v1_policy.py`) that asks the parent
for each turn over the same pipe. `backends/environments/verifiers/protocol.ts` states the protocol.
"""

PROTOCOL = 1
