import { fork } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { openCapture } from '../backends/environments/agent/capture/capture.ts';
import type { Policy } from '../backends/environments/types.ts';
import type { Turn } from '../core/rl/rollout/rollout.ts';
import { trajectoryRows } from '../core/rl/rollout/trajectories.ts';
import { recordTurn } from '../play/training-players.ts';
import { RolloutJournal } from '../runs/rollouts/rollout-journal.ts';
import { FileStore } from '../store/file-store.ts';
import type { Store } from '../store/index.ts';
import { S3Store } from '../store/s3-store.ts';
import { callOf, scriptedPolicy } from '../test/environments/agent/scripted-policy.ts';
import { skipWithoutGateway, startGateway } from '../test/store/s3-gateway.ts';
import { measurement, type Bench, type Figures } from './measurement.ts';
import { median, round } from './statistics.ts';

/**
 * What the address in front of the policy costs: programs in a process of their own make calls with tools in conversations
 * that grow. The policy gives prepared tokens at once.
 *
 * - `calls_per_s`, goal ≥ 1,000: calls of many programs at once, as quickly as they are answered, all through one process,
 *   with a file store.
 * - `added_ms`, goal ≤ 3: the median of a call at half of that rate, the calls spread evenly, less that of asking the policy in
 *   this process without the address and the store. `added_p95_ms`: the 95th percentile of a call, less the same.
 *   `store_ms`: the median of what the store has of it.
 * - `alone_added_ms`: the same with one call at a time.
 * - `cpu_ms`: processor time of a call in this process: on a machine that does other things, 1,000 over it tells more.
 * - `rendered_calls_per_s`, `rendered_cpu_ms`: the same with prompts that are rendered by a chat template and tokenized.
 * - `s3_calls_per_s`, `s3_added_ms`: the first two with a real S3 server on this machine; null = there is none here.
 * - `equal`, goal true: what training makes of the turns in the stores is token for token what was sampled.
 */
export const capture = measurement('capture', 'what the address in front of the policy costs', measure)
  .option('--programs <n>', 'programs at once', Number, 64)
  .option('--calls <n>', 'calls of each program', Number, 20)
  .addHelpText('after', '\nGoals: added_ms ≤ 3, calls_per_s ≥ 1000, equal true.');

interface Options {
  readonly programs: number;
  readonly calls: number;
}

async function measure({ say, doing }: Bench, { programs, calls }: Options): Promise<Figures> {
  const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-capture-'));
  try {
    const crowd = { programs: 2 * programs, atOnce: programs, calls };
    const fileStore = (name: string): Store => new FileStore(path.join(folder, name));
    doing('many programs');
    const many = await play(fileStore('many'), { ...crowd, open: preparedPolicy });
    say(`${many.perSecond} calls a second`);
    doing('half of that rate');
    const pacing = { programs, atOnce: programs, calls, open: preparedPolicy };
    const paced = await play(fileStore('paced'), { ...pacing, ratePerS: many.perSecond / 2 });
    say(`a call takes ${round(median(paced.took), 2)} ms, the store ${round(median(paced.storeMs), 2)} of them`);
    doing('one call at a time');
    const alone = await play(fileStore('alone'), { programs: 4, atOnce: 1, calls, open: preparedPolicy });
    doing('many programs, with prompts that are rendered');
    const rendered = await play(fileStore('rendered'), crowd);
    doing('many programs, with S3');
    const s3 = await withS3(async (store) => {
      const most = await play(store('many/'), { ...crowd, open: preparedPolicy });
      return { most, paced: await play(store('paced/'), { ...pacing, ratePerS: most.perSecond / 2 }) };
    });
    const plays = [many, paced, alone, rendered, ...(s3 === null ? [] : [s3.most, s3.paced])];
    return {
      calls_per_s: many.perSecond,
      added_ms: added(paced),
      equal: plays.every(({ isEqual }) => isEqual),
      at_calls_per_s: Math.round(many.perSecond / 2),
      reached_calls_per_s: paced.perSecond,
      added_p95_ms: added(paced, percentile95),
      store_ms: round(median(paced.storeMs), 2),
      alone_added_ms: added(alone),
      cpu_ms: round(many.cpuMs, 3),
      rendered_calls_per_s: rendered.perSecond,
      rendered_cpu_ms: round(rendered.cpuMs, 3),
      call_ms_at_once: round(median(many.took), 2),
      writes_per_call: round(many.parts / (2 * programs * calls), 3),
      s3_calls_per_s: s3 && s3.most.perSecond,
      s3_added_ms: s3 && added(s3.paced),
    };
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** What the address and the store add to a call. */
function added({ took, policyMs }: Pick<Played, 'took' | 'policyMs'>, of = median): number {
  return round(of(took) - median(policyMs), 2);
}

function percentile95(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length * 0.95)]!;
}

/** Null where there is no S3 server for tests. */
async function withS3<T>(work: (store: (prefix: string) => Store) => Promise<T>): Promise<T | null> {
  if (skipWithoutGateway !== false) return null;
  const gateway = await startGateway();
  try {
    return await work((prefix) => new S3Store(gateway.location(prefix), 'run'));
  } finally {
    await gateway.remove();
  }
}

type Keep = (turn: Turn) => Promise<void>;

interface Play extends Options {
  readonly atOnce: number;
  /** Calls per second, spread evenly; missing = each as soon as the one before is answered. */
  readonly ratePerS?: number;
  readonly open?: (onTurn: Keep) => Policy;
}

type Played = Awaited<ReturnType<typeof play>>;

async function play(store: Store, { programs, atOnce, calls, ratePerS, open = renderingPolicy }: Play) {
  const prefix = 'rollouts/step_1/groups_1-1/chunk_1_of_1/';
  const journal = await RolloutJournal.open(store, prefix, 'bench');
  const until = new AbortController().signal;
  const sampled: Turn[][] = [];
  const policyMs: number[] = [];
  const storeMs: number[] = [];
  const opened = await Promise.all(
    Array.from({ length: programs }, (_, index) => {
      sampled[index] = [];
      const policy = open(async (turn) => {
        sampled[index]!.push(turn);
        const from = performance.now();
        await recordTurn(journal, { group: 1, index, turn: 0, ...turn }, { onRecord: false, until });
        storing.set(turn, performance.now() - from);
        storeMs.push(performance.now() - from);
      });
      return openCapture({ policy: timed(policy, policyMs), model: 'policy', signal: until });
    }),
  );
  const places = opened.map(({ socket, key }) => ({ socketPath: socket, key }));
  const clients = fork(new URL('capture-clients.mjs', import.meta.url), { execArgv: [] });
  clients.send({ programs: places, calls, atOnce, ratePerS });
  const before = process.cpuUsage();
  const [told] = (await once(clients, 'message')) as [{ took: number[]; seconds: number }];
  const { user, system } = process.cpuUsage(before);
  await Promise.all(opened.map((one) => one.close()));
  const again = await RolloutJournal.open(store, prefix, 'another');
  const isEqual = sampled.every((turns, index) => isTrained(again.turnsOf({ group: 1, index }), turns));
  const parts = (await store.list(prefix)).length;
  const cpuMs = (user + system) / 1000 / (programs * calls);
  const perSecond = Math.round((programs * calls) / told.seconds);
  return { ...told, perSecond, policyMs, storeMs, cpuMs, isEqual, parts };
}

const renderingPolicy = (onTurn: Keep): Policy => scriptedPolicy({ says, readsPrompt: false, onTurn });

/** Turns of prepared tokens in a line: each prompt continues the one before. */
function preparedPolicy(onTurn: Keep): Policy {
  const tokens = Array.from({ length: 60 }, (_, i) => i);
  let before: number[] = [];
  let count = 0;
  return {
    async sample(_, { call } = {}) {
      const promptTokenIds = [...before, ...tokens];
      before = [...promptTokenIds, ...tokens];
      const turn: Turn = {
        promptTokenIds,
        tokenIds: tokens,
        logprobs: tokens.map((id) => -id / 64),
        text: `I look at file ${count}.`,
        finishReason: 'stop',
        heard: call!.heard,
        call: { id: `prepared-${count++}`, after: call!.after },
        policyStep: 0,
      };
      await onTurn(turn);
      return turn;
    },
  };
}

const storing = new WeakMap<Turn, number>();

/** Times the policy without the store. */
function timed(policy: Policy, took: number[]): Policy {
  return {
    earlier: [],
    async sample(...asked) {
      const from = performance.now();
      const turn = await policy.sample(...asked);
      took.push(performance.now() - from - (storing.get(turn) ?? 0));
      return turn;
    },
  };
}

let turns = 0;
const says = (): string =>
  `I look at file ${turns++}.\n${callOf('run', { command: `cat file_${turns}.py | head -20` })}`;

function isTrained(stored: readonly Turn[], sampled: readonly Turn[]): boolean {
  const [row, ...others] = trajectoryRows(stored, 'interleaved');
  if (row === undefined || others.length > 0) return false;
  const trained = row.tokenIds.filter((_, t) => row.lossMask[t] === 1);
  const said = sampled.flatMap(({ tokenIds }) => tokenIds);
  return trained.length === said.length && trained.every((id, i) => id === said[i]);
}
