import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { getPackagedModel } from '../backends/hub/packaged-models.ts';
import { loadModelFolder, type ModelFolder, type Parameters, readGguf, Sampler, writeGguf } from '../engine/index.ts';
import { trainGraphLogits } from '../test/engine/golden/read-golden.ts';
import { findLlama } from './find-llama.ts';
import { type Bench, type Figures, measurement } from './measurement.ts';
import { findTorchPython, PeerProcess } from './peer-process.ts';

const peer = (name: string): string => fileURLToPath(new URL(`peers/${name}`, import.meta.url));
const model = 'smollm2-135m-instruct';

/**
 * SmolLM2-135M-Instruct beside transformers and llama.cpp, over twenty prompts.
 *
 * - `logits_difference`: the largest difference of a logit from transformers' on the same weights of 32-bit floats, over all positions of all prompts,
 *   as a part of the standard deviation of the logits at its position.
 * - `tokens_equal`: prompts that llama.cpp reads as the same tokens, of `prompts`.
 * - `greedy_f32`, `greedy_q8_0`: prompts after which the likeliest 48 tokens are llama.cpp's, over our export of those types, which both sides read.
 *   `greedy_file`: over the file that --gguf names. There llama.cpp rounds what it multiplies with packed weights to 8 bits, and we do not:
 *   texts part where two tokens are about as likely. `details` has where, and how far our logits of the two tokens are apart there
 *   (`gap`, in standard deviations).
 */
export const smollm2Parity = measurement('smollm2-parity', 'a real model beside transformers and llama.cpp', measure)
  .option('--gguf <file>', 'compare over this file too, as it was published')
  .addHelpText(
    'after',
    '\nRATCHET_TORCH_PYTHON names a Python with PyTorch and transformers, RATCHET_LLAMA_CPP a folder where node-llama-cpp is; see bench/peers/README.md',
  );

const newTokens = 48;

async function measure(bench: Bench, { gguf }: { readonly gguf?: string }): Promise<Figures> {
  const python = await findTorchPython(bench, ['torch', 'transformers']);
  const llama = await findLlama();
  const { folder } = await getPackagedModel(model, { say: bench.say });
  const work = await mkdtemp(path.join(tmpdir(), 'ratchet-bench-'));
  try {
    const loaded = await loadModelFolder(folder);
    const logits = await compareLogits(bench, { python, folder, model: loaded, work });
    bench.say(`logits: ${JSON.stringify(logits)}`);
    const figures: Record<string, unknown> = { ...logits, prompts: questions.length };
    const details: Record<string, unknown> = {};
    const kinds = ['f32', 'q8_0', ...(gguf === undefined ? [] : (['file'] as const))] as const;
    for (const type of kinds) {
      const file = type === 'file' ? path.resolve(gguf!) : path.join(work, `${type}.gguf`);
      if (type !== 'file') await writeGguf(loaded, file, { type });
      const result = await compareTexts(bench, { llama, file });
      bench.say(`${type}: ${JSON.stringify(result)}`);
      figures[`greedy_${type}`] = result.equal;
      figures['tokens_equal'] = result.tokensEqual;
      details[type] = result.differences;
    }
    return { ...figures, details };
  } finally {
    await rm(work, { recursive: true, force: true });
  }
}

const Shape = z.object({ shape: z.tuple([z.int(), z.int()]) });

async function compareLogits(
  bench: Bench,
  sides: { readonly python: string; readonly folder: string; readonly model: ModelFolder; readonly work: string },
) {
  const { python, folder, model: ours, work } = sides;
  const theirs = new PeerProcess(bench, python, [peer('transformers_logits.py'), '--model', folder], process.env);
  let [largest, likeliestEqual, positions] = [0, 0, 0];
  try {
    for (const [i, question] of questions.entries()) {
      bench.doing(`logits of prompt ${i + 1} of ${questions.length}`);
      const tokens = promptOf(ours, question);
      const out = path.join(work, 'logits');
      const { shape } = Shape.parse(await theirs.ask({ tokens, out }));
      const expected = new Float32Array((await readFile(out)).buffer.slice(0));
      const actual = await trainGraphLogits(ours.parameters, tokens);
      for (let position = 0; position < shape[0]; position++) {
        const row = (of: Float32Array): Float32Array => of.subarray(position * shape[1], (position + 1) * shape[1]);
        largest = Math.max(largest, largestDifference(row(actual), row(expected)) / deviation(row(expected)));
        likeliestEqual += Number(likeliest(row(actual)) === likeliest(row(expected)));
        positions++;
      }
    }
  } finally {
    await theirs.close();
  }
  return { logits_difference: largest, positions, likeliest_equal: likeliestEqual };
}

const Tokens = z.object({ tokens: z.array(z.int()) });

interface Difference {
  readonly prompt: number;
  readonly after: number;
  readonly gap: number;
}

async function compareTexts(bench: Bench, { llama, file }: { readonly llama: string; readonly file: string }) {
  const ours = await readGguf(file);
  const sampler = await Sampler.open(ours.config, { threads: 1 });
  const theirs = new PeerProcess(bench, process.execPath, [peer('llama-cpp.mjs'), llama, file, '1'], process.env);
  const differences: Difference[] = [];
  let tokensEqual = 0;
  try {
    for (const [i, question] of questions.entries()) {
      bench.doing(`${path.basename(file)}: text after prompt ${i + 1} of ${questions.length}`);
      const tokens = promptOf(ours, question);
      const text = ours.tokenizer.renderPrompt([{ role: 'user', content: question }]).text;
      tokensEqual += Number(Tokens.parse(await theirs.ask({ text })).tokens.join() === tokens.join());
      const said = Tokens.parse(await theirs.ask({ tokens, max_tokens: newTokens })).tokens;
      const own = await greedy(sampler, ours, tokens);
      const after = said.findIndex((id, t) => id !== own[t]);
      if (after < 0 && said.length === own.length) continue;
      differences.push({ prompt: i, after: Math.max(after, 0), gap: await gapAt(ours, tokens, { said, own, after }) });
    }
  } finally {
    await theirs.close();
    await sampler.release();
  }
  return { equal: questions.length - differences.length, tokensEqual, differences };
}

async function greedy(
  sampler: Sampler,
  { parameters, config }: ModelFolder,
  promptTokenIds: number[],
): Promise<number[]> {
  const request = { promptTokenIds, maxTokens: newTokens, temperature: 0, seed: 0, stopTokenIds: config.endTokenIds };
  const [result] = await sampler.generate(parameters, [request]);
  return result!.tokenIds.filter((id) => !config.endTokenIds.includes(id));
}

/** How far our logits of the two sides' tokens are apart where their texts part. */
async function gapAt(
  { parameters, config }: { readonly parameters: Parameters; readonly config: ModelFolder['config'] },
  prompt: readonly number[],
  { said, own, after }: { readonly said: readonly number[]; readonly own: readonly number[]; readonly after: number },
): Promise<number> {
  const at = after < 0 ? Math.min(said.length, own.length) : after;
  const logits = await trainGraphLogits(parameters, [...prompt, ...own.slice(0, at)]);
  const row = logits.subarray(logits.length - config.vocabularySize);
  const end = config.endTokenIds[0] ?? 0;
  return Math.abs(row[said[at] ?? end]! - row[own[at] ?? end]!) / deviation(row);
}

function promptOf({ tokenizer }: ModelFolder, question: string): number[] {
  return [...tokenizer.renderChat([{ role: 'user', content: question }])];
}

function largestDifference(a: Float32Array, b: Float32Array): number {
  let largest = 0;
  for (let i = 0; i < a.length; i++) largest = Math.max(largest, Math.abs(a[i]! - b[i]!));
  return largest;
}

function deviation(values: Float32Array): number {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  return Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length);
}

function likeliest(values: Float32Array): number {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i]! > values[best]!) best = i;
  return best;
}

/** Questions of many kinds, to cover many tokens. */
const questions: readonly string[] = [
  'What is 7 + 5?',
  'What is the capital of France?',
  'Name three colours of the rainbow.',
  'Write a haiku about the sea.',
  'Translate "good morning" into Spanish.',
  'Why is the sky blue?',
  'Who wrote Romeo and Juliet?',
  'Give me a recipe for pancakes.',
  'Explain gravity to a child.',
  'List the first five prime numbers.',
  'What does the word "ubiquitous" mean?',
  'Write a Python function that adds two numbers.',
  'How many days are in a leap year?',
  'Describe a cat in one sentence.',
  'What is the opposite of "hot"?',
  'Complete: Roses are red, violets are',
  'Which planet is the largest?',
  'Convert 100 centimetres to metres.',
  'Tell me a short joke.',
  'Summarize: The quick brown fox jumps over the lazy dog, 3 times a day – naïve, isn’t it?',
];
