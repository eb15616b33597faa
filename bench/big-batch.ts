import { execFile } from 'node:child_process';
import { readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { gzipSync } from 'node:zlib';
import { uniform } from '../core/random.ts';
import type { ScoredGroup } from '../core/rl/rollout/rollout.ts';
import type { KeptGroups, ObjectRef, RunHandle, RunState } from '../core/rl/run-state.ts';
import { layout } from '../runs/layout.ts';
import { act, ChainTrainer, commitFirst, openRoles, runIn } from '../test/activities/runs.ts';
import type { TrainOutcome } from '../backends/trainer/types.ts';
import type { Bench } from './measurement.ts';
import { round } from './statistics.ts';

/**
 * A batch of rollouts of so many tokens on its way from scored groups to a trainer that only counts: packed and planned as an orchestrator does
 * it, handed on as a GPU worker does it, each in a process of its own whose memory is watched. `node --import tsx bench/big-batch.ts` runs one
 * stage.
 */
export interface BigBatch {
  readonly rollouts: number;
  readonly tokens: number;
  /** The most memory that the process of either had, MiB; null where it died. */
  readonly pack_mb: number | null;
  readonly train_mb: number | null;
  readonly pack_s: number | null;
  readonly train_s: number | null;
  /** The largest object written, in MiB as stored. */
  readonly largest_object_mb: number;
  /** Last lines of a process that died. */
  readonly failed?: string;
}

/** Groups of 8, stored as rounds of 4 groups. */
const rolloutsPerExample = 8;
const groupsOfRound = 4;
const vocabulary = 150_000;

export async function measureBigBatch(
  bench: Bench,
  folder: string,
  { rollouts, tokens }: { readonly rollouts: number; readonly tokens: number },
): Promise<BigBatch> {
  const size = { rollouts, tokens };
  bench.doing(`a batch of ${rollouts} rollouts of ${tokens} tokens`);
  await runStage(bench, folder, ['prepare', rollouts, tokens]);
  const packed = await runStage(bench, folder, ['pack', rollouts, tokens]).catch((error: unknown) => String(error));
  const none = { ...size, pack_mb: null, train_mb: null, pack_s: null, train_s: null };
  if (typeof packed === 'string') return { ...none, largest_object_mb: largestObjectMb(folder), failed: packed };
  const pack = { ...none, pack_mb: packed.peakMb, pack_s: packed.seconds };
  const trained = await runStage(bench, folder, ['train', rollouts, tokens]).catch((error: unknown) => String(error));
  if (typeof trained === 'string') return { ...pack, largest_object_mb: largestObjectMb(folder), failed: trained };
  return {
    ...pack,
    train_mb: trained.peakMb,
    train_s: trained.seconds,
    largest_object_mb: largestObjectMb(folder),
  };
}

interface Stage {
  readonly peakMb: number;
  readonly seconds: number;
}

async function runStage(bench: Bench, folder: string, args: readonly (string | number)[]): Promise<Stage> {
  const program = fileURLToPath(import.meta.url);
  // The same flag as in `workers/main.ts`.
  const options = ['--heap-growing-percent=50', '--import', import.meta.resolve('tsx'), program, folder];
  const child = promisify(execFile)(process.execPath, [...options, ...args.map(String)], { signal: bench.signal });
  try {
    const { stdout } = await child;
    const stage = JSON.parse(stdout.trim().split('\n').at(-1)!) as Stage;
    bench.say(`  ${args[0]}: ${stage.peakMb} MiB, ${stage.seconds} s`);
    return stage;
  } catch (error) {
    bench.signal.throwIfAborted();
    const { stderr = '' } = error as { readonly stderr?: string };
    const said = /FATAL ERROR.*|\w*Error: .*/.exec(stderr)?.[0] ?? stderr.trim().split('\n').slice(-3).join(' ');
    const failed = `${args[0]}: ${said.slice(0, 300)}`;
    bench.say(`  ${failed}`);
    throw new Error(failed, { cause: error });
  }
}

function largestObjectMb(folder: string): number {
  const sizes = readdirSync(path.join(folder, 'big'), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => statSync(path.join(entry.parentPath, entry.name)).size);
  return round(Math.max(...sizes) / 2 ** 20, 1);
}

/** Result of one stage, for the next. */
interface Left {
  readonly run: RunHandle;
  readonly state: RunState;
  readonly trained: readonly KeptGroups[];
  readonly plan?: ObjectRef;
}

/** Counts tokens, and looks at no number twice: what is measured is what comes before a trainer. */
class CountingTrainer extends ChainTrainer {
  override async trainStep({ batch }: Parameters<ChainTrainer['trainStep']>[0]): Promise<TrainOutcome> {
    let tokens = 0;
    for await (const { tokenIds } of batch.samples()) tokens += tokenIds.length;
    this.weights = `chain ${tokens}`;
    return { applied: true, digest: await this.digest(), metrics: { loss: 0.5, kl_divergence: 0.01 } };
  }
}

async function stage(folder: string, what: string, rollouts: number, tokens: number): Promise<void> {
  const file = path.join(folder, 'left.json');
  const roles = openRoles(undefined, { makeTrainer: () => new CountingTrainer() });
  if (what === 'prepare') {
    const settings = { batch_size: String(rollouts), rollouts_per_example: String(rolloutsPerExample) };
    const test = await runIn(folder, settings, 'big');
    const { state } = await commitFirst(test, roles);
    const trained: KeptGroups[] = [];
    for (let first = 1; first <= rollouts / rolloutsPerExample; first += groupsOfRound) {
      const last = Math.min(rollouts / rolloutsPerExample, first + groupsOfRound - 1);
      const key = layout.scored(test.run.lineage, { step: 1, first, last }, 'chunk_1_of_1');
      const scored = await test.store.put(key, scoredRound(first, last, tokens));
      trained.push({ scored: { ...scored, count: last - first + 1 }, policyStep: 0, ordinals: `${first}-${last}` });
    }
    writeFileSync(file, JSON.stringify({ run: test.run, state, trained } satisfies Left));
    return;
  }
  const left = JSON.parse(readFileSync(file, 'utf8')) as Left;
  const { run, state, trained } = left;
  if (what === 'pack') {
    const scored = trained.map((kept) => kept.scored);
    const { packed } = await roles.packBatch({ run, step: 1, trained, scored });
    const { reference, klBeta, overrides, policy } = state;
    const asked = { run, step: 1, attempt: 1, from: policy, reference, klBeta, overrides, packed };
    const { plan } = await roles.planStep(asked);
    writeFileSync(file, JSON.stringify({ ...left, plan } satisfies Left));
  } else {
    const result = await act(roles.trainStep, { run, plan: left.plan! });
    if (result.policy === null) throw new Error(`refused: ${result.reason}`);
  }
}

/**
 * The groups of a round as they are stored. All rollouts have the same tokens, which are compressed once: a gzip file may have several members.
 */
function scoredRound(first: number, last: number, tokens: number): Buffer {
  const turn = sampledTurn(tokens);
  const parts: Buffer[] = [];
  for (let ordinal = first; ordinal <= last; ordinal++) {
    const place = { environment: 'reverse-text', exampleId: ordinal, epoch: 0, policyStep: 0 };
    const group: ScoredGroup = { ordinal, ...place, rollouts: [] };
    const [before, after] = JSON.stringify(group).split('[]') as [string, string];
    parts.push(gzipSync(`${before}[`));
    for (let index = 0; index < rolloutsPerExample; index++) {
      const of = JSON.stringify({ group: ordinal, index, exampleId: ordinal });
      const judged = JSON.stringify({ outcome: 'ok', reward: uniform('reward', ordinal, index), metrics: {} });
      const between = index === 0 ? '' : ',';
      parts.push(gzipSync(`${between}${of.slice(0, -1)},"turns":[`), turn, gzipSync(`],${judged.slice(1)}`));
    }
    parts.push(gzipSync(`]${after}\n`));
  }
  return Buffer.concat(parts);
}

let compressed: Buffer | null = null;

function sampledTurn(tokens: number): Buffer {
  compressed ??= gzipSync(
    JSON.stringify({
      promptTokenIds: [3, 11, 12, 17, 7, 2],
      tokenIds: Array.from({ length: tokens }, (_, i) => Math.floor(uniform('token', i) * vocabulary)),
      logprobs: Array.from({ length: tokens }, (_, i) => Math.fround(-uniform('logprob', i))),
      text: 'x'.repeat(tokens * 4),
      finishReason: 'stop',
      policyStep: 0,
    }),
  );
  return compressed;
}

/** Maximum since the process began. */
function peakMb(): number {
  return Math.round(process.resourceUsage().maxRSS / 1024);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [folder, what, rollouts, tokens] = process.argv.slice(2);
  const startedAt = performance.now();
  await stage(folder!, what!, Number(rollouts), Number(tokens));
  const seconds = round((performance.now() - startedAt) / 1000, 1);
  process.stdout.write(`${JSON.stringify({ peakMb: peakMb(), seconds } satisfies Stage)}\n`);
}
