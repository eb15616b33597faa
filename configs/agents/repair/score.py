"""Scores a repair: 1 if the program passes the hidden tests after the first attempt, 0.5 after the second, else 0."""
import json
import subprocess
import sys

attempts = int(open("attempts").read())
passes = subprocess.run([sys.executable, "-SEB", "test_hidden.py"], capture_output=True).returncode == 0
reward = (1.0 if attempts == 1 else 0.5) if passes else 0.0
print(json.dumps({"reward": reward, "metrics": {"repaired": float(passes), "attempts": float(attempts)}}))
