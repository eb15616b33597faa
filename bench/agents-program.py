"""An agent without chance of its own, for `bench agents`: it asks, does what the answer says, and goes on. It tells a counter
outside of Ratchet what it heard and what it did. A child that is killed is begun again: the work that it does has no other effect.
"""
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request

TURNS, COUNTER, RUN = int(sys.argv[1]), sys.argv[2], sys.argv[3]
KEY = os.environ["OPENAI_API_KEY"]


def post(url, body, **headers):
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json", **headers}
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def ask(messages):
    body = {"model": os.environ["OPENAI_MODEL"], "messages": messages}
    said = post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, authorization="Bearer " + KEY)
    return said["choices"][0]["message"]["content"] or ""


def child():
    while subprocess.run(["sleep", "0.3001"]).returncode != 0:
        pass


def effect(kind, key, rollout):
    """Written down before, done outside, and settled after."""
    where = os.environ["RATCHET_URL"] + "/effects/" + key
    try:
        begun = post(where, {"kind": kind, "arguments": {"rollout": rollout}}, authorization="Bearer " + KEY)
    except urllib.error.HTTPError as refused:
        raise SystemExit(refused.read().decode())
    if begun["state"] == "make":
        post(COUNTER + "/" + kind, {"id": rollout + " " + key, "key": begun["idempotency_key"]})
        post(where + "/settle", {"answer": key}, authorization="Bearer " + KEY)


with open(os.environ["RATCHET_TASK"]) as file:
    task = json.load(file)
messages = [{"role": "user", "content": task["prompt"]}]
heard = []
for turn in range(TURNS):
    said = ask(messages)
    heard.append(said)
    post(COUNTER + "/heard", {"id": " ".join([RUN, task["prompt"], *heard])})
    # From the third answer on no two rollouts of a task have heard the same.
    rollout = " ".join([RUN, task["prompt"], *heard[:3]])
    if turn % 5 == 2:
        child()
    if turn % 10 == 4:
        effect("once", "once-%d" % turn, rollout)
    if turn % 10 == 9:
        effect("keyed", "keyed-%d" % turn, rollout)
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "ok"}]
with open("reward", "w") as file:
    file.write(str(sum(map(ord, "".join(heard))) % 101 / 100))
