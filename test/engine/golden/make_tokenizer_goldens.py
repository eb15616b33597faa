"""Makes test/engine/golden/tokenizers (small BPE tokenizers, with what Python's `tokenizers` and transformers make of texts
and ids) and test/engine/golden/chat/cases.json (conversations rendered by transformers' apply_chat_template).

    python test/engine/golden/make_tokenizer_goldens.py    (needs transformers, tokenizers)
"""

import json
import random
import shutil
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent
FOLDER = HERE / "tokenizers"
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CORPUS = [
    "The cat sat on the mat, and the dog isn't here; it's 12345 steps away.",
    "def reverse(word):\n    return word[::-1]\n\n",
    '{"name": "weather", "arguments": {"city": "Zürich", "days": 3}}',
    "Grüße aus Köln — 你好，世界！ Привет 🙂🙃",
] * 8
TEXTS = [
    "",
    " ",
    "The cat isn't on the mat.",
    "  leading, trailing  ",
    "Zürich naïve café Ångström",
    "Cafe\u0301 composed by NFC",
    "你好，世界！🙂👩‍👩‍👧‍👦🏳️‍🌈",
    "नमस्ते مرحبا שלום",
    "line\nline\r\n\n\n  indented\tby a tab",
    "<|im_start|>user\nhi<|im_end|>\n",
    'before<tool_call>\n{"name": "f"}\n</tool_call>after',
    "no<|im_start|space",
    "1234567890 3.14159 1e-5 'LL we'll WE'VE",
    "zero\u200bwidth \ufeffmark \u00a0space\u3000wide",
    "\x00\x1f control",
    "\ufffd replacement",
    "a ." + " b ?" + " don 't",
]


def byte_level() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    headers = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin_of_text|>"]
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *headers]])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in ["<tool_call>", "</tool_call>"]])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|begin_of_text|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=True,
    )


def byte_fallback() -> PreTrainedTokenizerFast:
    """As Llama 2's: blanks are ▁, one of which begins every text; what has no piece is written in bytes."""
    marked = Tokenizer(models.BPE())
    marked.pre_tokenizer = pre_tokenizers.Metaspace()
    marked.train_from_iterator(CORPUS[:2], trainers.BpeTrainer(vocab_size=120, show_progress=False))
    trained = json.loads(marked.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *trained["vocab"]]
    merges = [tuple(pair) for pair in trained["merges"]]
    tokenizer = Tokenizer(
        models.BPE({p: i for i, p in enumerate(pieces)}, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ["<unk>", "<s>", "</s>"]])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def write_tokenizer(name: str, tokenizer: PreTrainedTokenizerFast, texts: list[str], random_ids: int) -> None:
    folder = FOLDER / name
    tokenizer.save_pretrained(folder)
    encoded = [(text, tokenizer.encode(text, add_special_tokens=False)) for text in texts]
    generator = random.Random(5)
    drawn = [[generator.randrange(len(tokenizer)) for _ in range(12)] for _ in range(random_ids)]
    decode = lambda ids, skip: tokenizer.decode(ids, skip_special_tokens=skip)
    cases = {
        "texts": [{"text": text, "ids": ids, "decoded": decode(ids, True), "whole": decode(ids, False)} for text, ids in encoded],
        "ids": [{"ids": ids, "decoded": decode(ids, True), "whole": decode(ids, False)} for ids in drawn],
    }
    (folder / "cases.json").write_text(json.dumps(cases, ensure_ascii=True, indent=1) + "\n")


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city — \"now\" & <soon>",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Zürich", "北京"]}, "days": {"type": "integer", "default": 1}},
            "required": ["city"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "", "parameters": {"type": "object", "properties": {}}}}
call = lambda name, arguments: {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather in Zürich? 🙂"}]
ONE_CALL = [
    *ASK,
    {"role": "assistant", "content": None, "tool_calls": [call("weather", {"city": "Zürich", "days": 3, "exact": True, "unit": None})]},
    {"role": "tool", "tool_call_id": "c1", "content": '{"sky": "blue", "degrees": 21.5}'},
]
ANSWERED = [*ONE_CALL, {"role": "assistant", "content": "Blue."}, {"role": "user", "content": "And then?"}]
TWO_CALLS = [
    {"role": "user", "content": "Time and weather"},
    {"role": "assistant", "content": "Looking.", "tool_calls": [call("clock", {}), call("weather", {"city": "北京", "days": [1, 2.5]})]},
    {"role": "tool", "content": "12:00"},
    {"role": "tool", "content": "rain"},
]
THOUGHT = [
    {"role": "user", "content": "1 + 1?"},
    {"role": "assistant", "content": "<think>\nOne and one.\n</think>\n\n2"},
    {"role": "user", "content": [{"type": "text", "text": "in"}, {"type": "text", "text": "parts"}]},
    {"role": "assistant", "reasoning_content": "again", "content": "3"},
]
CONVERSATIONS = {
    "plain": dict(messages=ASK),
    "no system message": dict(messages=ASK[1:]),
    "finished": dict(messages=[*ASK, {"role": "assistant", "content": "Sunny.  "}], add_generation_prompt=False),
    "tools": dict(messages=ASK, tools=[WEATHER, CLOCK]),
    "no tools in the list": dict(messages=ASK, tools=[]),
    "a call and its response": dict(messages=ONE_CALL, tools=[WEATHER]),
    "a call, its response and an answer": dict(messages=ANSWERED, tools=[WEATHER, CLOCK]),
    "two calls": dict(messages=TWO_CALLS, tools=[WEATHER, CLOCK]),
    "thinking, and content in parts": dict(messages=THOUGHT),
    "thinking switched off": dict(messages=ASK, kwargs=dict(enable_thinking=False)),
    "a date": dict(messages=ASK, kwargs=dict(date_string="1 Jan 2000", enable_thinking=True)),
}


def render(tokenizer: PreTrainedTokenizerFast, template: str | dict, case: dict) -> dict:
    tokenizer.chat_template = template
    prompt = case.get("add_generation_prompt", True)
    arguments = dict(tools=case.get("tools"), add_generation_prompt=prompt, **case.get("kwargs", {}))
    try:
        text = tokenizer.apply_chat_template(case["messages"], tokenize=False, **arguments)
    except Exception as error:  # a template's own refusal is part of what is compared
        return {"error": str(error)}
    return {"text": text, "ids": tokenizer.encode(text, add_special_tokens=False)}


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    tokenizer = byte_level()
    write_tokenizer("byte-level", tokenizer, TEXTS, random_ids=60)
    # @huggingface/tokenizers loses byte order marks here, and writes one replacement for several torn bytes.
    write_tokenizer("byte-fallback", byte_fallback(), [t for t in TEXTS if "\ufeff" not in t], random_ids=0)
    hermes, llama3 = ((HERE / "chat" / f"{name}.jinja").read_text() for name in ("hermes", "llama3"))
    templates = {"hermes": hermes, "llama3": llama3, "both": {"default": llama3, "tool_use": hermes}}
    cases = [
        {"name": name, "template": kind, "kwargs": {}, "tools": None, "add_generation_prompt": True, **case, **render(tokenizer, template, case)}
        for kind, template in templates.items()
        for name, case in CONVERSATIONS.items()
        if kind == "hermes" or case["messages"] is not THOUGHT  # llama3.jinja would print parts as Python does
    ]
    (HERE / "chat" / "cases.json").write_text(json.dumps(cases, ensure_ascii=True, indent=1) + "\n")
    print(len(cases), "conversations,", sum("error" in case for case in cases), "refused")
    print([(case["template"], case["name"], case["error"]) for case in cases if "error" in case])


if __name__ == "__main__":
    main()
