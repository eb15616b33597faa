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
import { callOf, scriptedPolicy } from '../test/environments/agent/scripted-policy.ts';
import { measurement, type Bench, type Figures } from './measurement.ts';
import { median, round } from './statistics.ts';

/**
 * What the address in front of the policy costs, with a file store: programs in a process of their own make calls with tools in
 * conversations that grow. The policy gives prepared tokens at once.
 *
 * - `added_ms`, goal ≤ 3: the median of a call, one at a time, less that of asking the policy in this process without the
 *   address and the store.
 * - `calls_per_s`, goal ≥ 1,000: calls of many programs at once, all through one process.
 * - `cpu_ms`: processor time of such a call in this process: on a machine that does other things, 1,000 over it tells more.
 * - `rendered_calls_per_s`, `rendered_cpu_ms`: the same with prompts that are rendered by a chat template and tokenized.
 * - `equal`, goal true: what training makes of the turns in the store is token for token what was sampled.
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
    doing('one call at a time');
    const alone = await play(path.join(folder, 'alone'), { programs: 4, atOnce: 1, calls });
    say(`a call takes ${round(median(alone.took), 2)} ms, the policy ${round(median(alone.policyMs), 2)} of them`);
    doing('many programs');
    const crowd = { programs: 2 * programs, atOnce: programs, calls };
    const many = await play(path.join(folder, 'many'), { ...crowd, open: preparedPolicy });
    doing('many programs, with prompts that are rendered');
    const rendered = await play(path.join(folder, 'rendered'), crowd);
    const perSecond = ({ seconds }: { seconds: number }): number => Math.round((2 * programs * calls) / seconds);
    const added = median(alone.took) - median(alone.policyMs);
    return {
      calls_per_s: perSecond(many),
      added_ms: round(added, 2),
      equal: alone.isEqual && many.isEqual && rendered.isEqual,
      cpu_ms: round(many.cpuMs, 3),
      rendered_calls_per_s: perSecond(rendered),
      rendered_cpu_ms: round(rendered.cpuMs, 3),
      call_ms: round(median(alone.took), 2),
      call_ms_at_once: round(median(many.took), 2),
      writes_per_call: round(many.parts / (2 * programs * calls), 3),
    };
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

type Keep = (turn: Turn) => Promise<void>;

interface Play extends Options {
  readonly atOnce: number;
  readonly open?: (onTurn: Keep) => Policy;
}

async function play(folder: string, { programs, atOnce, calls, open = renderingPolicy }: Play) {
  const store = new FileStore(folder);
  const prefix = 'rollouts/step_1/groups_1-1/chunk_1_of_1/';
  const journal = await RolloutJournal.open(store, prefix, 'bench');
  const until = new AbortController().signal;
  const sampled: Turn[][] = [];
  const policyMs: number[] = [];
  const opened = await Promise.all(
    Array.from({ length: programs }, (_, index) => {
      sampled[index] = [];
      const policy = open(async (turn) => {
        sampled[index]!.push(turn);
        const from = performance.now();
        await recordTurn(journal, { group: 1, index, turn: 0, ...turn }, { onRecord: false, until });
        storing.set(turn, performance.now() - from);
      });
      return openCapture({ policy: timed(policy, policyMs), model: 'policy', signal: until });
    }),
  );
  const places = opened.map(({ socket, key }) => ({ socketPath: socket, key }));
  const clients = fork(new URL('capture-clients.mjs', import.meta.url), { execArgv: [] });
  clients.send({ programs: places, calls, atOnce });
  const before = process.cpuUsage();
  const [told] = (await once(clients, 'message')) as [{ took: number[]; seconds: number }];
  const { user, system } = process.cpuUsage(before);
  await Promise.all(opened.map((one) => one.close()));
  const again = await RolloutJournal.open(store, prefix, 'another');
  const isEqual = sampled.every((turns, index) => isTrained(again.turnsOf({ group: 1, index }), turns));
  const parts = (await store.list(prefix)).length;
  const cpuMs = (user + system) / 1000 / (programs * calls);
  return { ...told, policyMs, cpuMs, isEqual, parts };
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
