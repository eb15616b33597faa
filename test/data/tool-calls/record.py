"""Records what vLLM's own parsers make of texts.py, into recorded.json.

    pip install regex partial-json-parser pydantic ijson mistral-common openai-harmony openai
    pip download vllm==0.32.0 --no-binary vllm --no-deps      # the source archive; unpack it
    python record.py FOLDER_WITH_vllm

vLLM's parsers are pure Python. What they import beside themselves (servers, CUDA, logging) is stood in for here.
"""

import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
from dataclasses import dataclass, field
from typing import Any

SOURCE = sys.argv[1]
# Installed ones are not needed for what is read here.
STOOD_IN = ("xgrammar", "transformers", "torch", "fastapi", "jsonschema", "openai", "ijson", "mistral_common", "openai_harmony", "prometheus_client")
REAL = ("vllm.tool_parsers", "vllm.parser", "vllm.reasoning")


@dataclass
class FunctionCall:
    name: str | None = None
    arguments: str | None = None
    id: str | None = None


@dataclass
class ToolCall:
    function: Any = None
    type: str = "function"
    id: str | None = None


@dataclass
class ExtractedToolCallInformation:
    tools_called: bool
    tool_calls: list
    content: str | None = None


@dataclass
class DeltaMessage:
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list = field(default_factory=list)


@dataclass
class DeltaFunctionCall:
    name: str | None = None
    arguments: str | None = None


@dataclass
class DeltaToolCall:
    index: int = 0
    id: str | None = None
    type: str | None = None
    function: Any = None


class Quiet:
    def __getattr__(self, name):
        return lambda *args, **kwargs: None


class ChatCompletionToolsParam:
    def __init__(self, function):
        self.type = "function"
        self.function = types.SimpleNamespace(**function)


KNOWN = {
    "FunctionCall": FunctionCall,
    "ToolCall": ToolCall,
    "ExtractedToolCallInformation": ExtractedToolCallInformation,
    "DeltaMessage": DeltaMessage,
    "DeltaFunctionCall": DeltaFunctionCall,
    "DeltaToolCall": DeltaToolCall,
    "ChatCompletionToolsParam": ChatCompletionToolsParam,
    "init_logger": lambda name: Quiet(),
    "make_tool_call_id": lambda *args, **kwargs: "id",
    "get_tool_call_id_type": lambda *args, **kwargs: "random",
    "is_mistral_tokenizer": lambda tokenizer: False,
    "VLLM_TOOL_PARSE_REGEX_TIMEOUT_SECONDS": 5,
    "VLLM_ENFORCE_STRICT_TOOL_CALLING": False,
    "register_vllm_structural_tag": lambda *args, **kwargs: lambda function: function,
    "parse_coro": lambda *args: None,
    "coroutine": lambda function: function,
    "SpecialTokens": types.SimpleNamespace(
        tool_calls=types.SimpleNamespace(value="[TOOL_CALLS]"),
        args=types.SimpleNamespace(value="[ARGS]"),
        begin_think=types.SimpleNamespace(value="[THINK]"),
        end_think=types.SimpleNamespace(value="[/THINK]"),
    ),
}


class StandIn(types.ModuleType):
    __path__: list = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = KNOWN.get(name) or type(name, (), {"__class_getitem__": classmethod(lambda cls, item: cls)})
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        root = name.split(".")[0]
        if root == "vllm":
            # Fillers are dull, and structural tags are not of what is said.
            if name.startswith(REAL) and name != "vllm.tool_parsers.structural_tag_registry":
                place = os.path.join(SOURCE, *name.split("."))
                file = os.path.join(place, "__init__.py") if os.path.isdir(place) else f"{place}.py"
                is_package = os.path.isdir(place)
                return importlib.util.spec_from_file_location(
                    name, file, submodule_search_locations=[place] if is_package else None
                )
        elif root not in STOOD_IN:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Finder())

import importlib.util  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from texts import SPECIALS, TOOLS, cases  # noqa: E402

from vllm.reasoning import ReasoningParserManager  # noqa: E402
from vllm.tool_parsers import ToolParserManager  # noqa: E402


class Tokenizer:
    """Knows the special tokens that parsers ask for; nothing is tokenized."""

    def __init__(self, specials):
        self.vocab = {text: i for i, text in enumerate(specials)}
        self.all_special_tokens = ["<|im_start|>", "<|im_end|>", "<|turn>"]
        self.all_special_ids = [self.vocab[text] for text in self.all_special_tokens]
        self.chat_template = ""

    def get_vocab(self):
        return self.vocab

    def encode(self, text, **kwargs):
        return [self.vocab[text]] if text in self.vocab else []


def parsed(case):
    tools = [ChatCompletionToolsParam(tool["function"]) for tool in TOOLS]
    # Mistral before its eleventh tokenizer has no [ARGS].
    tokenizer = Tokenizer([text for text in SPECIALS if not (case.get("old") and text == "[ARGS]")])
    request = types.SimpleNamespace(
        tools=tools,
        tool_choice="auto",
        include_reasoning=True,
        skip_special_tokens=True,
        chat_template_kwargs=case.get("kwargs") or {},
        messages=[],
    )
    kwargs = {"chat_template_kwargs": case.get("kwargs") or {}}
    reasoning, content = None, case["text"]
    is_engine = False
    if name := case.get("reasoning"):
        parser = ReasoningParserManager.get_reasoning_parser(name)(tokenizer, **kwargs)
        reasoning, content = parser.extract_reasoning(case["text"], request)
        is_engine = getattr(parser, "engine_based_streaming", False)
    calls = []
    if name := case.get("tools"):
        parser_class = ToolParserManager.get_tool_parser(name)
        is_engine = getattr(parser_class, "engine_based_streaming", False)
        parser = parser_class(tokenizer, tools)
        if is_engine:
            parser.skip_reasoning_parsing = not case.get("reasoning")
        # The rest is as DelegatingParser puts the two together for tool_choice "auto".
        said = parser.extract_tool_calls(content or "", request)
        if said.tools_called:
            calls = [[call.function.name, call.function.arguments] for call in said.tool_calls]
            content = said.content
            if content and content.strip() == "":
                content = None
        elif is_engine:
            content = said.content or None
    return {"reasoning": reasoning, "content": content, "calls": calls}




rows = []
for case in cases():
    try:
        rows.append({**case, "said": parsed(case)})
    except Exception as error:  # a parser that throws is told, not recorded
        print(f"{case['tools']} {case['text']!r}: {type(error).__name__}: {error}", file=sys.stderr)
json.dump({"vllm": "0.32.0", "tools": TOOLS, "cases": rows}, sys.stdout, ensure_ascii=False, indent=1)
