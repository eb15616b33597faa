"""A trainer on PyTorch: transformers' models, PEFT's adapters, FSDP2 over ranks. Ratchet starts it as a child and talks to rank 0."""
