import { type ChildProcess, spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { type IncomingMessage, request } from 'node:http';
import { text } from 'node:stream/consumers';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { Option } from 'commander';
import { getPackagedModel } from '../backends/hub/packaged-models.ts';
import { secretVariable } from '../core/child-environment.ts';
import { hash32, randomStream } from '../core/random.ts';
import { saveAdapterFolder } from '../engine/model/adapter-folder.ts';
import { createAdapter } from '../engine/model/lora.ts';
import { saveModelFolder } from '../engine/index.ts';
import { type ModelConfig, parseModelConfig } from '../engine/model/config.ts';
import { loadModelConfig, loadPlainParameters } from '../engine/model/model-folder.ts';
import { Parameters } from '../engine/model/parameters.ts';
import { presetFiles } from '../engine/model/preset-files.ts';
import { readTextFiles, type TextFiles } from '../engine/model/text-files.ts';
import { type ServerMemory, serverMemory } from '../engine/sample/server-memory.ts';
import { programArguments } from '../workers/stack/roles.ts';
import { CannotMeasure, measurement, type Bench, type Figures } from './measurement.ts';
import { round } from './statistics.ts';

const real = 'smollm2-135m-instruct';
const middle = 'middle';
const shapeNames = [real, 'preset:chars-0.4m', middle] as const;
/** 25 million random weights, packed as those of SmolLM2 are. */
const middleConfig = {
  vocab_size: 16_384,
  hidden_size: 384,
  intermediate_size: 1024,
  num_hidden_layers: 12,
  num_attention_heads: 6,
  num_key_value_heads: 2,
  head_dim: 64,
  tie_word_embeddings: true,
};

/**
 * Measures the peak memory of a policy server's process under the load of `npm start -- --real` (configs/rl/smollm2-number-words.toml):
 * SmolLM2 with 135 million parameters, adapters of four versions with a canary each, and groups of 8 answers of at most 8 tokens. Two
 * versions are sampled at once. An evaluation of 128 prompts runs before and after, sampled and greedy.
 *
 * - `smollm2_gb`: the peak (VmHWM), in 10⁹ bytes. `planned_gb`: what `ratchet check` predicts.
 * - `estimate_ratio`: the prediction ÷ the peak.
 * - `int8_gb`, `int4_gb`: peaks of the same load on quantized weights, with `--quantize int8,int4`.
 */
export const policyServerMemory = measurement('policy-server-memory', 'what a policy server has in memory', measure)
  .option('--memory-gb <gb>', 'what the server may have; its default unless given', Number)
  .option('--quantize <bits>', 'int8, int4 or both: measured as well', (bits) => bits.split(','), [] as string[])
  .option('--versions <n>', 'adapters that come one after the other', Number, 4)
  .addOption(new Option('--shape <name>', 'whose shape is measured').choices(shapeNames).default(shapeNames[0]));

interface Options {
  readonly shape: string;
  readonly memoryGb?: number;
  readonly quantize: readonly string[];
  readonly versions: number;
}

type Bits = 'int8' | 'int4';

const lora = { r: 16, alpha: 32, dropout: 0, targetModules: 'all-linear' } as const;
const promptTokens = 40;
const answerTokens = 8;
const groups = 8;
const answersPerGroup = 8;
const heldOut = 128;
/** Positions of a canary: the server samples one token after each. */
const canaryPositions = 16;

async function measure(bench: Bench, { shape, memoryGb, quantize, versions }: Options): Promise<Figures> {
  if (process.platform !== 'linux') throw new CannotMeasure('The peak of a process is read from /proc: Linux only.');
  const place = await mkdtemp(path.join(tmpdir(), 'ratchet-bench-'));
  try {
    const folder = await modelFolder(shape, { place, say: bench.say });
    const config = await loadModelConfig(folder);
    const { 'config.json': _, ...files } = await readTextFiles(folder);
    const adapters: string[] = [];
    for (let i = 0; i < versions; i++) {
      bench.doing(`making adapter ${i + 1}`);
      const adapter = createAdapter(config, lora, i);
      const at = path.join(place, `adapter-${i + 1}`);
      await saveAdapterFolder({ adapter, base: folder, baseDigest: await digestOf(folder), files }, at);
      adapters.push(at);
    }
    const run = async (bits?: Bits) => {
      const planned = serverMemory(config, { memoryGb, quantize: bits });
      return load(bench, { folder, config, adapters, planned, ...(memoryGb && { memoryGb }), ...(bits && { bits }) });
    };
    const whole = await run();
    const further: Record<string, unknown> = {};
    for (const bits of quantize as readonly Bits[]) further[`${bits}_gb`] = (await run(bits)).peak_gb;
    return {
      [shape === real ? 'smollm2_gb' : 'peak_gb']: whole.peak_gb,
      ...further,
      planned_gb: whole.planned_gb,
      estimate_ratio: round(whole.planned_gb / whole.peak_gb, 2),
      details: whole,
    };
  } finally {
    await rm(place, { recursive: true, force: true });
  }
}

/** The trainer's adapters have the tokenizer beside them; a model that is made here has the one of a preset. */
async function modelFolder(
  shape: string,
  { place, say }: { readonly place: string; readonly say: (line: string) => void },
): Promise<string> {
  if (shape === real) return (await getPackagedModel(shape, { say })).folder;
  const files: TextFiles = presetFiles(shape === middle ? 'preset:chars-0.4m' : shape);
  const written = { ...JSON.parse(files['config.json']!), ...(shape === middle && middleConfig) };
  const text = JSON.stringify(written);
  const parameters = new Parameters(parseModelConfig(text, 'config.json'));
  const random = randomStream('policy-server-memory', 0);
  parameters.flat.forEach((_, i, flat) => (flat[i] = 0.1 * (random() - 0.5)));
  for (const { name, shape: dims } of parameters.layout) if (dims.length === 1) parameters.view(name).fill(1);
  const folder = path.join(place, 'model');
  await saveModelFolder({ parameters, files: { ...files, 'config.json': text } }, folder);
  return folder;
}

interface Load {
  readonly folder: string;
  readonly config: ModelConfig;
  readonly adapters: readonly string[];
  readonly planned: ServerMemory;
  readonly memoryGb?: number;
  readonly bits?: Bits;
}

async function load(bench: Bench, { folder, config, adapters, planned, memoryGb, bits }: Load) {
  const promptOf = promptsOf(config);
  const server = await startServer(bench, [folder, ...adapters.map((adapter) => path.dirname(adapter))]);
  const ask = (route: string, body: object): Promise<unknown> => server.ask(route, body);
  const how = { ...(memoryGb && { memory_gb: memoryGb }), ...(bits && { quantize: bits }) };
  const take = (version: number): Promise<unknown> =>
    ask('/update_weights', { name: nameOf(version), weight_dir: [folder, ...adapters][version], ...how });
  const rollouts = (version: number): Promise<unknown>[] =>
    Array.from({ length: groups }, (_, group) =>
      ask('/v1/completions', sampling(version, Array(answersPerGroup).fill(promptOf(version * groups + group)), 1)),
    );
  const canary = (version: number): Promise<unknown>[] =>
    Array.from({ length: canaryPositions }, (_, i) => {
      const prompt = promptOf(-1).slice(0, promptTokens - canaryPositions + i);
      return ask('/v1/completions', { ...sampling(version, [prompt], 1), max_tokens: 1, allowed_token_ids: [7] });
    });
  const evaluation = (version: number): Promise<unknown>[] => {
    const prompts = Array.from({ length: heldOut }, (_, i) => promptOf(1_000 + i));
    return [1, 0].map((temperature) => ask('/v1/completions', sampling(version, prompts, temperature)));
  };
  try {
    const startedAt = performance.now();
    bench.doing('the base: an evaluation beside rollouts');
    await take(0);
    await Promise.all([...canary(0), ...evaluation(0), ...rollouts(0)]);
    for (const [i] of adapters.entries()) {
      const version = i + 1;
      bench.doing(`version ${version} beside the one before`);
      const before = rollouts(version - 1);
      await take(version);
      await Promise.all([...before, ...canary(version), ...rollouts(version)]);
      bench.say(`version ${version}: peak ${(await server.peakGb()).toFixed(2)} GB`);
    }
    bench.doing('an evaluation of the last version');
    await Promise.all(evaluation(adapters.length));
    return {
      peak_gb: round(await server.peakGb(), 2),
      planned_gb: round(planned.budgetBytes / 1e9, 2),
      took_s: round((performance.now() - startedAt) / 1000, 1),
      cpu_s: round(await server.cpuS(), 1),
    };
  } finally {
    await server.stop();
  }
}

const nameOf = (version: number): string => `v${version}`;

function sampling(version: number, prompts: readonly (readonly number[])[], temperature: number) {
  const seeds = prompts.map((_, i) => i);
  const model = nameOf(version);
  return { model, prompt: prompts, seeds, temperature, max_tokens: answerTokens, return_token_ids: true, logprobs: 1 };
}

/** Token ids that no other prompt begins with. */
function promptsOf({ vocabularySize }: ModelConfig): (key: number) => number[] {
  return (key) =>
    Array.from({ length: promptTokens }, (_, i) => 10 + (hash32('prompt', key, i) % (vocabularySize - 10)));
}

async function digestOf(folder: string): Promise<string> {
  digests.set(folder, digests.get(folder) ?? (await loadPlainParameters(folder)).digest());
  return digests.get(folder)!;
}

const digests = new Map<string, string>();

interface Server {
  ask(route: string, body: object): Promise<unknown>;
  peakGb(): Promise<number>;
  cpuS(): Promise<number>;
  stop(): Promise<void>;
}

async function startServer(bench: Bench, roots: readonly string[]): Promise<Server> {
  const args = [
    ...programArguments('policy-server'),
    '--port',
    '0',
    ...roots.flatMap((root) => ['--allow-root', root]),
  ];
  const secret = randomUUID();
  const env = { ...process.env, [secretVariable]: secret };
  const child = spawn(process.execPath, args, { env, signal: bench.signal, stdio: ['ignore', 'pipe', 'inherit'] });
  const url = await urlOf(child);
  const read = (file: string): Promise<string> => readFile(`/proc/${child.pid}/${file}`, 'utf8');
  return {
    async ask(route, body) {
      // `fetch` gives up after five minutes without an answer, so this uses `node:http`.
      const headers = { 'content-type': 'application/json', authorization: `Bearer ${secret}` };
      const asked = request(url + route, { method: 'POST', headers });
      asked.end(JSON.stringify(body));
      const [answer] = (await once(asked, 'response')) as [IncomingMessage];
      const said = await text(answer);
      if (answer.statusCode !== 200) throw new Error(`${route} answered ${answer.statusCode}: ${said}`);
      return JSON.parse(said);
    },
    peakGb: async () => (Number(/^VmHWM:\s+(\d+) kB$/m.exec(await read('status'))![1]) * 1024) / 1e9,
    cpuS: async () => {
      const fields = (await read('stat')).split(') ')[1]!.split(' ');
      return (Number(fields[11]) + Number(fields[12])) / 100;
    },
    async stop() {
      const exited = once(child, 'exit');
      child.kill();
      await exited;
    },
  };
}

async function urlOf(child: ChildProcess): Promise<string> {
  for await (const line of createInterface({ input: child.stdout! })) {
    const url = /policy server listening on (\S+)/.exec(line)?.[1];
    if (url !== undefined) {
      child.stdout!.resume();
      return url;
    }
  }
  throw new Error('The policy server ended before it listened.');
}
