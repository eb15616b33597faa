/** Rows in which a user's environment raises or hangs. Its misfortune is never a reward. */
import assert from 'node:assert/strict';
import type { Store } from '../../store/index.ts';
import { decodeRows } from '../../store/objects.ts';
import { layout } from '../../runs/layout.ts';
import { decodeRanges } from '../../core/rl/ledger.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import type { StepCommit } from '../../core/rl/run-state.ts';
import { breaks } from './breakable-environment.ts';
import { allColumns, type Column } from './columns.ts';
import { judgeByWeights } from './judge.ts';
import type { Judged, Rows } from './row.ts';

/** In the second step, which has 32 rollouts or more like the first. */
const at = 40;

/** Three attempts of it are given to what hangs. */
const generationTimeoutS = 3;

const nothingMore = (): Promise<void> => Promise.resolve();

const noEnvironment = 'no code of an environment runs there';
const without = (columns: readonly Column[]): Partial<Record<Column, string>> =>
  Object.fromEntries(allColumns.filter((column) => !columns.includes(column)).map((column) => [column, noEnvironment]));

export const environmentFaults = {
  'environment raising': {
    stage: 'environment',
    action: 'fail',
    gaps: {
      'warm-up': { failpoint: breaks.demonstrate, at: 1 },
      generate: { failpoint: breaks.rollout, at },
      score: { failpoint: breaks.score, at },
    },
    overrides: { 'sft.steps': '3', 'sft.batch_size': '4', 'sft.warmup_steps': '1' },
    strike: nothingMore,
    // Turns that were finished are given to the fresh environment again.
    losesNothing: true,
    cannot: without(['warm-up', 'generate', 'score']),
  },
  'environment hanging': {
    stage: 'environment',
    action: 'repeat',
    gaps: { generate: { failpoint: breaks.rollout, at }, score: { failpoint: breaks.score, at } },
    overrides: { generation_timeout: String(generationTimeoutS) },
    strike: nothingMore,
    // A rollout that hangs is lost for good, and so the weights differ.
    judge: (judged) => (judged.column === 'generate' ? judgeAlone(judged) : judgeByWeights(judged)),
    losesNothing: true,
    cannot: {
      ...without(['warm-up', 'generate', 'score']),
      'warm-up': 'a demonstration is made at once: what hangs there holds its process, as when it is stopped (zombie)',
    },
  },
} satisfies Rows;

/**
 * The rollout that hung loses only itself: no reward, and no group; the others of its group keep theirs, and continue.
 */
async function judgeAlone({ run, summary }: Judged): Promise<void> {
  const commits = await Promise.all(
    Array.from({ length: summary.step + 1 }, (_, step) => read<StepCommit>(run.store, layout.commit('main', step))),
  );
  assert.equal(summary.ledger.isSound, true);
  assert.equal(summary.ledger.counts['failed'] ?? 0, 0, 'no group is lost to the rollout that hung');
  const scored = (await run.store.list('rollouts/')).filter((key) => layout.isScored(key));
  const groups = (await Promise.all(scored.map((key) => read<ScoredGroup>(run.store, key)))).flat();
  const hung = groups.filter(({ rollouts }) => rollouts.some(({ outcome }) => outcome === 'timeout'));
  assert.ok(hung.length > 0, 'a rollout that hung');
  for (const { outcome, reward } of hung.flatMap(({ rollouts }) => rollouts)) {
    assert.equal(reward === null, outcome === 'timeout', 'a reward, and only where there was an answer');
  }
  const wentOn = commits
    .flatMap(([commit]) => Object.entries(commit!.outcomes.ended))
    .filter(([state]) => state === 'trained' || state.startsWith('filtered'))
    .flatMap(([, ordinals]) => decodeRanges(ordinals ?? ''));
  for (const { ordinal } of hung) assert.ok(wentOn.includes(ordinal), `group ${ordinal} continued`);
}

async function read<T>(store: Store, key: string): Promise<T[]> {
  return decodeRows<T>((await store.read(key))!, key);
}
