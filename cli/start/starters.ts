import { readFile } from 'node:fs/promises';

/** Files of `ratchet init`, by path: example configs for the six environments of the documents, and for the engines. */

export const starterKinds = ['ratchet', 'lab', 'prime-rl', 'vf-rl'] as const;
export type StarterKind = (typeof starterKinds)[number];

interface Starter {
  readonly name: string;
  /** TOML of its arguments; none = the environment's defaults. */
  readonly args?: string;
  /** Tokens of a turn that an instruction-tuned model needs. */
  readonly maxTokens: number;
  /** Whether Ratchet includes a run of it on the embedded engine. */
  readonly isBuiltIn: boolean;
  readonly callsTools?: true;
}

const starters: readonly Starter[] = [
  {
    name: 'alphabet-sort',
    args: '{ min_turns = 3, max_turns = 5, power_per_turn = false }',
    maxTokens: 512,
    isBuiltIn: true,
  },
  { name: 'gsm8k', maxTokens: 512, isBuiltIn: false },
  { name: 'math-python', maxTokens: 1024, isBuiltIn: true, callsTools: true },
  { name: 'reverse-text', maxTokens: 128, isBuiltIn: true },
  { name: 'wiki-search', args: '{ max_turns = 5 }', maxTokens: 512, isBuiltIn: true, callsTools: true },
  { name: 'wordle', maxTokens: 1024, isBuiltIn: true },
];

/** Files by path relative to the project's folder, in the order they are printed. */
export async function starterFiles(kind: StarterKind): Promise<ReadonlyMap<string, string>> {
  const files: [string, string][] = [];
  for (const starter of starters) {
    const file = `${starter.name}.toml`;
    if (kind === 'ratchet') files.push([`configs/rl/${file}`, await ratchetRun(starter)]);
    else files.push([`${runsFolder(kind)}/${file}`, foreignRuns[kind](starter)]);
  }
  if (kind === 'ratchet') for (const name of elsewhere) files.push([`configs/rl/${name}.toml`, await ownRun(name)]);
  if (kind === 'ratchet' || kind === 'lab') {
    for (const starter of starters) files.push([`configs/eval/${starter.name}.toml`, evaluation(starter)]);
    for (const starter of starters) files.push([`configs/gepa/${starter.name}.toml`, optimization(starter)]);
  }
  // prime-rl's documents have no such file.
  if (kind !== 'prime-rl') files.push(['configs/endpoints.toml', endpoints]);
  return new Map(files);
}

/**
 * Folder for runs, as in the prime CLI's `lab setup`: Hosted Training's, with evaluations and prompt searches beside
 * them.
 */
export function runsFolder(kind: StarterKind): string {
  return kind === 'ratchet' || kind === 'lab' ? 'configs/rl' : `configs/${kind}`;
}

const foreignRuns = { lab: hostedRun, 'prime-rl': primeRlRun, 'vf-rl': vfRlRun };

/** Runs on engines that have to be there. */
const elsewhere = ['skyrl-reverse-text', 'tinker-reverse-text', 'vllm-reverse-text'];

function ownRun(name: string): Promise<string> {
  return readFile(new URL(`../../configs/rl/${name}.toml`, import.meta.url), 'utf8');
}

/** The runs that come with Ratchet train on the embedded engine as they are. */
async function ratchetRun(starter: Starter): Promise<string> {
  if (starter.isBuiltIn) return ownRun(starter.name);
  return [
    `# ${starter.name} of the Environments Hub, for a model that reads; "ratchet check" says what it still needs here.`,
    '# Problems of the same shape that the embedded engine learns come with Ratchet: the environment "word-problems".',
    '',
    hostedRun(starter),
  ].join('\n');
}

const model = 'Qwen/Qwen3-4B-Instruct-2507';

function hostedRun(starter: Starter): string {
  return `model = "${model}"   # a folder of Hugging Face files, or its id on the Hub
max_steps = 100
batch_size = 256           # rollouts of one optimizer step
rollouts_per_example = 8   # tries of one example, which are compared with one another

[sampling]
max_tokens = ${starter.maxTokens}${' '.repeat(10 - String(starter.maxTokens).length)}   # of a turn

[[env]]
id = "primeintellect/${starter.name}"   # of the Environments Hub: npx ratchet-rl env install primeintellect/${starter.name}
${starter.args === undefined ? '' : `args = ${starter.args}\n`}
[wandb]
project = "${starter.name}"
name = "qwen3-4b-${starter.name}"
`;
}

function primeRlRun(starter: Starter): string {
  const tools = starter.callsTools
    ? `\n[inference.model]\nenable_auto_tool_choice = true\ntool_call_parser = "hermes"   # how this model calls tools\n`
    : '';
  return `inference_gpu_ids = [0, 1, 2, 3, 4, 5]
trainer_gpu_ids = [6, 7]

max_steps = 500
max_async_level = 1        # steps that sampling may be ahead of training
seq_len = 4096             # tokens of a conversation

[model]
name = "${model}"

[wandb]
project = "${starter.name}"
name = "qwen3-4b-${starter.name}"

[trainer.optim]
lr = 1e-5
weight_decay = 0.0

[trainer.model.lora]
rank = 16
alpha = 32

[orchestrator]
batch_size = 512           # rollouts of one optimizer step
rollouts_per_example = 16  # tries of one example, which are compared with one another

[orchestrator.sampling]
max_tokens = ${starter.maxTokens}${' '.repeat(10 - String(starter.maxTokens).length)}   # of a turn

[orchestrator.buffer]
online_difficulty_filtering = true   # groups that are all right or all wrong teach nothing

[[orchestrator.env]]
id = "primeintellect/${starter.name}"   # of the Environments Hub: npx ratchet-rl env install primeintellect/${starter.name}
${starter.args === undefined ? '' : `args = ${starter.args}\n`}${tools}`;
}

function vfRlRun(starter: Starter): string {
  const tools = starter.callsTools
    ? `\n[inference.args]\nenable_auto_tool_choice = true\ntool_call_parser = "hermes"   # how this model calls tools\n`
    : '';
  return `model = "${model}"

[env]
id = "primeintellect/${starter.name}"   # of the Environments Hub: npx ratchet-rl env install primeintellect/${starter.name}
${starter.args === undefined ? '' : `args = ${starter.args}\n`}
[inference]
gpus = 1
${tools}
[trainer]
gpus = 1

[trainer.args]
run_name = "${starter.name}"
max_steps = 500
batch_size = 512           # rollouts of one optimizer step
rollouts_per_example = 16  # tries of one example, which are compared with one another
micro_batch_size = 8
max_tokens = ${starter.maxTokens}${' '.repeat(10 - String(starter.maxTokens).length)}   # of a turn
max_seq_len = 4096         # tokens of a conversation
`;
}

function idOf({ name, isBuiltIn }: Starter): string {
  return isBuiltIn ? name : `primeintellect/${name}`;
}

function evaluation(starter: Starter): string {
  return `endpoints_path = "../endpoints.toml"
endpoint_id = "gpt-4.1-mini"   # an alias of that file; "local" is a server on this machine
num_examples = 20
rollouts_per_example = 3
save_results = true

[[eval]]
id = "${idOf(starter)}"
sampling = { max_tokens = ${starter.maxTokens} }   # of a turn
${starter.args === undefined ? '' : `args = ${starter.args}\n`}`;
}

function optimization(starter: Starter): string {
  return `endpoints_path = "../endpoints.toml"
model = "gpt-4.1-mini"            # plays the environment; an alias of that file, or a model's id
reflection_model = "gpt-4.1-mini" # reads what it did and proposes better prompts

[[env]]
env_id = "${idOf(starter)}"
${starter.args === undefined ? '' : `env_args = ${starter.args}\n`}
[gepa]
max_calls = 500        # rollouts in all
num_train = 100
num_val = 50
minibatch_size = 3     # rollouts that one reflection reads
max_concurrent = 32

[sampling]
max_tokens = ${starter.maxTokens}
`;
}

const endpoints = `# Aliases of models. \`key\` is the name of an environment variable; the key itself has no place in a file.
# The same endpoint_id twice: replicas, which are taken in turn.

[[endpoint]]
endpoint_id = "gpt-4.1-mini"
model = "gpt-4.1-mini"
url = "https://api.openai.com/v1"
key = "OPENAI_API_KEY"
type = "openai_chat_completions"

[[endpoint]]
endpoint_id = "qwen3-30b-i"
model = "qwen/qwen3-30b-a3b-instruct-2507"
url = "https://api.pinference.ai/api/v1"
key = "PRIME_API_KEY"
type = "openai_chat_completions"

[[endpoint]]
endpoint_id = "local"
model = "${model}"
url = "http://127.0.0.1:8000/v1"
key = "EMPTY"   # a server on this machine that asks for no key
`;
