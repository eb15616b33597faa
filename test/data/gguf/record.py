"""Records what the package gguf makes of packed blocks, and a small GGUF file written by it.

    uv venv /tmp/gguf && uv pip install --python /tmp/gguf/bin/python gguf==0.17.1 && /tmp/gguf/bin/python test/data/gguf/record.py

blocks.json: for each ggml type random blocks (base64) and what gguf.quants.dequantize gives (32-bit floats, base64); and what quantize makes of floats.
tiny-llama.gguf: two layers; weight i of a tensor is `number(name, i)`, queries and keys permuted as convert_hf_to_gguf.py permutes them.
"""
import base64, json, os
import numpy as np
from gguf import GGMLQuantizationType as T, GGUFWriter
from gguf.quants import dequantize, quantize

here = os.path.dirname(os.path.abspath(__file__))
rng = np.random.default_rng(0)

# type: weights and bytes of a block, places of its half-precision scales
packings = {
    T.Q4_0: (32, 18, [0]), T.Q4_1: (32, 20, [0, 2]), T.Q5_0: (32, 22, [0]), T.Q5_1: (32, 24, [0, 2]), T.Q8_0: (32, 34, [0]),
    T.Q4_K: (256, 144, [0, 2]), T.Q5_K: (256, 176, [0, 2]), T.Q6_K: (256, 210, [208]),
    T.F16: (1, 2, [0]), T.BF16: (1, 2, None),
    T.Q2_K: (256, 84, [80, 82]), T.Q3_K: (256, 110, [108]), T.IQ4_NL: (32, 18, [0]), T.IQ4_XS: (256, 136, [0]),
}
recorded = []
for kind, (weights, size, scales) in packings.items():
    blocks = 4 if weights > 1 else 64
    data = rng.integers(0, 256, (blocks, size), dtype=np.uint8)
    if scales is None:
        data = (rng.standard_normal(blocks).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(blocks, 2)
    else:
        for at in scales:
            data[:, at : at + 2] = rng.standard_normal(blocks).astype(np.float16).view(np.uint8).reshape(blocks, 2)
    values = dequantize(data.reshape(-1), kind).astype(np.float32)
    assert values.size == blocks * weights and np.isfinite(values).all()
    encode = lambda array: base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    recorded.append({"type": int(kind), "name": kind.name, "packed": encode(data), "values": encode(values)})
values = np.concatenate([rng.standard_normal(96), np.zeros(32), 1e4 * rng.standard_normal(32), 1e-7 * rng.standard_normal(32), np.arange(-16, 16) * 127 / 16]).astype(np.float32)
quantized = {"type": "Q8_0", "values": encode(values), "packed": encode(quantize(values, T.Q8_0))}
with open(f"{here}/blocks.json", "w") as file:
    json.dump({"gguf": "0.17.1", "packings": recorded, "quantized": quantized}, file, indent=1)
    file.write("\n")

HIDDEN, HEADS, KEY_VALUE_HEADS, HEAD, FEED_FORWARD, VOCABULARY, LAYERS = 64, 4, 2, 16, 96, 262, 2


def number(name, shape):
    index = np.arange(int(np.prod(shape)), dtype=np.int64)
    return (((index * 7919 + 31 * len(name)) % 255 - 127) / 128).astype(np.float32).reshape(shape)


def permuted(weights, heads):
    return weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


writer = GGUFWriter(f"{here}/tiny-llama.gguf", "llama")
writer.add_block_count(LAYERS)
writer.add_context_length(128)
writer.add_embedding_length(HIDDEN)
writer.add_feed_forward_length(FEED_FORWARD)
writer.add_head_count(HEADS)
writer.add_head_count_kv(KEY_VALUE_HEADS)
writer.add_rope_dimension_count(HEAD)
writer.add_rope_freq_base(100000.0)
writer.add_layer_norm_rms_eps(1e-5)
writer.add_vocab_size(VOCABULARY)
writer.add_tokenizer_model("gpt2")
writer.add_tokenizer_pre("smollm")
byte_texts = [chr(c) for c in list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))]
byte_texts += [chr(256 + n) for n in range(256 - len(byte_texts))]
tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] + byte_texts + ["th", "the", "Ġthe"]
writer.add_token_list(tokens)
writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
writer.add_token_merges(["t h", "th e", "Ġ the"])
writer.add_bos_token_id(1)
writer.add_eos_token_id(2)
writer.add_pad_token_id(2)
writer.add_add_bos_token(False)
writer.add_chat_template("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def add(name, hugging_face, shape, heads=None):
    weights = number(hugging_face, shape)
    if heads is not None:
        weights = permuted(weights, heads)
    writer.add_tensor(name, weights if len(shape) == 1 else weights.astype(np.float16))


add("token_embd.weight", "model.embed_tokens.weight", (VOCABULARY, HIDDEN))
add("output_norm.weight", "model.norm.weight", (HIDDEN,))
for layer in range(LAYERS):
    ours, theirs = f"blk.{layer}", f"model.layers.{layer}"
    add(f"{ours}.attn_norm.weight", f"{theirs}.input_layernorm.weight", (HIDDEN,))
    add(f"{ours}.ffn_norm.weight", f"{theirs}.post_attention_layernorm.weight", (HIDDEN,))
    add(f"{ours}.attn_q.weight", f"{theirs}.self_attn.q_proj.weight", (HEADS * HEAD, HIDDEN), HEADS)
    add(f"{ours}.attn_k.weight", f"{theirs}.self_attn.k_proj.weight", (KEY_VALUE_HEADS * HEAD, HIDDEN), KEY_VALUE_HEADS)
    add(f"{ours}.attn_v.weight", f"{theirs}.self_attn.v_proj.weight", (KEY_VALUE_HEADS * HEAD, HIDDEN))
    add(f"{ours}.attn_output.weight", f"{theirs}.self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD))
    add(f"{ours}.ffn_gate.weight", f"{theirs}.mlp.gate_proj.weight", (FEED_FORWARD, HIDDEN))
    add(f"{ours}.ffn_up.weight", f"{theirs}.mlp.up_proj.weight", (FEED_FORWARD, HIDDEN))
    add(f"{ours}.ffn_down.weight", f"{theirs}.mlp.down_proj.weight", (HIDDEN, FEED_FORWARD))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
