"""Records what vLLM's HarmonyParser makes of turns of gpt-oss, into harmony.json.

    pip install vllm==0.32.0      # brings openai-harmony, which fetches its vocabulary
    python record_harmony.py
"""

import json
import types
from pathlib import Path

from vllm.entrypoints.openai.parser.harmony_utils import get_encoding
from vllm.parser.harmony import HarmonyParser
from vllm.reasoning.gptoss_reasoning_parser import GptOssReasoningParser
from vllm.tool_parsers.gptoss_tool_parser import GptOssToolParser

START = "<|start|>assistant"


def thought(text):
    return f"<|channel|>analysis<|message|>{text}<|end|>"


def answer(text, end="<|return|>"):
    return f"<|channel|>final<|message|>{text}{end}"


def call(name, args, kind=" <|constrain|>json", end="<|call|>"):
    return f"<|channel|>commentary to=functions.{name}{kind}<|message|>{args}{end}"


BIG = '{"key": 2512292042121000001}'
TEXTS = [
 thought("hm")+ START +answer("answer"), answer("answer"), thought("hm")+ START +call("look",BIG), call("look",BIG), thought("hm")+ START +answer("answer",""), thought("hm")+ START +call("look",BIG, end=""),
 thought("hm")+ START +"<|channel|>commentary<|message|>I look it up.<|end|>"+ START +call("look",'{"key":1}'),
 thought("a")+ START +thought("b")+ START +answer("answer"),
 thought("hm")+ START +call("look",'{"key":1}')+ START +call("stop",'{}'),
 thought("hm")+ START +" to=functions.look<|channel|>commentary <|constrain|>json<|message|>{\"key\": 5}<|call|>",
 thought("hm")+ START +" to=functions.look<|channel|>commentary json<|message|>{\"key\": 5}<|call|>",
 thought("hm")+ START +"<|channel|>commentary to=functions.look<|message|>{\"key\": 5}<|call|>",
 thought("hm")+ START +"<|channel|>analysis to=functions.look <|constrain|>json<|message|>{\"key\": 5}<|call|>",
 thought("hm")+ START +"<|channel|>analysis to=python code<|message|>print(1)<|call|>",
 thought("hm")+ START +"<|channel|>commentary to=python code<|message|>print(1)<|call|>",
 thought("hm")+ START +"<|channel|>analysis to=browser.search<|message|>{\"q\":1}<|call|>",
 thought("hm")+ START +"<|channel|>commentary to=browser.search <|constrain|>json<|message|>{\"q\":1}<|call|>",
 thought("hm")+ START +call("look",'{bad'), thought("hm")+ START +call("look",'text', kind=" text"), thought("hm")+ START +call("look",'{"a": 1.0, "b": 1e3, "é": "ü"}'), thought("hm")+ START +call("look",'{"a": "é\\u00e9"}'),thought("hm")+ START +call("look",'{"key":1}', kind=" code"), thought("hm")+ START +call("look",'{"key": 1}', kind=" <|constrain|>python"),
 thought("hm")+ START +call("look",''), thought("hm")+ START +call("look",'[1]'), thought("hm")+ START +call("look",'"x"'),
 "<|channel|>analysis<|message|>hm", "<|channel|>analysis<|message|>", "<|channel|>final<|message|>", "<|channel|>", "<|channel|>analysis", "<|channel|>commentary to=functions.look <|constrain|>json<|message|>{\"key\"", "<|channel|>commentary to=functions.lo",
 "plain text", "", " \n", "<|message|>no channel<|end|>", thought("")+ START +answer("answer"), thought("  hm \n")+ START +answer("\n answer \n"),
 thought("hm")+"<|start|>assistant", thought("hm")+"<|start|>", thought("hm"), thought("hm")+ START +"<|channel|>commentary<|message|>note<|end|>", answer("one","<|end|>")+ START +answer("two"),
 thought("hm")+ START +"<|channel|>commentary to=assistant<|message|>x<|end|>", thought("hm")+ START +"<|channel|>commentary to=look <|constrain|>json<|message|>{\"key\":1}<|call|>",
 thought("hm")+ START +"<|channel|>commentary to=functions.a.b <|constrain|>json<|message|>{}<|call|>", thought("hm")+ START +"<|channel|>final to=functions.look<|message|>{}<|call|>",
 thought("hm")+ START +"<|channel|>final <|constrain|>json<|message|>{\"a\": 1}<|return|>", thought("hm")+ START +"<|channel|>other<|message|>x<|end|>"+ START +answer("answer"),
 thought("hm <|channel|>final")+ START +answer("answer"), thought("hm")+"text between"+ START +answer("answer"), thought("hm")+answer("answer"), "analysis: hm"+ START +answer("answer"),
 thought("hm")+ START +"<|channel|>commentary to=functions.look <|constrain|>json<|message|>{\"key\":1}<|end|>"+ START +answer("answer"),
 thought("hm")+"<|start|>functions.look to=assistant<|channel|>commentary<|message|>4<|end|>"+ START +answer("answer"), thought("hm")+"<|start|>user<|message|>x<|end|>"+ START +answer("answer"),
 answer("see to=functions.look {}"), thought("hm")+ START +"<|channel|>commentary to=container.exec<|message|>{}<|call|>",
]

encoding = get_encoding()


class Tokenizer:
    def decode(self, ids):
        return encoding.decode(ids)

    def get_vocab(self):
        return {}


class Parser(HarmonyParser):
    tool_parser_cls = GptOssToolParser
    reasoning_parser_cls = GptOssReasoningParser


def parsed(text):
    ids = encoding.encode(text, allowed_special="all")
    reasoning, content, calls = Parser(Tokenizer()).parse(text, types.SimpleNamespace(tools=None), True, ids)
    return {"reasoning": reasoning, "content": content, "calls": [[one.name, one.arguments] for one in calls or []]}


cases = [{"text": text, "said": parsed(text)} for text in TEXTS]
file = Path(__file__).parent / "harmony.json"
file.write_text(json.dumps({"vllm": "0.32.0", "cases": cases}, indent=1, ensure_ascii=False) + "\n")
