"""Three calls of the policy and one effect that happens once, without chance of its own."""
import json
import os
import urllib.error
import urllib.request

CALLS = 3


def post(path, body):
    request = urllib.request.Request(
        os.environ["RATCHET_URL"] + path,
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refused:
        raise SystemExit(refused.read().decode())


with open(os.environ["RATCHET_TASK"]) as file:
    task = json.load(file)
messages = [{"role": "user", "content": task["prompt"]}]
heard = ""
for call in range(CALLS):
    said = post("/v1/chat/completions", {"model": "policy", "messages": messages})["choices"][0]["message"]["content"]
    heard += said
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "ok"}]
    if call == 1 and post("/effects/send", {"kind": "once", "arguments": heard})["state"] == "make":
        post("/effects/send/settle", {"answer": "sent"})
with open("reward", "w") as file:
    file.write(str(sum(map(ord, heard)) % 101 / 100))
