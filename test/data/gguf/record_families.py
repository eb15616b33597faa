"""Small models of Gemma 3, Mistral and Qwen3-MoE as llama.cpp's own converter writes them, and texts as llama.cpp and SentencePiece cut them.

    git clone https://github.com/ggml-org/llama.cpp /tmp/llama.cpp      # tag v0.5.0
    uv venv /tmp/gguf && uv pip install --python /tmp/gguf/bin/python torch==2.15.0 transformers==5.24.0 sentencepiece==0.2.3 gguf==0.17.1
    /tmp/gguf/bin/python test/data/gguf/record_families.py /tmp/llama.cpp
    node test/data/gguf/record-tokens.mjs FOLDER-OF-NODE-LLAMA-CPP

tiny-NAME.gguf: weight i of a tensor is `number(name, i)`, norms and what chooses experts as 32-bit floats, the rest as halves.
sentencepiece.json: the texts, and the ids that SentencePiece gives of the model each file was made with.
"""
import json, os, subprocess, sys, tempfile
import numpy as np
import sentencepiece
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, MistralConfig, MistralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

here = os.path.dirname(os.path.abspath(__file__))
# Qwen's tokenizers are known to the converter by digests; the small ones here are SentencePiece's.
convert = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import convert_hf_to_gguf
from conversion.qwen import Qwen3MoeModel
Qwen3MoeModel.set_vocab = Qwen3MoeModel._set_vocab_sentencepiece
convert_hf_to_gguf.main()
"""
texts = [
    "Hello world", " two  blanks and\ttabs\n\n", "Über 7 + 5 = 12, größer", "naïve 日本 🙂", "the theme of these mothers, then", "x=[1,2,3];\n  return x", "aaaa bbbb abab",
]


def number(name, shape):
    index = np.arange(int(np.prod(shape)), dtype=np.int64)
    return torch.from_numpy((((index * 7919 + 31 * len(name)) % 255 - 127) / 128).astype(np.float32).reshape(shape))


def train(folder, prefix, vocabulary, own):
    corpus = os.path.join(folder, "corpus.txt")
    with open(__file__, encoding="utf-8") as source, open(corpus, "w", encoding="utf-8") as out:
        out.write(source.read() + "\n".join(texts[:1] + ["the other mother then gathers them", "größer und größer"] * 20))
    sentencepiece.SentencePieceTrainer.train(
        input=corpus, model_prefix=os.path.join(folder, "tokenizer"), vocab_size=vocabulary, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=prefix, user_defined_symbols=own,
        pad_id=-1, split_digits=True, allow_whitespace_only_pieces=True, num_threads=1, minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_file=os.path.join(folder, "tokenizer.model"))


def record(name, make, *, prefix, own=()):
    with tempfile.TemporaryDirectory() as folder:
        pieces = train(folder, prefix, 420, list(own))
        model = make(pieces.vocab_size())
        state = {key: number(key, value.shape) for key, value in model.state_dict().items()}
        if model.config.tie_word_embeddings:
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        model.load_state_dict(state)
        model.save_pretrained(folder)
        with open(f"{folder}/tokenizer_config.json", "w") as file:
            json.dump({"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True, "chat_template": "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}{% endfor %}"}, file)
        subprocess.run([sys.executable, "-c", convert, sys.argv[1], folder, "--outtype", "f16", "--outfile", f"{here}/tiny-{name}.gguf"], check=True)
        return {"ids": [pieces.encode(text) for text in texts]}


small = dict(hidden_size=32, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1, head_dim=16, max_position_embeddings=128, bos_token_id=1, eos_token_id=2)
torch.manual_seed(0)
recorded = {
    "gemma3": record("gemma3", lambda size: Gemma3ForCausalLM(Gemma3TextConfig(**small, vocab_size=size, num_hidden_layers=7, sliding_window=8, query_pre_attn_scalar=16, pad_token_id=None)), prefix=False, own=["<start_of_turn>", "\n\n"]),
    "mistral": record("mistral", lambda size: MistralForCausalLM(MistralConfig(**small, vocab_size=size, num_hidden_layers=2, sliding_window=None, rope_theta=1e6)), prefix=True),
    "qwen3moe": record("qwen3moe", lambda size: Qwen3MoeForCausalLM(Qwen3MoeConfig(**small, vocab_size=size, num_hidden_layers=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True)), prefix=True),
}
with open(f"{here}/sentencepiece.json", "w", encoding="utf-8") as file:
    json.dump({"sentencepiece": sentencepiece.__version__, "texts": texts, "models": recorded}, file, indent=1, ensure_ascii=False)
    file.write("\n")
