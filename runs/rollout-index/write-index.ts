import { randomUUID } from 'node:crypto';
import { open, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { decodeRanges } from '../../core/rl/ledger.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import type { StepCommit } from '../../core/rl/run-state.ts';
import type { Store } from '../../store/index.ts';
import { orIfDamaged } from '../../store/objects.ts';
import { decodeStoredRows } from '../forms/stored-forms.ts';
import { layout, stepOf, stepsOfBlock } from '../layout.ts';
import { committedSteps, type LineagePlace, lineagesOf, requireCommit, type RunPlace, storeOf } from '../run-access.ts';
import { scoredShape } from '../rollouts/scored-groups.ts';
import { type Block, blockOf, decodeBlock, encodeBlock, type IndexedRollout, joinBlocks } from './block.ts';
import { encodeTexts, type RolloutText, textOf } from './texts.ts';

/** A block of so many steps takes the place of their own blocks: 10,000 steps are 157 objects. */
const stepsOfJoinedBlock = 64;
/** Read and copied at once while blocks are joined. */
const copyBytes = 4 * 1024 * 1024;

/**
 * Indexes all committed steps that are missing: one block for each, and one for 64 together once the last of them is
 * there. Objects depend only on commits, so concurrent indexers write the same bytes. Yields each step.
 */
export async function* indexRun(run: RunPlace): AsyncGenerator<{ readonly lineage: string; readonly step: number }> {
  for (const lineage of await lineagesOf(run)) {
    const place = { ...run, lineage };
    const steps = await committedSteps(place);
    const covered = coveredBy(await storeOf(run).list(layout.rolloutIndex(lineage)));
    let before: StepCommit | null = null;
    for (const step of steps.filter((one) => !covered(one))) {
      const { commit } = await requireCommit(place, step);
      const isFirst = step === 0 || commit.origin !== undefined;
      if (!isFirst && before?.step !== step - 1) before = (await requireCommit(place, step - 1)).commit;
      const rows = isFirst ? [] : await rolloutsOf(place, commit, before);
      await writeBlock(storeOf(run), lineage, step, rows);
      if (step % stepsOfJoinedBlock === 0) await joinUpTo(storeOf(run), lineage, step);
      before = commit;
      yield { lineage, step };
    }
  }
}

/**
 * Removes blocks that cannot be read, or whose texts are shorter than recorded, as after a full disk: the next look
 * rebuilds them. Returns their keys.
 */
export async function removeDamagedBlocks(run: RunPlace): Promise<readonly string[]> {
  const store = storeOf(run);
  const removed: string[] = [];
  for (const lineage of await lineagesOf(run)) {
    for (const key of await store.list(layout.rolloutIndex(lineage))) {
      const steps = stepsOfBlock(key);
      if (steps === null) continue;
      const text = layout.indexBlock(lineage, steps.first, steps.last, 'text');
      if (await isWhole(store, key, text)) continue;
      await store.removeAll(key);
      await store.removeAll(text);
      removed.push(key);
    }
  }
  return removed;
}

async function isWhole(store: Store, columns: string, text: string): Promise<boolean> {
  const bytes = await store.read(columns);
  if (bytes === null) return true; // joined meanwhile
  return orIfDamaged(
    async () => {
      const last = decodeBlock(bytes, store.uri + columns).segments.at(-1);
      return last === undefined || (await store.readRange(text, last.at + last.bytes - 1, 1))?.byteLength === 1;
    },
    () => false,
  );
}

/** The rollouts of the groups that ended with a committed step; of groups that were removed from the store since, none. */
export async function rolloutsOfStep(
  run: LineagePlace,
  step: number,
): Promise<readonly Omit<IndexedRollout, 'lineage'>[]> {
  const { commit } = await requireCommit(run, step);
  if (step === 0 || commit.origin !== undefined) return [];
  const { commit: before } = await requireCommit(run, step - 1);
  return (await rolloutsOf(run, commit, before)).map(({ row }) => row);
}

/** Removes the index: the next look rebuilds it. */
export async function removeIndex(run: RunPlace): Promise<void> {
  for (const lineage of await lineagesOf(run)) await storeOf(run).removeAll(layout.rolloutIndex(lineage));
}

function coveredBy(keys: readonly string[]): (step: number) => boolean {
  const blocks = keys.map(stepsOfBlock).filter((block) => block !== null);
  const single = new Set(blocks.filter(({ first, last }) => first === last).map(({ first }) => first));
  const joined = blocks.filter(({ first, last }) => first !== last);
  return (step) => single.has(step) || joined.some(({ first, last }) => first <= step && step <= last);
}

interface WrittenRollout {
  readonly row: Omit<IndexedRollout, 'lineage'>;
  readonly text: RolloutText;
}

/**
 * Rollouts of the groups that ended with a commit. They were sampled for its step, or for an earlier one whose rounds
 * were still open or whose groups waited for a batch.
 */
async function rolloutsOf(run: LineagePlace, commit: StepCommit, before: StepCommit | null): Promise<WrittenRollout[]> {
  const ends = new Map<number, string>();
  for (const [state, ranges] of Object.entries(commit.outcomes.ended))
    for (const ordinal of decodeRanges(ranges ?? '')) ends.set(ordinal, state);
  const steps = new Set([commit.step, ...(before?.state.open ?? []).map(({ step }) => step)]);
  const waiting = (before?.state.surplus ?? []).map(({ scored }) => scored.key);
  for (const key of waiting) steps.add(stepOf(key) ?? commit.step);
  const store = storeOf(run);
  const keys = new Set(waiting);
  for (const step of steps)
    for (const key of layout.scoredIn(await store.list(layout.rounds(run.lineage, step)))) keys.add(key);
  const found = new Map<number, WrittenRollout[]>();
  for (const key of keys) {
    const bytes = await store.read(key);
    if (bytes === null) continue; // removed by gc: its rollouts are no longer found
    for (const [line, group] of decodeStoredRows<ScoredGroup>(bytes, store.uri + key, scoredShape).entries()) {
      const end = ends.get(group.ordinal);
      if (end === undefined || found.has(group.ordinal)) continue;
      found.set(group.ordinal, rowsOfGroup(group, { step: commit.step, end, object: key, line }));
    }
  }
  return [...found].sort(([a], [b]) => a - b).flatMap(([, rows]) => rows);
}

export function rowsOfGroup(
  group: ScoredGroup,
  at: Pick<IndexedRollout, 'step' | 'end' | 'object' | 'line'>,
): WrittenRollout[] {
  return group.rollouts.map((rollout) => {
    const { turns, index, outcome, reward } = rollout;
    const versions = turns.map(({ policyStep, policyStepEnd = policyStep }) => policyStepEnd);
    const row = {
      ...at,
      group: group.ordinal,
      index,
      environment: group.environment,
      exampleId: group.exampleId,
      outcome,
      reward,
      version: turns[0]?.policyStep ?? group.policyStep,
      versionEnd: Math.max(group.policyStep, ...versions),
      tokens: turns.reduce((sum, { tokenIds }) => sum + tokenIds.length, 0),
      turns: turns.length,
    };
    return { row, text: textOf(group, rollout) };
  });
}

export async function writeBlock(
  store: Store,
  lineage: string,
  step: number,
  rows: readonly WrittenRollout[],
): Promise<void> {
  const { bytes, segments } = await encodeTexts(rows.map(({ text }) => text));
  const block = blockOf(
    rows.map(({ row }) => row),
    segments,
  );
  await store.put(layout.indexBlock(lineage, step, step, 'text'), bytes);
  await store.put(layout.indexBlock(lineage, step, step, 'columns'), encodeBlock(block)); // written last, since it names the text
}

/** Joins blocks that end at `last`, of up to 64 single steps. */
export async function joinUpTo(store: Store, lineage: string, last: number): Promise<void> {
  const parts = (await store.list(layout.rolloutIndex(lineage)))
    .map(stepsOfBlock)
    .filter((part) => part !== null)
    .filter(({ first, last: end }) => first === end && first > last - stepsOfJoinedBlock && first <= last)
    .sort((a, b) => a.first - b.first);
  if (parts.length < 2) return;
  const first = parts[0]!.first;
  const file = path.join(os.tmpdir(), `ratchet-index-${randomUUID()}`);
  try {
    const blocks: (Block & { textBytes: number })[] = [];
    const texts = await open(file, 'wx');
    try {
      for (const part of parts) {
        const [columns, text] = (['columns', 'text'] as const).map((what) =>
          layout.indexBlock(lineage, part.first, part.last, what),
        ) as [string, string];
        const bytes = await store.read(columns);
        if (bytes === null) return; // joined meanwhile by another process
        let textBytes = 0;
        for (;;) {
          const piece = await store.readRange(text, textBytes, copyBytes);
          if (piece === null || piece.byteLength === 0) break;
          await texts.writeFile(piece);
          textBytes += piece.byteLength;
        }
        blocks.push({ ...decodeBlock(bytes, store.uri + columns), textBytes });
      }
    } finally {
      await texts.close();
    }
    await store.putFile(layout.indexBlock(lineage, first, last, 'text'), file);
    await store.put(layout.indexBlock(lineage, first, last, 'columns'), encodeBlock(joinBlocks(blocks)));
  } finally {
    await rm(file, { force: true });
  }
  for (const part of parts)
    for (const what of ['columns', 'text'] as const)
      await store.removeAll(layout.indexBlock(lineage, part.first, part.last, what));
}
