"""Records what jinja2, set up as transformers does, writes for JSON texts: python3 record.py golden.json"""
import json, sys, jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
texts = [
 '{"key": 2512292042121000001}', '{"a": 2.0}', '{"a": 1e400}', '{"a": -1e400}', '{"b": 1, "10": 2, "2": 3, "a": 4}',
 '{"a": 2.50, "b": 0.10, "c": 1E5, "d": 1e16, "e": 1.5e-7, "f": 100000000000000000000.0}', '{"a": -0, "b": -0.0, "c": 0.0}',
 '{"a": [1.0, 2, 3.10, {"7": 9007199254740993, "x": 1.0}]}', '{"a": 123456789012345678901234567890, "b": -9223372036854775809}',
 '{"a": 0.1000000000000000055511151231257827, "b": 3.141592653589793238}', '{"a": true, "b": null, "c": "2.0", "d": "é\\u00e9\\n"}',
 '{}', '{"a": {"3": 1, "1": 2}, "a2": [], "a3": {}}', '{"a": 1, "b": 2, "a": 3.0}', '{"a": NaN, "b": Infinity, "c": -Infinity}',
 '{"a":9007199254740992,"b":9007199254740993,"c":9007199254740991.0}', '  {"x":1.0}\n',
]
templates = {
 "tojson": "{{ value | tojson }}",
 "indented": "{{ value | tojson(indent=2) }}",
 "items": "{% for k, v in value.items() %}{{ k }}={{ v }};{% endfor %}",
 "kinds": "{% for v in value.values() %}{{ v is integer }},{{ v is float }},{{ v is number }};{% endfor %}",
 "shown": "{{ value }}",
}
out = []
for t in texts:
    v = json.loads(t)
    out.append({"text": t, **{n: env.from_string(s).render(value=v) for n, s in templates.items()}})
tool = '{"type": "function", "function": {"name": "scale", "description": "d", "parameters": {"type": "object", "properties": {"by": {"type": "number", "default": 1.0, "minimum": 2.50, "maximum": 1e400, "enum": [1.0, 2, 9007199254740993]}, "10": {"type": "integer", "default": 5}, "2": {"const": 1E5}}, "required": ["by"]}}}'
tools = [json.loads(tool)]
json.dump({"templates": templates, "values": out, "tool": {"text": tool, "tojson": env.from_string(templates["tojson"]).render(value=tools[0])}}, open(sys.argv[1], "w"), ensure_ascii=False, indent=1)
