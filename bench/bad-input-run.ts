import { cpSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { sha256 } from '../store/file-store.ts';
import { teacherRowsAtOnce } from '../core/limits.ts';
import { encodeTaught } from '../runs/rollouts/batch-parts.ts';
import { layout } from '../runs/layout.ts';
import type { StepCommit } from '../core/rl/run-state.ts';
import type { Bench } from './measurement.ts';
import { runProgram, trainWithCli } from './run-project.ts';

const repository = fileURLToPath(new URL('..', import.meta.url));

/**
 * The smallest run that leaves every kind of object: adapters and their base, a warm-up from a file, a template, evaluations, a branch
 * that looked for a better prompt and took it, pools, checkpoints, and a second lineage. Objects that only failures leave are added to it.
 */
export async function trainRun(bench: Bench, folder: string, run: string): Promise<void> {
  const reflection = createServer((request, response) => {
    request.resume().on('end', () => {
      const message = { role: 'assistant', content: 'Better:\n```\nWrite it backwards.\n```' };
      const choices = [{ index: 0, finish_reason: 'stop', message }];
      response.writeHead(200, { 'content-type': 'application/json' });
      response.end(JSON.stringify({ id: 'r', object: 'chat.completion', created: 0, model: 'm', choices }));
    });
  });
  await new Promise<void>((resolve) => void reflection.listen(0, '127.0.0.1', resolve));
  try {
    const { port } = reflection.address() as AddressInfo;
    const config = path.join(folder, `${run}.toml`);
    writeFileSync(config, runFile(3, `http://127.0.0.1:${port}/v1`));
    await trainWithCli(bench, { folder, run, config, overrides: [] });
    bench.doing('going back a step, into a second lineage');
    const env = { ...process.env };
    delete env['TEMPORAL_ADDRESS'];
    const ratchet = path.join(repository, 'cli/ratchet.mjs');
    await runProgram(bench, process.execPath, [ratchet, 'rewind', run, '--step', '2'], folder, env);
    leaveRest(path.join(folder, 'outputs', run));
  } finally {
    reflection.close();
  }
}

/**
 * Adds objects that a run's folder only has after a death, a drift or a repair, or through a teacher or wandb; made
 * from its own files.
 */
function leaveRest(place: string): void {
  const put = (key: string, text: string | Uint8Array): void => {
    mkdirSync(path.dirname(path.join(place, key)), { recursive: true });
    writeFileSync(path.join(place, key), text);
  };
  const copied = (from: string, to: string): void =>
    cpSync(path.join(place, from), path.join(place, to), { recursive: true });
  const { policy } = JSON.parse(readFileSync(path.join(place, layout.commit('l2', 3)), 'utf8')) as StepCommit;
  const digest = policy.file.sha256;
  copied(policy.weights, `${layout.pending('l2', 3, `${digest.slice(0, 16)}.0a1b2c3d`)}weights/`);
  copied(layout.commit('l2', 3), layout.quarantined(layout.commit('l2', 4), digest));
  put(layout.quarantinedServers('l2', 3), '["http://127.0.0.1:9"]\n');
  const part = encodeTaught([Float32Array.of(-0.5, -1.25), Float32Array.of(-2)]);
  const key = layout.taughtPart('l2', 3, digest, 0);
  put(key, part);
  const ref = { key, sha256: sha256(part), bytes: part.byteLength, count: 2 };
  put(layout.taught('l2', 3, digest), `${JSON.stringify({ parts: [ref], rowsOfPart: teacherRowsAtOnce })}\n`);
  put(`${layout.warmUp(0)}state.json`, `${JSON.stringify({ step: 0, policy, optimizer: null, loss: null })}\n`);
  put(`${layout.wandb()}offline-run/files/config.yaml`, 'seed: 3\n');
}

/** `url`: server that rewrites prompts; it gets no requests after step 1. */
export function runFile(steps: number, url = 'http://127.0.0.1:9/v1'): string {
  return `
model = "preset:chars-0.4m"
max_steps = ${steps}
seed = 3
batch_size = 8
rollouts_per_example = 4
max_async_level = 0
[sampling]
max_tokens = 6
[tokenizer]
chat_template = "./template.jinja"
[[env]]
id = "./say.ts"
buffer = { easy_threshold = 0.1, easy_fraction = 0.5 }
[lora]
r = 4
[sft]
data = "./rows.jsonl"
steps = 2
batch_size = 8
[eval]
interval = 2
num_examples = 4
rollouts_per_example = 1
[checkpoints]
interval = 1
keep_last = 2
[gepa]
reflection_model = "m"
url = "${url}"
at_steps = [1]
adopt = "if_better"
max_calls = 24
num_train = 4
num_val = 3
num_test = 4
`;
}

/** Creates the files that the run file names, in a folder that can import this package. */
export function furnishRun(folder: string): void {
  mkdirSync(path.join(folder, 'node_modules'));
  symlinkSync(repository, path.join(folder, 'node_modules/ratchet'));
  writeFileSync(path.join(folder, 'say.ts'), environment);
  writeFileSync(path.join(folder, 'template.jinja'), template);
  const rows = Array.from({ length: 8 }, (_, i) => ({
    messages: [
      { role: 'user', content: `abc${i}` },
      { role: 'assistant', content: `${i}cba` },
    ],
  }));
  writeFileSync(path.join(folder, 'rows.jsonl'), rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
}

const template =
  "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";

const environment = `
import { listDataset, rubric, singleTurn } from 'ratchet-rl/environments';
const rows = (from: number, to: number) =>
  listDataset(() =>
    Array.from({ length: to - from }, (_, i) => String(1000 + from + i)).map((word) => ({
      prompt: [{ role: 'system' as const, content: 'Backwards.' }, { role: 'user' as const, content: word }],
      answer: [...word].reverse().join(''),
    })),
  );
export function loadEnvironment() {
  return singleTurn({
    name: 'say',
    dataset: rows(0, 200),
    evalDataset: rows(200, 220),
    rubric: rubric([
      { name: 'digits', weight: 1, score: ({ completion }) => completion.replace(/[^0-9]/g, '').length / 6 },
      // The search's prompt scores higher whatever the model answers, so it is adopted.
      { name: 'asked', weight: 1, score: ({ messages }) => Number(messages.some(({ content }) => content.includes('Write it'))) },
    ]),
  });
}
`;
