"""What Ratchet has in the processes of prime-rl's trainer: a look at the installation, and the objective that its ranks import."""
