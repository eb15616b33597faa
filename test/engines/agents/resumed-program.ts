/** A real program in sandboxes of this machine, killed with its worker, as the environment `agent` with `[env.resume]` plays it. */
import assert from 'node:assert/strict';
import type { TestContext } from 'node:test';
import { temporaryFolder } from '../../../backends/testing/material.ts';
import type { RolloutRecord } from '../../../backends/environments/types.ts';
import { programHere } from '../../environments/agent/program-here.ts';
import { live } from '../../environments/agent/resumed-life.ts';

export interface ResumedProgram {
  /** Run at first, and in the snapshot. */
  readonly command: readonly string[];
  readonly resume: readonly string[];
  /** Seconds from a call to its snapshot. */
  readonly delayS?: number;
  /** Put into the work folder: contents by name. */
  readonly files?: Readonly<Record<string, string>>;
  /** Folders of this machine with the program. */
  readonly folders: readonly string[];
  /** What the policy says, by turn. */
  readonly answers: readonly string[];
}

interface Played {
  readonly record: RolloutRecord;
  /** Turns that were sampled in all lives. */
  readonly sampled: number;
}

/** Kills it with its worker in each of these turns, once the snapshot before that is written down; then plays it to its end. */
export async function playResumed(
  t: TestContext,
  { command, resume, delayS = 0, files = {}, folders, answers }: ResumedProgram,
  killedIn: readonly number[],
): Promise<Played> {
  const program = await programHere({
    agent: '',
    command,
    resume: { command: resume, every: 1, delayS },
    tasks: [{ prompt: 'Count.', answer: '', files }],
    isDeterministic: false,
    sandbox: { memoryMb: 8192, diskMb: 512 },
    score: { command: ['true'], reads: 'exit_code', files: null, collect: ['log'] },
  });
  const life = { program, store: `file:${await temporaryFolder(t)}`, folders, answers };
  const said: string[] = [];
  for (const turn of killedIn)
    said.push(...(await live({ ...life, hangsAt: turn }, [`samples ${turn}`, `noted snapshot ${turn - 1}`])).said);
  const last = await live(life);
  said.push(...last.said);
  assert.ok(last.record, 'the last life ends');
  return { record: last.record, sampled: said.filter((line) => line.startsWith('sampled ')).length };
}
