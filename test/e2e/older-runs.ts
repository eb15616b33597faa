/** Runs of older versions of Ratchet, as they were left in the middle of their work, and what becomes of them here. */
import assert from 'node:assert/strict';
import { cp, readFile } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { auditStore } from '../../activities/audit-run.ts';
import { layout } from '../../runs/layout.ts';
import { examineStore } from '../../runs/lineages/examine-store.ts';
import { storeOf } from '../../runs/run-access.ts';
import { decodeStoredRows } from '../../runs/forms/stored-forms.ts';
import { resolveStoreUri } from '../../store/index.ts';
import type { Rollout, ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import type { StepCommit } from '../../core/rl/run-state.ts';
import type { RunSummary, trainRun } from '../../workflows/train-run.ts';
import { unpack } from '../data/older-runs/archive.mjs';
import { openSmallProject, type SmallProject } from './small-run.ts';

const data = fileURLToPath(new URL('../data/older-runs/', import.meta.url));

/** Returns the text of `words.toml` with `level` as its `max_async_level`. */
async function configOf(level: 0 | 1): Promise<string> {
  const text = await readFile(path.join(data, 'words.toml'), 'utf8');
  return text.replace('max_async_level = 0', `max_async_level = ${level}`);
}

async function openOlderProject(level: 0 | 1): Promise<SmallProject> {
  const config = await configOf(level);
  const project = await openSmallProject({ 'words.toml': config });
  await cp(path.join(data, 'models--older--words'), path.join(project.folder, 'models--older--words'), {
    recursive: true,
  });
  return project;
}

/** Replaces the project's folder by that of a recorded run. */
function putRecorded(project: Pick<SmallProject, 'folder'>, name: string): void {
  unpack(path.join(project.folder, 'outputs'), name);
}

async function train({ client }: SmallProject): Promise<RunSummary> {
  const handle = await client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: 'words',
    taskQueue: 'ratchet',
    args: ['words.toml'],
  });
  try {
    return await handle.result();
  } catch (error) {
    const causes: string[] = [];
    for (let cause: unknown = error; cause instanceof Error; cause = cause.cause) causes.push(cause.message);
    throw new Error(causes.join(' ← '), { cause: error });
  }
}

async function commitsOf(project: SmallProject, run: string): Promise<StepCommit[]> {
  const commits: StepCommit[] = [];
  for (let commit = await project.commit(run, 0); commit; commit = await project.commit(run, commits.length))
    commits.push(commit);
  return commits;
}

/**
 * Continues a recorded run, and proves that nothing of it was lost or made twice. Its commits, and how many of them it had. `fromCommit`:
 * nothing is left of the step that was under way, as if the run had been ended in between.
 */
export async function takeOver(
  name: string,
  { level = 0, fromCommit = false }: { readonly level?: 0 | 1; readonly fromCommit?: boolean } = {},
): Promise<{ readonly commits: readonly StepCommit[]; readonly recorded: number }> {
  const project = await openOlderProject(level);
  try {
    return await continued(project, name, fromCommit);
  } finally {
    await project.close();
  }
}

async function continued(
  project: SmallProject,
  name: string,
  fromCommit: boolean,
): Promise<{ readonly commits: readonly StepCommit[]; readonly recorded: number }> {
  putRecorded(project, name);
  const run = { name: 'words', store: resolveStoreUri('outputs', project.folder), lineage: 'main' };
  const store = storeOf(run);
  const before = new Map<string, Uint8Array>();
  for (const key of await store.list('')) before.set(key, (await store.read(key))!);
  const recorded = [...before.keys()].filter((key) => key.startsWith(layout.commits('main'))).length;

  assert.ok(recorded > 1, 'there are commits to continue from');
  if (fromCommit) {
    const underWay = [layout.rounds('main', recorded), `${layout.allBatches('main')}step_${recorded}.`];
    for (const key of before.keys())
      if (underWay.some((prefix) => key.startsWith(prefix))) {
        await store.removeAll(key);
        before.delete(key);
      }
  }

  const summary = await train(project);

  assert.equal(summary.step, 8);
  assert.ok(summary.ledger.isSound, JSON.stringify(summary.ledger));
  for (const audited of (await auditStore(run)).lineages) assert.ok(audited.isSound, JSON.stringify(audited));
  const { faults } = await examineStore(run);
  assert.deepEqual(faults, []);
  for (const [key, bytes] of before) {
    if (key.startsWith(layout.commits('main')))
      assert.deepEqual(await store.read(key), bytes, `${key} is as it was written`);
  }
  if (!fromCommit) await requireAdopted(run, before);
  return { commits: await commitsOf(project, 'words'), recorded };
}

/** Rollouts that were finished by then are in the groups that were scored of them. */
async function requireAdopted(
  run: Parameters<typeof storeOf>[0],
  before: ReadonlyMap<string, Uint8Array>,
): Promise<void> {
  const store = storeOf(run);
  const said = new Map<string, string>();
  for (const key of layout.scoredIn(await store.list(layout.allRounds('main')))) {
    for (const { ordinal, rollouts } of decodeStoredRows<ScoredGroup>((await store.read(key))!, key))
      for (const { index, turns } of rollouts) said.set(`${ordinal}/${index}`, tokensOf(turns));
  }
  let adopted = 0;
  for (const [key, bytes] of before) {
    if (layout.isScored(key)) {
      for (const { ordinal, rollouts } of decodeStoredRows<ScoredGroup>(bytes, key))
        for (const { index, turns } of rollouts)
          assert.equal(said.get(`${ordinal}/${index}`), tokensOf(turns), `group ${ordinal}, which ${key} has`);
      adopted += 1;
    }
    if (!/^rollouts\/.*(?:chunk_\d+_of_\d+|\/part_\d+)\.jsonl$/.test(key)) continue;
    for (const { group, index, turns } of decodeStoredRows<Rollout>(bytes, key)) {
      const found = said.get(`${group}/${index}`);
      assert.equal(found, tokensOf(turns), `rollout ${index} of group ${group}, which ${key} has`);
      adopted += 1;
    }
  }
  assert.ok(adopted > 0, 'the recorded run had finished rollouts');
}

function tokensOf(turns: Rollout['turns']): string {
  return JSON.stringify(turns.map(({ tokenIds }) => tokenIds));
}

/**
 * Weights by step. A run that this version makes from its start has others, as the embedded engine gives other bits than it did on 26 November
 * 2026: stored batches that are trained again give a replay of the head (`v5.r1`), from which the first step after it is trained.
 */
export function requireSameWeights(commits: readonly StepCommit[], undisturbed: readonly StepCommit[]): void {
  const digests = (of: readonly StepCommit[]): string[] => of.map(({ policy }) => policy.digest);
  assert.deepEqual(digests(commits), digests(undisturbed));
  assert.deepEqual(
    commits.map(({ from }) => from?.digest),
    undisturbed.map(({ from }) => from?.digest),
    'both went on from the same weights',
  );
}
