"""Sampling with a key-value cache in eager PyTorch, for bench/engine-decode.ts to time beside ours.

A decoder written by hand (no Hugging Face code around it), SDPA attention over a preallocated cache, torch.multinomial, and
the log probability of every sampled token. Loads the weights that our side wrote.

Reads one JSON request per line and answers each with one line:
  {"do": "decode", "prompts": [[id, ...], ...], "new_tokens": 24}  ->  {"wall_s", "cpu_s"}
  {"do": "score", "tokens": [[id, ...], ...], "prompt_length": 8}   ->  {"logprobs": [[...], ...]}
Prompts are of one length. CPU time is that of the whole process, all its threads.
"""

import argparse
import json
import sys
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file


class Layer(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, wide, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
        epsilon = config["rms_norm_eps"]
        self.heads, self.pairs, self.size = config["num_attention_heads"], config["num_key_value_heads"], size
        linear = lambda rows, columns: torch.nn.Linear(columns, rows, bias=False)
        self.self_attn = torch.nn.ModuleDict(
            {
                "q_proj": linear(self.heads * size, hidden),
                "k_proj": linear(self.pairs * size, hidden),
                "v_proj": linear(self.pairs * size, hidden),
                "o_proj": linear(hidden, self.heads * size),
                "q_norm": torch.nn.RMSNorm(size, epsilon),
                "k_norm": torch.nn.RMSNorm(size, epsilon),
            }
        )
        self.mlp = torch.nn.ModuleDict(
            {"gate_proj": linear(wide, hidden), "up_proj": linear(wide, hidden), "down_proj": linear(hidden, wide)}
        )
        self.input_layernorm = torch.nn.RMSNorm(hidden, epsilon)
        self.post_attention_layernorm = torch.nn.RMSNorm(hidden, epsilon)

    def forward(self, x, cosine, sine, cache, start):
        batch, length, _ = x.shape
        part, end = self.self_attn, start + length
        normed = self.input_layernorm(x)
        split = lambda projected, count: projected.view(batch, length, count, self.size)
        query = rotate(part["q_norm"](split(part["q_proj"](normed), self.heads)).transpose(1, 2), cosine, sine)
        cache[0][:, :, start:end] = rotate(
            part["k_norm"](split(part["k_proj"](normed), self.pairs)).transpose(1, 2), cosine, sine
        )
        cache[1][:, :, start:end] = split(part["v_proj"](normed), self.pairs).transpose(1, 2)
        attended = F.scaled_dot_product_attention(
            query, cache[0][:, :, :end], cache[1][:, :, :end], is_causal=length > 1, enable_gqa=True
        )
        x = x + part["o_proj"](attended.transpose(1, 2).reshape(batch, length, -1))
        wide, normed = self.mlp, self.post_attention_layernorm(x)
        return x + wide["down_proj"](F.silu(wide["gate_proj"](normed)) * wide["up_proj"](normed))


class Decoder(torch.nn.Module):
    """Qwen3 with tied embeddings; parameters carry Hugging Face's names without their leading "model."."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = torch.nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = torch.nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = torch.nn.RMSNorm(config["hidden_size"], config["rms_norm_eps"])
        size = config["head_dim"]
        angles = torch.outer(
            torch.arange(config["max_position_embeddings"]).double(),
            config["rope_theta"] ** (-2 * torch.arange(size // 2).double() / size),
        )
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cosine", angles.cos().float(), persistent=False)
        self.register_buffer("sine", angles.sin().float(), persistent=False)

    def make_cache(self, batch, length):
        shape = (batch, self.config["num_key_value_heads"], length, self.config["head_dim"])
        return [(torch.zeros(shape), torch.zeros(shape)) for _ in self.layers]

    def forward(self, tokens, caches, start):
        end = start + tokens.shape[1]
        x = self.embed_tokens(tokens)
        for layer, cache in zip(self.layers, caches):
            x = layer(x, self.cosine[start:end], self.sine[start:end], cache, start)
        return x

    def logits(self, hidden):
        return self.norm(hidden) @ self.embed_tokens.weight.T


def rotate(x, cosine, sine):
    half = x.shape[-1] // 2
    return x * cosine + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sine


def decode(model, prompts, new_tokens):
    batch, start = prompts.shape[0], 0
    caches = model.make_cache(batch, prompts.shape[1] + new_tokens)
    fed, ids, logprobs = prompts, [], []
    for _ in range(new_tokens):
        hidden = model(fed, caches, start)[:, -1]
        start += fed.shape[1]
        vocabulary = model.logits(hidden).log_softmax(-1)
        fed = torch.multinomial(vocabulary.exp(), 1)
        ids.append(fed)
        logprobs.append(vocabulary.gather(-1, fed))
    return torch.cat(ids, 1), torch.cat(logprobs, 1)


def score(model, tokens, prompt_length):
    hidden = model(tokens, model.make_cache(*tokens.shape), 0)[:, prompt_length - 1 : -1]
    vocabulary = model.logits(hidden).log_softmax(-1)
    return vocabulary.gather(-1, tokens[:, prompt_length:, None])[..., 0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, help="folder with config.json and model.safetensors")
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_num_interop_threads(1)

    with open(f"{arguments.model}/config.json") as file:
        model = Decoder(json.load(file))
    weights = load_file(f"{arguments.model}/model.safetensors")
    model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in weights.items()})

    with torch.inference_mode():
        for line in sys.stdin:
            request = json.loads(line)
            if request["do"] == "score":
                logprobs = score(model, torch.tensor(request["tokens"]), request["prompt_length"])
                answer = {"logprobs": logprobs.tolist()}
            else:
                prompts = torch.tensor(request["prompts"])
                wall, cpu = time.perf_counter(), time.process_time()
                decode(model, prompts, request["new_tokens"])
                answer = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
            print(json.dumps(answer), flush=True)


main()
