"""What models say, by parser: whole, cut, wrong, several calls, calls inside thoughts."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Looks a row up.",
            "parameters": {
                "type": "object",
                "properties": {
                    "key": {"type": "integer"},
                    "share": {"type": "number"},
                    "deep": {"type": "boolean"},
                    "note": {"type": "string"},
                    "where": {"type": "object", "properties": {"x": {"type": "integer"}}},
                    "list": {"type": "array", "items": {"type": "integer"}},
                    "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                },
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "stop", "description": "Stops.", "parameters": {"type": "object", "properties": {}}},
    },
]

SPECIALS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]",
    "<|im_start|>", "<|im_end|>", "<|tool_call_start|>", "<|tool_call_end|>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>",
    "<|tool_call_argument_begin|>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|\"|>", "<|turn>",
    "[THINK]", "[/THINK]",
]


def hermes(name, args):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {args}}}\n</tool_call>'


def xml(name, **args):
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in args.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def glm(name, **args):
    inner = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in args.items())
    return f"<tool_call>{name}\n{inner}</tool_call>"


def kimi(*calls):
    inner = "".join(
        f"<|tool_call_begin|>functions.{name}:{i}<|tool_call_argument_begin|>{args}<|tool_call_end|>"
        for i, (name, args) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


def v3(*calls):
    inner = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{args}\n```<｜tool▁call▁end｜>" for name, args in calls
    )
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def v31(*calls):
    inner = "".join(f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{args}<｜tool▁call▁end｜>" for name, args in calls)
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def gemma(name, args):
    return f"<|tool_call>call:{name}{{{args}}}<tool_call|>"


def dsml(wrapper, *calls):
    inner = "".join(
        f'<｜DSML｜invoke name="{name}">\n'
        + "".join(f'<｜DSML｜parameter name="{k}" string="{s}">{v}</｜DSML｜parameter>\n' for k, s, v in args)
        + "</｜DSML｜invoke>\n"
        for name, args in calls
    )
    return f"<｜DSML｜{wrapper}>\n{inner}</｜DSML｜{wrapper}>"


BIG = '{"key": 2512292042121000001}'
ODD = '{"10": 1, "2": 2.0, "a": 1.5, "é": "ü\\n\\u00e9", "t": true, "n": null, "l": [1, {"b": []}]}'

def texts():
    yield "hermes", [
        hermes("look", BIG), hermes("look", ODD), "Let me look.\n" + hermes("look", '{"key": 1}') + "\n" + hermes("stop", "{}"),
        hermes("look", '{"key": 1}') + " and on", '<tool_call>{"name": "look", "arguments": {"key"', "no call at all", "",
        '<tool_call>{"name": "look", "arguments": {"key": 1}}', '<tool_call>{"name": "look"}</tool_call> on',
        hermes("look", '{"key": 1}') + '<tool_call>{"name": "stop", "argum', "<tool_call></tool_call>",
        '<tool_call>{"name": "look", "arguments": "text"}</tool_call>', '<tool_call>{"name": "look", "arguments": {"a":1,"b":[1,2]}}</tool_call>',
        "<tool_call>[]</tool_call>", '<tool_call>{"name":"look","arguments":{"a":1,"a":2}}</tool_call>', '<tool_call>{"arguments": {}, "name": "look"} extra</tool_call>',
        "<think>\nhm " + hermes("look", '{"key": 1}') + "\n</think>\n\nanswer", "<think>\nhm\n</think>\n\n" + hermes("look", '{"key": 1}'),
        "a <tool_cal and </tool_call>", "  \n" + hermes("stop", "{}") + "\n",
    ]
    yield "qwen3_coder", [
        xml("look", key=5), xml("look", key=2512292042121000001, share=2.0, deep="true", note="5"), xml("look", note="two\nlines", list="[1, 2]", where='{"x": 3}'),
        "Let me look.\n\n" + xml("look", key=1) + "\n" + xml("stop"), xml("stop"), xml("nothing", a=1, b="x"), xml("look", key="abc", deep="maybe", maybe="null"),
        "<tool_call>\n<function=look>\n<parameter=key>\n5", "<tool_call>\n<function=look>\n<parameter=key>\n5\n</parameter>", "<tool_call>\n<function=lo", "<tool_call>",
        "<function=look>\n<parameter=key>\n5\n</parameter>\n</function>", "<tool_call>\n<function=look>\n<parameter=key>5<parameter=note>x</parameter></function></tool_call>",
        "no call", "", xml("look", key=1) + " and on", '<tool_call>\n{"name": "look", "arguments": {"key": 1}}\n</tool_call>',
        xml("look", share="1e3", list="[1, \"2\"]", where='{"x": "4"}'), xml("look", share="1e400", maybe="7", unknown="1.0"),
        xml("look", share="1_000"), xml("look", share="-0"), xml("look", share="-0.0"), xml("look", share="1__0"),
        "<think>\nhm " + xml("look", key=1) + "\n</think>\n\nanswer", "<think>\nhm\n</think>\n\n" + xml("look", key=1), "hm\n</think>\n\n" + xml("look", key=1), "hm " + xml("look", key=1),
        "<think>\nhm", "hm\n</think>\n\nanswer", "<tool_call>\n<function=look></tool_call>\nafter",
    ]
    yield "glm45", [
        glm("look", key=5), glm("look", key=2512292042121000001, share="2.0", deep="false", note="5 "), "Let me look.\n" + glm("look", key=1) + "\n" + glm("stop"),
        "<tool_call>look<arg_key>key</arg_key><arg_value>7</arg_value></tool_call>", "<tool_call>stop</tool_call>", glm("nothing", a=1), "<tool_call>look\n<arg_key>key</arg_key>\n<arg_value>5",
        "<tool_call>look\n<arg_key>key", "<tool_call>lo", "no call", "", glm("look", note="a\nb", list="[1, 2]", where='{"x": 3}'), glm("look", key=1) + " and on",
        "<think>hm " + glm("look", key=1) + "</think>\nanswer", "<think>hm</think>\n" + glm("look", key=1), "hm</think>answer", "\n<think></think>\nanswer",
    ]
    yield "kimi_k2", [
        kimi(("look", BIG)), "Let me look. " + kimi(("look", '{"key": 1}'), ("stop", "{}")), kimi(("look", ODD)), kimi(("stop", "")), "no call", "",
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{"key": 1', "<|tool_calls_section_begin|><|tool_call_begin|>functions.lo",
        "<|tool_calls_section_begin|><|tool_call_begin|>look<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>", kimi(("look", '{"key":1}')) + " and on",
        "<|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{}<|tool_call_end|>", kimi(("look", "{bad")), "  \n" + kimi(("stop", "{}")),
        "<think>hm " + kimi(("look", "{}")) + "</think>answer", "<think>hm </think>" + kimi(("look", "{}")), "hm</think>answer",
    ]
    yield "deepseek_v3", [
        v3(("look", BIG)), "Let me look." + v3(("look", '{"key": 1}'), ("stop", "{}")), v3(("look", '{\n "key": 1\n}')), "no call", "",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n{\"key\"", v3(("look", "{bad")), "<｜tool▁calls▁begin｜>", v3(("stop", "{}")) + " and on",
        "<think>hm " + v3(("look", "{}")) + "</think>answer", "<think>hm</think>" + v3(("look", "{}")),
    ]
    yield "deepseek_v31", [
        v31(("look", BIG)), "Let me look." + v31(("look", '{"key": 1}'), ("stop", "{}")), v31(("look", '{\n "key": 1\n}')), "no call", "",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{\"key\"", v31(("look", "{bad")), v31(("stop", "{}")) + " and on",
        "<think>hm " + v31(("look", "{}")) + "</think>answer", "hm</think>" + v31(("look", "{}")),
    ]
    for name, wrapper in (("deepseek_v32", "function_calls"), ("deepseek_v4", "tool_calls")):
        yield name, [
            dsml(wrapper, ("look", [("key", "false", "5"), ("note", "true", "5")])), "Let me look.\n\n" + dsml(wrapper, ("look", [("key", "false", "2512292042121000001")]), ("stop", [])),
            dsml(wrapper, ("look", [("share", "false", "2.0"), ("list", "false", "[1,2]"), ("where", "false", '{"x":1}')])), "no call", "", dsml(wrapper, ("stop", [])) + " and on",
            f'<｜DSML｜{wrapper}>\n<｜DSML｜invoke name="look">\n<｜DSML｜parameter name="key" string="false">5', f'<｜DSML｜{wrapper}>\n<｜DSML｜inv', dsml(wrapper, ("look", [("arguments", "false", '{"key": 1}')])),
            "<think>hm " + dsml(wrapper, ("look", [])) + "</think>answer", "<think>hm</think>" + dsml(wrapper, ("look", [("key", "false", "1")])), "hm</think>answer",
        ]
    yield "mistral", [
        "[TOOL_CALLS]look" + BIG, "[TOOL_CALLS]look[ARGS]" + BIG, "Let me look.[TOOL_CALLS]look[ARGS]{\"key\": 1}[TOOL_CALLS]stop[ARGS]{}", '[TOOL_CALLS]look{"key": 1} and on', "[TOOL_CALLS]look{\"key\"", "[TOOL_CALLS]lo",
        "no call", "", "[TOOL_CALLS]look" + ODD, "[TOOL_CALLS]{}", "[TOOL_CALLS]look{\"key\": 1}[TOOL_CALLS] [", "[THINK]hm[/THINK]answer", "[THINK]hm[/THINK][TOOL_CALLS]stop{}", "[THINK]hm [TOOL_CALLS]stop{}[/THINK]answer", "[THINK]hm",
    ]
    yield "mistral_old", [
        '[TOOL_CALLS] [{"name": "look", "arguments": ' + BIG + "}]", 'Let me look.[TOOL_CALLS][{"name": "look", "arguments": {"key":1}}, {"name": "stop", "arguments": {}}]',
        '[TOOL_CALLS][{"name": "look", "arguments": {"key"', '[TOOL_CALLS]{"name": "look", "arguments": {"key": 1}} and on', '[TOOL_CALLS][{"name": "look"}]', "[TOOL_CALLS][1]", "[TOOL_CALLS] junk [{\"name\": \"stop\", \"arguments\": {}}] junk", "no call", "",
        '[TOOL_CALLS][{"name": "look", "arguments": ' + ODD + "}]",
    ]
    yield "llama3_json", [
        '{"name": "look", "parameters": ' + BIG + "}", '<|python_tag|>{"name": "look", "parameters": {"key": 1}}', '{"name": "look", "parameters": {"key": 1}}; {"name": "stop", "parameters": {}}', '{"name": "look", "arguments": ' + ODD + "}",
        'Let me look. {"name": "look", "parameters": {"key": 1}}', '{"name": "look", "parameters": {"key"', '{"a": 1}', "no call", "", "{bad} text", '{"name": "look", "parameters": {"key": 1}} and {"a": 1}', '{"name": "look", "parameters": {"a":{"b":1}}}\n\n', '{"type": "function", "name": "look", "parameters": {"key": "5"}}',
        '{"name": "look", "parameters": {"key": 1}} and {bad',
    ]
    for name in ("pythonic", "llama4_pythonic"):
        yield name, [
            "[look(key=2512292042121000001)]", "[look(key=1, note='two\\nlines'), stop()]", "[look(share=2.0, deep=True, maybe=None, list=[1, 2], where={'x': -3})]", '[look(note="it\'s")]', "[stop()]",
            "[look(key=1", "[look(key=1)] and on", "Let me look. [look(key=1)]", "no call", "", "[1, 2]", "[look(1)]", "[look(key=true, note=null)]", "[look(key=other)]", "[a.look(key=1)]", "[look(note='a' 'b')]", "[look(key=1),]", "[look(list=(1, 2))]", "<|python_start|>[look(key=1)]<|python_end|>", "[look(share=1e3, key=0x10)]", "[look(note='[stop()]')]", "[look(key=1, note='a, b=c')]", "[ look(key=1) ]",
            "[look(key=1)]\n[stop()]", "[look(key=1)]\n\n[stop()]\n", "[look(key=1)] [stop()]", "[look(note='\\x:41')]", "<|python_start|>[look(k", "<|python_start|>so<|python_end|>",
        ]
    yield "lfm2", [
        "<|tool_call_start|>[look(key=2512292042121000001)]<|tool_call_end|>", 'Let me look. <|tool_call_start|>[look(key=1, note="a"), stop()]<|tool_call_end|> and on', "<|tool_call_start|>[look(key=1)]", "<|tool_call_start|>[look(key=", "<|tool_call_start|>[]<|tool_call_end|>", "no call", "", "<|tool_call_start|>look(key=1)<|tool_call_end|>",
        "<|tool_call_start|>[look(deep=true, maybe=None, where={'x': 1})]<|tool_call_end|>", "<|tool_call_start|>[look(note='two\nlines')]<|tool_call_end|>", "<|tool_call_start|>[look(key=07)]<|tool_call_end|>", "<|tool_call_start|>[look(from=1)]<|tool_call_end|>", "<|tool_call_start|>[stop()]<|tool_call_end|>[stop()]<|tool_call_end|>fine",
        "<|tool_call_start|>[look(note='sed -n '1,9p' f.py')]<|tool_call_end|>", "<|tool_call_start|>[look(note=\"say \"hi, you\" now\", key=2)]<|tool_call_end|>", "<|tool_call_start|>[look(note='python3 -c 'print('a')' done', key=1), stop()]<|tool_call_end|>",
        "<|tool_call_start|>[look(note='a', 'b', key=1)]<|tool_call_end|>", "<|tool_call_start|>[look(note='a 'b', 'c' d')]<|tool_call_end|>", "<|tool_call_start|>[look(note='it's\nfine')]<|tool_call_end|>", "<|tool_call_start|>[look(note='say \\'a' 'b\\' now')]<|tool_call_end|>", "<|tool_call_start|>[look(note='echo 'x', key='y')]<|tool_call_end|>",
        "<think>hm <|tool_call_start|>[stop()]<|tool_call_end|></think>answer", "<think>hm</think><|tool_call_start|>[stop()]<|tool_call_end|>",
    ]
    yield "gemma4", [
        gemma("look", "key:2512292042121000001"), "Let me look." + gemma("look", 'key:5,note:<|"|>a, b: {c}<|"|>,deep:true') + gemma("stop", ""), gemma("look", "share:2.0,list:[1,2],where:{x:3}"), gemma("stop", ""), "no call", "", '<|tool_call>call:look{note:<|"|>ab', "<|tool_call>call:look{key:5", "<|tool_call>call:lo", gemma("nothing", 'a:1,b:[<|"|>x<|"|>,{c:null}]'), gemma("look", "key:5") + " and on", "<|tool_call>:look{key:5}<tool_call|>",
        "<|channel>thought\nhm<channel|>answer", "<|channel>thought\nhm<channel|>" + gemma("look", "key:5"), "<|channel>thought\nhm " + gemma("look", "key:5") + "<channel|>answer", "<|channel>thought\nhm", "thought\nhm<channel|>answer",
    ]
    yield "functiongemma", [
        "<start_function_call>call:look{key:<escape>2512292042121000001<escape>}<end_function_call>", "so <start_function_call>call:look{note:<escape>a<escape>,key:<escape>1<escape>}<end_function_call><start_function_call>call:stop{}<end_function_call>", "<start_function_call>call:look{note:<escape>a", "no call", "", "<start_function_call>junk", "<start_function_call>call:look{share:<escape>2.0<escape>,list:<escape>[1,2]<escape>}<end_function_call>",
    ]


def cases():
    reasonings = {
        "hermes": ["deepseek_r1", "qwen3"], "qwen3_coder": ["qwen3"], "glm45": ["glm45"], "kimi_k2": ["kimi_k2"], "deepseek_v3": ["deepseek_r1", "deepseek_v3"], "deepseek_v31": ["deepseek_r1"],
        "deepseek_v4": ["deepseek_v4"], "deepseek_v32": ["deepseek_r1"], "mistral": ["mistral"], "gemma4": ["gemma4"], "lfm2": ["deepseek_r1"],
    }
    for name, said in texts():
        tools = name.removesuffix("_old")
        for text in said:
            yield {"tools": tools, "text": text, **({"old": True} if name != tools else {})}
            for reasoning in reasonings.get(name, []):
                yield {"tools": tools, "reasoning": reasoning, "text": text}
        if name in ("qwen3_coder", "glm45", "kimi_k2", "deepseek_v3", "deepseek_v4"):
            for text in said[-4:]:
                reasoning = reasonings[name][-1]
                off = "thinking" if name in ("kimi_k2", "deepseek_v3") else "enable_thinking"
                for flag in (False, True):
                    yield {"tools": tools, "reasoning": reasoning, "text": text, "kwargs": {off: flag}}
