import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import { type VllmSpec, vllmArguments } from '../../config/models/vllm-spec.ts';
import { trainerGpusOf } from '../../config/gpu-settings.ts';

const run = (more: string, model = '/models/qwen') => `
model = "${model}"
max_steps = 2
batch_size = 8
rollouts_per_example = 4
[[env]]
id = "reverse-text"
${more}`;

function specOf(text: string, dialect?: string) {
  const parsed = parseRunConfig(text, { file: 'run.toml', ...(dialect ? { dialect } : {}) });
  assert(parsed.ok, JSON.stringify(parsed.ok ? null : parsed.problems, null, 1));
  return parsed.spec;
}
function vllmOf(text: string, dialect?: string): VllmSpec {
  const { inference } = specOf(text, dialect);
  assert(inference.kind === 'vllm', inference.kind);
  return inference.vllm;
}
const problemsOf = (text: string): string => {
  const parsed = parseRunConfig(text, { file: 'run.toml' });
  return parsed.ok ? '' : parsed.problems.map(({ expected, received }) => `${expected} | ${received}`).join('\n');
};

test('[inference] kind = "vllm" says what vLLM is started with: its own arguments, and what training needs', () => {
  const vllm = vllmOf(
    run(`[lora]
r = 12
[inference]
kind = "vllm"
gpu_ids = [2, 3]
[inference.vllm]
tensor_parallel_size = 2
enforce_eager = true
enable_prefix_caching = false
tool_call_parser = "hermes"
hf_overrides = { rope_theta = 1000 }
max_loras = 16`),
  );
  assert.deepEqual(vllm.gpuIds, [2, 3]);
  const line = vllmArguments(vllm, 8001).join(' ');
  for (const part of [
    '--host 127.0.0.1 --port 8001',
    '--logprobs-mode processed_logprobs',
    '--tensor-parallel-size 2',
    '--enforce-eager ',
    '--no-enable-prefix-caching',
    '--tool-call-parser hermes',
    '--hf-overrides {"rope_theta":1000}',
    '--enable-lora --max-lora-rank 16',
    '--max-loras 16 --max-cpu-loras 16',
  ]) {
    assert(`${line} `.includes(part), `${part} is not in ${line}`);
  }
});

test('a server that runs share may be started for larger adapters than those of its own run, never for smaller ones', () => {
  const rankOf = (rank: number) => {
    const vllm = vllmOf(run(`[lora]\nr = 16\n[inference]\nkind = "vllm"\nvllm = { max_lora_rank = ${rank} }`));
    return /--max-lora-rank (\d+)/.exec(vllmArguments(vllm, 8001).join(' '))?.[1];
  };
  assert.deepEqual([rankOf(64), rankOf(8)], ['64', '16']);
});

test('a run that trains all weights, or begins with a warm-up, has its weights exchanged; [lora] of a model as it is has not', () => {
  const kind = '[inference]\nkind = "vllm"\n';
  const taken = (more: string, model?: string) => {
    const { loraRank, servesBase } = vllmOf(run(more, model));
    return [loraRank, servesBase];
  };
  assert.deepEqual(taken(kind), [null, true]);
  assert.deepEqual(taken(`[lora]\n${kind}`), [16, true]);
  assert.deepEqual(taken(`[lora]\n[sft]\nsteps = 3\n${kind}`), [16, false]);
  assert.deepEqual(taken(`[lora]\n${kind}`, 'preset:reverse-text-0.2m'), [16, false]);
});

test('what Ratchet gives vLLM itself, and a server that others can reach without a key, is refused', () => {
  const asked = (more: string) => problemsOf(run(`[inference]\nkind = "vllm"\n${more}`));
  assert.match(asked('vllm = { api_key = "abc" }'), /no secrets.*not repeated here/);
  assert.match(asked('vllm = { logprobs_mode = "raw_logprobs" }'), /processed_logprobs/);
  assert.match(asked('vllm = { api_server_count = 4 }'), /knows the adapters and the weights/);
  assert.match(asked('host = "0.0.0.0"'), /api_key_var beside it/);
  assert.match(asked('host = "0.0.0.0"\napi_key_var = "KEY"'), /development routes, which ask for no key/);
  assert.equal(problemsOf(run('[lora]\n[inference]\nkind = "vllm"\nhost = "0.0.0.0"\napi_key_var = "KEY"')), '');
  assert.match(asked('url = "http://a:8000"\nprogram = "python3"'), /run already/);
  assert.match(problemsOf(run('[inference]\nprogram = "python3"')), /kind = "vllm" beside it/);
});

test('all GPUs of the server are used: where the file does not say how many copies of the model there are, as many as fit', () => {
  const asked = (more: string) => run(`[inference]\nkind = "vllm"\n${more}`);
  const copies = (more: string) => vllmOf(asked(more)).args['data_parallel_size'];
  assert.equal(copies('gpus = 4'), 4);
  assert.equal(copies('gpu_ids = [4, 5, 6, 7]\nvllm = { tensor_parallel_size = 2 }'), 2);
  assert.equal(copies('gpus = 4\nvllm = { tensor-parallel-size = 4 }'), undefined);
  assert.equal(copies('gpus = 4\nvllm = { data_parallel_size = 3 }'), 3);
  assert.equal(copies('gpus = 1'), undefined);
  assert.match(
    problemsOf(asked('gpus = 3\nvllm = { tensor_parallel_size = 2 }')),
    /fits the 3 GPUs .* 2 for each copy/,
  );
  assert.match(problemsOf(asked('gpu_ids = [0, 1]\nvllm = { tensor_parallel_size = 4 }')), /fits the 2 GPUs/);
  assert.match(problemsOf(asked('gpus = 2\nvllm = { data_parallel_size = 4 }')), /fits the 2 GPUs .* 4 copies/);
});

test('a prime-rl file that says how many GPUs sample has a copy of the model on each, as there', () => {
  const prime = `[model]
name = "Qwen/Qwen3-0.6B"
[deployment]
num_infer_gpus = 4
num_train_gpus = 2
[orchestrator]
batch_size = 8
group_size = 4
[[orchestrator.train.source]]
env = { taskset = { id = "owner/gsm8k" } }
[inference.vllm]
tensor_parallel_size = 2
[ratchet.inference]
kind = "vllm"
`;
  const { gpuIds, args } = vllmOf(prime, 'prime-rl');
  assert.deepEqual([gpuIds, args['data_parallel_size']], [[0, 1, 2, 3], 2]);
});

test('a prime-rl 0.4 file starts its vLLM with the settings it has, once it is told to', () => {
  const prime = `inference_gpu_ids = [0, 1]
trainer_gpu_ids = [2]
[trainer.model]
name = "Qwen/Qwen3-0.6B"
[orchestrator]
batch_size = 8
rollouts_per_example = 4
max_steps = 2
[orchestrator.model]
name = "Qwen/Qwen3-0.6B"
[[orchestrator.env]]
id = "owner/gsm8k"
[inference.model]
enforce_eager = true
tool_call_parser = "hermes"
[inference.parallel]
dp = 2
[inference.server]
port = 8123
[ratchet.inference]
kind = "vllm"
[ratchet.trainer]
provider = "cuda"
`;
  const spec = specOf(prime, 'prime-rl-0.4');
  assert(spec.inference.kind === 'vllm');
  const { gpuIds, port, args } = spec.inference.vllm;
  assert.deepEqual([gpuIds, port], [[0, 1], 8123]);
  assert.deepEqual(args, { enforce_eager: true, tool_call_parser: 'hermes', data_parallel_size: 2 });
  assert.deepEqual(trainerGpusOf(spec), [2]);
  assert.deepEqual([spec.requested?.inferenceGpus ?? null, spec.requested?.vllm ?? {}], [null, {}]);
});
