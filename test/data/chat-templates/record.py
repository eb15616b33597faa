"""Records what jinja2, set up as transformers does, gives for the chat templates of trl and axolotl.

    pip install jinja2 transformers; pip download --no-deps trl axolotl, and unzip both
    python record.py TRL_FOLDER AXOLOTL_FOLDER

Writes recorded.json: the templates (both packages are Apache-2.0), and for each template and each conversation of
conversations.json the SHA-256 of the text, or null where jinja2 refuses it. expressions.json gets the text of each small template
of expressions.txt.
"""

import hashlib
import datetime
import importlib.metadata
import json
import sys
from pathlib import Path

from transformers.utils.chat_template_utils import _compile_jinja_template

here = Path(__file__).parent
folders = [Path(sys.argv[1]) / "trl/chat_templates", Path(sys.argv[2]) / "axolotl/utils/chat_templates/templates"]


def rendered(template, variables):
    try:
        return _compile_jinja_template(template).render(**variables)
    except Exception:
        return None


def variables(conversation):
    defaults = {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    given = {**defaults, **conversation}
    given.pop("name")
    return given


conversations = json.loads((here / "conversations.json").read_text())
templates = {}
for name, folder in zip(["trl", "axolotl"], folders):
    for file in sorted(folder.glob("*.jinja")):
        text = file.read_bytes().decode()
        texts = [rendered(text, variables(each)) for each in conversations]
        hashes = [None if each is None else hashlib.sha256(each.encode(errors="surrogatepass")).hexdigest()[:16] for each in texts]
        templates[f"{name}/{file.stem}"] = {"template": text, "texts": hashes}

# strftime_now gives this day in the texts.
time = f"{datetime.date.today():%Y-%m-%d}T12:00"
recorded = {"jinja2": importlib.metadata.version("jinja2"), "time": time, "templates": templates}
(here / "recorded.json").write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n")

values = {"messages": [{"role": "user", "content": " A b\nc "}, {"role": "tool", "content": "d", "n": 2}],
          "text": "one two  three", "map": {"b": [1, 2.5, True, None], "a": {"c": "x"}}}
lines = (here / "expressions.txt").read_text().splitlines()
expressions = [[line, rendered(line, values)] for line in lines]
(here / "expressions.json").write_text(json.dumps({"values": values, "expressions": expressions}, indent=1) + "\n")
