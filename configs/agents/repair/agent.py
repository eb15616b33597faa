"""A small agent that repairs a program: it runs the tests, tells the model what failed, and puts the operator that the
model names into the program, at most twice. Python's standard library alone; any program that asks OpenAI's API would do.
"""
import json
import os
import re
import subprocess
import sys
import urllib.request

ATTEMPTS = 2


def ask(messages):
    """One call of the model."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages}).encode(),
        {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"] or ""


def failure():
    """What the first failing test says; None if all pass. -B: bytecode of a file that changed within a second is stale."""
    run = subprocess.run([sys.executable, "-SEB", "test_calc.py"], capture_output=True, text=True)
    return None if run.returncode == 0 else run.stdout.strip()


def repair(operator):
    with open("calc.py") as file:
        code = file.read()
    with open("calc.py", "w") as file:
        file.write(re.sub(r"a \S+ b", "a " + {"/": "//"}.get(operator, operator) + " b", code))


with open(os.environ["RATCHET_TASK"]) as file:
    task = json.load(file)
messages = [{"role": "user", "content": task["prompt"]}]
for attempt in range(ATTEMPTS):
    said = ask(messages)
    if said[:1] in ("+", "-", "*", "/"):
        repair(said[:1])
    failed = failure()
    with open("attempts", "w") as file:
        file.write(str(attempt + 1))
    if failed is None:
        break
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": failed}]
