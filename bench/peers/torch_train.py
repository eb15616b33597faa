"""An optimizer step in eager PyTorch, for bench/engine-train.ts to time beside ours.

Full training: a decoder written by hand (no Hugging Face code around it), SDPA attention, fused AdamW, clip_grad_norm_.
LoRA: PEFT on transformers' Qwen3ForCausalLM. Both load the weights and the batch that our side wrote.

Reads one JSON request per line and answers each with one line:
  {"do": "step", "learning_rate": 1e-4}  ->  {"wall_s", "cpu_s", "loss", "entropy", "grad_norm", "peak_mb"}
CPU time is that of the whole process, all its threads; so is the most memory that it ever had.
"""

import argparse
import json
import resource
import sys
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

CLIP_HIGH = 3.0
MAX_GRAD_NORM = 1.0


class Attention(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, self.size = config["hidden_size"], config["head_dim"]
        self.heads, self.pairs = config["num_attention_heads"], config["num_key_value_heads"]
        linear = lambda rows, columns: torch.nn.Linear(columns, rows, bias=False)
        self.q_proj = linear(self.heads * self.size, hidden)
        self.k_proj = linear(self.pairs * self.size, hidden)
        self.v_proj = linear(self.pairs * self.size, hidden)
        self.o_proj = linear(hidden, self.heads * self.size)
        self.q_norm = torch.nn.RMSNorm(self.size, config["rms_norm_eps"])
        self.k_norm = torch.nn.RMSNorm(self.size, config["rms_norm_eps"])

    def forward(self, x, cosine, sine):
        batch, length, _ = x.shape
        split = lambda projected, count: projected.view(batch, length, count, self.size)
        query = rotate(self.q_norm(split(self.q_proj(x), self.heads)).transpose(1, 2), cosine, sine)
        key = rotate(self.k_norm(split(self.k_proj(x), self.pairs)).transpose(1, 2), cosine, sine)
        value = split(self.v_proj(x), self.pairs).transpose(1, 2)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.o_proj(attended.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, wide = config["hidden_size"], config["intermediate_size"]
        self.gate_proj = torch.nn.Linear(hidden, wide, bias=False)
        self.up_proj = torch.nn.Linear(hidden, wide, bias=False)
        self.down_proj = torch.nn.Linear(wide, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = FeedForward(config)
        self.input_layernorm = torch.nn.RMSNorm(config["hidden_size"], config["rms_norm_eps"])
        self.post_attention_layernorm = torch.nn.RMSNorm(config["hidden_size"], config["rms_norm_eps"])

    def forward(self, x, cosine, sine):
        x = x + self.self_attn(self.input_layernorm(x), cosine, sine)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(torch.nn.Module):
    """Qwen3 with tied embeddings; parameters carry Hugging Face's names without their leading "model."."""

    def __init__(self, config):
        super().__init__()
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

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, self.cosine[:length], self.sine[:length])
        return self.norm(x) @ self.embed_tokens.weight.T


def rotate(x, cosine, sine):
    half = x.shape[-1] // 2
    return x * cosine + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sine


def open_full(folder, config):
    model = Decoder(config)
    weights = load_file(f"{folder}/model.safetensors")
    model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in weights.items()})
    return model, model


def open_lora(folder, lora):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    model = PeftModel.from_pretrained(base, lora, is_trainable=True)
    return model, lambda tokens: model(input_ids=tokens, use_cache=False).logits


def load_batch(path):
    with open(path) as file:
        samples = json.load(file)
    column = lambda name, kind: torch.tensor([sample[name] for sample in samples], dtype=kind)
    tokens = column("tokenIds", torch.long)
    return {
        "tokens": tokens[:, :-1].contiguous(),
        "targets": tokens[:, 1:].contiguous(),
        "mask": column("lossMask", torch.float32)[:, 1:].contiguous(),
        "behavior": column("behaviorLogprobs", torch.float32)[:, 1:].contiguous(),
        "advantages": column("advantages", torch.float32)[:, 1:].contiguous(),
    }


def train_step(model, logits_of, optimizer, batch):
    """CISPO (MiniMax-M1, 2025, eq. 4) with the entropy as a metric, then clipping and AdamW."""
    mask, total = batch["mask"], batch["mask"].sum()
    vocabulary = logits_of(batch["tokens"]).log_softmax(-1)
    logprobs = vocabulary.gather(-1, batch["targets"][..., None])[..., 0]
    ratio = (logprobs - batch["behavior"]).exp().detach()
    loss = -(ratio.clamp(max=CLIP_HIGH) * batch["advantages"] * logprobs * mask).sum() / total
    with torch.no_grad():
        entropy = -((vocabulary.exp() * vocabulary).sum(-1) * mask).sum() / total
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], MAX_GRAD_NORM)
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.item(), "entropy": entropy.item(), "grad_norm": norm.item()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, help="folder with config.json and model.safetensors")
    parser.add_argument("--batch", required=True, help="JSON: rows of equal length")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--lora", help="folder of a PEFT adapter to train instead of the weights")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_num_interop_threads(1)

    with open(f"{arguments.model}/config.json") as file:
        config = json.load(file)
    if arguments.lora:
        model, logits_of = open_lora(arguments.model, arguments.lora)
    else:
        model, logits_of = open_full(arguments.model, config)
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.01, fused=True)
    batch = load_batch(arguments.batch)

    for line in sys.stdin:
        request = json.loads(line)
        for group in optimizer.param_groups:
            group["lr"] = request["learning_rate"]
        wall, cpu = time.perf_counter(), time.process_time()
        metrics = train_step(model, logits_of, optimizer, batch)
        wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 if sys.platform == "linux" else 1024) / 1024
        print(json.dumps({"wall_s": wall_s, "cpu_s": cpu_s, "peak_mb": peak_mb, **metrics}), flush=True)


main()
