/** Rescores driven through the real activities. */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import path from 'node:path';
import { MockActivityEnvironment } from '@temporalio/testing';
import { closeRescore } from '../../activities/rescore/close-rescore.ts';
import { createOpenRescore } from '../../activities/rescore/open-rescore.ts';
import { createRescoreChunk } from '../../activities/rescore/rescore-chunk.ts';
import type { Environments } from '../../backends/environments/index.ts';
import type { EvaluatedEnvironment } from '../../core/eval/evaluation.ts';
import type { JudgeUse, RescoredChunk, RescoreHandle, RescoreInput, RescoreResult } from '../../core/eval/rescore.ts';
import { rescoreId, rescoreKeys } from '../../runs/rescores/rescore-store.ts';
import type { TestRun } from './runs.ts';

/** A rescore of a run's steps, by its environments' own rubrics if nothing else is said. */
export function rescoreOfRun({ run, spec }: TestRun, over: Partial<RescoreInput> = {}, fresh = 0): RescoreInput {
  const { name, store } = run;
  const asked = {
    subject: { kind: 'run' as const, name, store, steps: { first: 1, last: 1_000 } },
    environments: spec.environments.map(({ id, name: own, args }) => ({ id, name: own, args })),
    rubric: null,
    failedOnly: false,
    ...over,
  };
  return { ...asked, results: { store, name, prefix: rescoreKeys.place('', rescoreId(asked, fresh)) } };
}

/** A module of the user's that exports a rubric. */
export async function rubricFile(folder: string, name: string, text: string): Promise<EvaluatedEnvironment> {
  const file = path.join(folder, name);
  await writeFile(file, text);
  const sha256 = createHash('sha256').update(readFileSync(file)).digest('hex');
  return { id: file, name, args: {}, sha256 };
}

interface With {
  readonly environments?: Environments;
  readonly allowed?: Partial<JudgeUse>;
  readonly request?: string;
  readonly activity?: MockActivityEnvironment;
}

export async function openRescore(input: RescoreInput, { environments }: With = {}): Promise<RescoreHandle> {
  const open = createOpenRescore({ codeVersion: 'test', ...(environments && { environments }) });
  return (await new MockActivityEnvironment().run(open, { input })) as RescoreHandle;
}

export async function rescoreChunk(handle: RescoreHandle, chunk: number, given: With = {}): Promise<RescoredChunk> {
  const { environments, allowed, request = 'w/1', activity = new MockActivityEnvironment() } = given;
  const work = createRescoreChunk(environments ? { environments } : {});
  return (await activity.run(work, { handle, chunk, request, ...(allowed && { allowed }) })) as RescoredChunk;
}

/** All of it, as the workflow does. */
export async function rescoreAll(input: RescoreInput, given: With = {}): Promise<RescoreResult> {
  const handle = await openRescore(input, given);
  const judge = { calls: 0, tokens: 0 };
  for (let chunk = 0; chunk < handle.chunks; chunk++) {
    const { use } = await rescoreChunk(handle, chunk, given);
    judge.calls += use.calls;
    judge.tokens += use.tokens;
  }
  return closeRescoreOf(handle, judge);
}

export async function closeRescoreOf(handle: RescoreHandle, judge: JudgeUse): Promise<RescoreResult> {
  return (await new MockActivityEnvironment().run(closeRescore, { handle, judge, seconds: 1 })) as RescoreResult;
}
