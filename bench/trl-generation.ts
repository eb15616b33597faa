import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { hash32, randomStream } from '../core/random.ts';
import { createPreset, type ModelFolder, Sampler, type SampleResult, saveModelFolder } from '../engine/index.ts';
import { isDisturbed, meterCpu, waitForQuiet } from './cpu-meter.ts';
import { measurement, type Bench, type Figures } from './measurement.ts';
import { PeerProcess } from './peer-process.ts';
import { median, round } from './statistics.ts';
import { findTrlPython } from './trl.ts';

const peerProgram = fileURLToPath(new URL('peers/trl_generate.py', import.meta.url));

/**
 * Sampling one batch of the demo beside TRL's GRPOTrainer, in turn: the same weights of 0.2 M parameters, 64 new words of 3 to 8
 * letters × 8 rollouts, 10 new tokens at most, two threads. Both sides are given texts and make tokens of them. Before
 * anything is timed TRL's model must give the tokens we sampled the log probabilities that we gave them.
 *
 * - `generation_ratio`: our time per batch ÷ TRL's; below 1 = ours is faster. The median over the pairs. `…_best`: our fastest
 *   batch ÷ its fastest.
 *
 * The weights are random ones, so most rows run to the limit on both sides (`tokens`); a trained policy's rows end at several lengths,
 * where ours stops computing each and TRL's goes on until the last has ended. TRL's side gives no log probabilities.
 */
export const trlGeneration = measurement('trl-generation', "sampling the demo's batch beside TRL's, in turn", measure)
  .option('--pairs <n>', 'batches of each side', Number, 20)
  .option('--patience <seconds>', 'how long to wait for a quiet machine', Number, 60)
  .addHelpText('after', '\nRATCHET_TRL_PYTHON names a Python with TRL; see bench/peers/README.md');

interface Options {
  readonly pairs: number;
  readonly patience: number;
}

const threads = 2;
const words = 64;
const groupSize = 8;
const newTokens = 10;
const pairsInPassing = 3;
/** So long a side is left to let its idle threads go to sleep before the other's turn. */
const pauseMs = 20;

const Batch = z.object({ wall_s: z.number(), tokens: z.number() });
type Batch = z.infer<typeof Batch>;

interface Sides {
  readonly model: ModelFolder;
  readonly sampler: Sampler;
  readonly peer: PeerProcess;
}

async function measure(bench: Bench, { pairs, patience }: Options): Promise<Figures> {
  const python = await findTrlPython(bench);
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-bench-'));
  const model = createPreset('preset:reverse-text-0.2m', { seed: 0 });
  await saveModelFolder(model, folder);
  const sampler = await Sampler.open(model.config, { threads });
  const shape = { rows: words * groupSize, group: groupSize, 'new-tokens': newTokens, threads };
  const args = [
    peerProgram,
    '--model',
    folder,
    ...Object.entries(shape).flatMap(([key, n]) => [`--${key}`, String(n)]),
  ];
  const peer = new PeerProcess(bench, python, args, process.env);
  const sides = { model, sampler, peer };
  try {
    bench.doing('opening both sides');
    await requireSameWork(sides);
    for (let i = 0; i < pairsInPassing; i++) await inTurn(sides, -1 - i);
    await waitForQuiet(bench, patience);
    bench.doing(`${pairs} pairs`);
    const measured = [];
    for (let turn = 0; turn < pairs; turn++) {
      bench.signal.throwIfAborted();
      const { result, cpu } = await meterCpu(() => inTurn(sides, turn));
      measured.push({ ...result, disturbed: isDisturbed(cpu) });
    }
    return summarize(measured);
  } finally {
    await peer.close();
    await sampler.release();
    await rm(folder, { recursive: true, force: true });
  }
}

function textsOf(turn: number): string[] {
  const random = randomStream('bench words', turn);
  const letter = (): string => 'abcdefghijklmnopqrstuvwxyz'[Math.floor(random() * 26)]!;
  return Array.from({ length: words }, () => Array.from({ length: 3 + Math.floor(random() * 6) }, letter).join(''));
}

async function inTurn(sides: Sides, turn: number): Promise<{ ours: Batch; theirs: Batch }> {
  const texts = textsOf(turn);
  await delay(pauseMs);
  const theirs = Batch.parse(await sides.peer.ask({ do: 'generate', prompts: promptsOf(texts) }));
  await delay(pauseMs);
  const wall = performance.now();
  const results = await sample(sides, texts, turn);
  const wall_s = (performance.now() - wall) / 1000;
  return { ours: { wall_s, tokens: results.reduce((sum, { tokenIds }) => sum + tokenIds.length, 0) }, theirs };
}

/** Prompts in TRL's form. */
function promptsOf(texts: readonly string[]): string[] {
  return texts.flatMap((text) => Array.from({ length: groupSize }, () => `<bos>${text}<sep>`));
}

function sample({ model, sampler }: Sides, texts: readonly string[], turn: number): Promise<SampleResult[]> {
  const { tokenizer, parameters, config } = model;
  const requests = texts.flatMap((text, word) => {
    const promptTokenIds = tokenizer.renderChat([{ role: 'user', content: text }]);
    return Array.from({ length: groupSize }, (_, index) => ({
      promptTokenIds,
      maxTokens: newTokens,
      temperature: 1,
      seed: hash32('bench row', turn, word, index),
      stopTokenIds: config.endTokenIds,
    }));
  });
  return sampler.generate(parameters, requests);
}

/** Two programs that do not compute the same thing have nothing to compare. */
async function requireSameWork(sides: Sides): Promise<void> {
  const prompt = sides.model.tokenizer.renderChat([{ role: 'user', content: 'ab' }]);
  const Asked = z.object({ prompt: z.array(z.int()) });
  const asked = Asked.parse(await sides.peer.ask({ do: 'generate', prompts: promptsOf(['ab']) }));
  if (asked.prompt.join() !== prompt.join())
    throw new Error(`The two sides read a prompt as [${prompt.join(', ')}] here, [${asked.prompt.join(', ')}] there.`);
  const results = await sample(sides, ['ab'], -100);
  const tokens = results.map(({ tokenIds }) => [...prompt, ...tokenIds]);
  const Scores = z.object({ logprobs: z.array(z.array(z.number())) });
  const { logprobs } = Scores.parse(await sides.peer.ask({ do: 'score', tokens, prompt_length: prompt.length }));
  const differences = results.flatMap((result, row) =>
    result.logprobs.map((logprob, t) => Math.abs(logprob - logprobs[row]![t]!)),
  );
  const worst = Math.max(...differences);
  if (worst > 1e-4) throw new Error(`The two sides differ in a token's log probability by ${worst}.`);
}

function summarize(pairs: readonly { readonly ours: Batch; readonly theirs: Batch; readonly disturbed: boolean }[]) {
  const milliseconds = (side: 'ours' | 'theirs') => {
    const seconds = pairs.map((pair) => pair[side].wall_s);
    return { best: round(Math.min(...seconds) * 1000, 1), median: round(median(seconds) * 1000, 1) };
  };
  const [ours, theirs] = [milliseconds('ours'), milliseconds('theirs')];
  const tokens = (side: 'ours' | 'theirs'): number => median(pairs.map((pair) => pair[side].tokens));
  return {
    generation_ratio: round(median(pairs.map(({ ours, theirs }) => ours.wall_s / theirs.wall_s))),
    generation_ratio_best: round(ours.best / theirs.best),
    pairs_disturbed: pairs.filter(({ disturbed }) => disturbed).length,
    details: {
      ours_ms: ours,
      trl_ms: theirs,
      tokens: { ours: tokens('ours'), trl: tokens('theirs') },
    },
  };
}
