import { cpSync, existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { Client } from '@temporalio/client';
import { layout } from '../runs/layout.ts';
import { firstLineage, taskQueues } from '../core/names.ts';
import type { StepCommit } from '../core/rl/run-state.ts';
import { damages, type Random } from '../test/bad-input/damages.ts';
import { askStatus } from '../workers/temporal/ask-status.ts';
import { rootMessage } from '../workers/temporal/root-message.ts';
import { retrying } from '../cli/follow/follow-run.ts';
import type { trainRun } from '../workflows/train-run.ts';
import type { Bench } from './measurement.ts';
import { furnishRun } from './bad-input-run.ts';
import { withStack } from './run-project.ts';

export interface ResumeCase {
  readonly key: string;
  readonly damage: string;
}

/** Outcome of resuming a damaged run. */
export interface GoneOn {
  readonly what: string;
  readonly key: string;
  /** `endless`: within the bound it neither ended nor said what it waits for a person to do. */
  readonly end: 'as undisturbed' | 'other digest' | 'failed' | 'paused' | 'endless';
  readonly said: string;
}

/** Side by side: they wait for one trainer, and for much else. */
const atOnce = 3;
/** Beyond what an undisturbed run takes beside as many others. */
const boundFactor = 6;
const boundLeastMs = 45_000;
/** A run that does not end beside others is resumed once more, alone: waiting for the one trainer is not a hang. */
const boundAloneMs = 180_000;
const stepsEnd = 5;

/** Resumes copies of a run in one place, one undisturbed and one for each case. */
export async function goOn(
  bench: Bench,
  options: {
    readonly folder: string;
    readonly run: string;
    readonly runFile: string;
    readonly cases: readonly ResumeCase[];
    readonly random: Random;
  },
): Promise<GoneOn[]> {
  const { folder, run, runFile, cases, random } = options;
  const place = path.join(folder, 'resumes');
  const sound = path.join(folder, 'outputs', run);
  const prepare = (name: string): void => {
    cpSync(sound, path.join(place, 'outputs', name, run), { recursive: true });
    writeFileSync(path.join(place, `${name}.toml`), `${runFile}\n[store]\nuri = "file:outputs/${name}"\n`);
  };
  const digestOf = async (name: string): Promise<string> => {
    const below = path.join(place, 'outputs', name, run);
    // The last lineage has it: the run has been rewound before.
    const lineage = (await readdir(path.join(below, 'lineages'))).sort().findLast((one) => {
      return existsSync(path.join(below, layout.commit(one, stepsEnd)));
    });
    const commit = await readFile(path.join(below, layout.commit(lineage ?? firstLineage, stepsEnd)), 'utf8');
    return (JSON.parse(commit) as StepCommit).policy.digest;
  };
  mkdirSync(place);
  furnishRun(place);
  return withStack(
    bench,
    place,
    async (client) => {
      bench.doing('running undisturbed');
      prepare('undisturbed');
      const startedAt = Date.now();
      const first = await carryOn(client, 'undisturbed', run, 300_000);
      if (first.end !== 'ended') throw new Error(`undisturbed, the run ${first.end}: ${first.said}`);
      const expected = await digestOf('undisturbed');
      const boundMs = Math.max(boundLeastMs, boundFactor * atOnce * (Date.now() - startedAt));
      const goOnWith = async (name: string, { key, damage }: ResumeCase, bound: number): Promise<GoneOn> => {
        bench.signal.throwIfAborted();
        const what = `train: ${key} ${damage}`;
        prepare(name);
        damages[damage]!(path.join(place, 'outputs', name, run, key), random);
        const { end, said } = await carryOn(client, name, run, bound);
        if (end !== 'ended') return { what, key, end, said };
        const digest = await digestOf(name);
        const became = digest === expected ? 'as undisturbed' : 'other digest';
        return { what, key, end: became, said: `v${stepsEnd} is ${digest}, undisturbed ${expected}` };
      };
      const tell = ({ end, what, said }: GoneOn): void =>
        bench.say(`${end}: ${what}${end === 'as undisturbed' ? '' : `: ${said.slice(0, 300)}`}`);
      const done: GoneOn[] = [];
      const late: [name: string, case_: ResumeCase][] = [];
      const queue = [...cases.entries()];
      const work = async (): Promise<void> => {
        for (let next = queue.shift(); next !== undefined; next = queue.shift()) {
          const [i, one] = next;
          const gone = await goOnWith(`case-${i}`, one, boundMs);
          tell(gone);
          if (gone.end === 'endless') late.push([`case-${i}-alone`, one]);
          else done.push(gone);
        }
      };
      await Promise.all(Array.from({ length: atOnce }, work));
      for (const [name, one] of late) {
        const gone = await goOnWith(name, one, boundAloneMs);
        tell(gone);
        done.push(gone);
      }
      return done;
    },
    { mayRestart: true },
  );
}

async function carryOn(
  client: Client,
  name: string,
  run: string,
  boundMs: number,
): Promise<{ end: 'ended' | 'failed' | 'paused' | 'endless'; said: string }> {
  const handle = await client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: name,
    taskQueue: taskQueues.orchestrator,
    workflowTaskTimeout: '5s',
    args: [{ config: `${name}.toml`, run }],
  });
  const ended = handle.result().then(
    () => ({ end: 'ended', said: '' }) as const,
    (error: unknown) => ({ end: 'failed', said: rootMessage(error) }) as const,
  );
  const startedAt = Date.now();
  for (;;) {
    const over = await Promise.race([ended, delay(1_000)]);
    if (over) return over;
    const status = await askStatus(handle, 1_000).catch(() => null);
    const pausedBecause = status?.pausedBecause ?? null;
    if (pausedBecause !== null) {
      await handle.terminate('paused');
      return { end: 'paused', said: pausedBecause };
    }
    if (Date.now() - startedAt < boundMs) continue;
    const retries = (await retrying(handle)) ?? [];
    await handle.terminate('endless');
    return { end: 'endless', said: retries.join('; ') || (status?.waitingOn ?? []).map(({ what }) => what).join('; ') };
  }
}
