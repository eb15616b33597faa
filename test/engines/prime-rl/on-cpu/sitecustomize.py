"""Python imports this at its start where this folder is on PYTHONPATH. With RATCHET_PRIME_RL_ON_CPU=1, prime-rl's trainer then runs without a GPU."""

import os

if os.environ.get("RATCHET_PRIME_RL_ON_CPU") == "1":
    import prime_rl_on_cpu

    prime_rl_on_cpu.install()
