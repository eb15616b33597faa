import { isTailPart } from '../../store/log-tail.ts';
import { layout } from '../layout.ts';
import { rescoreKeys } from '../rescores/rescore-store.ts';

/** In the folder of a run, each lineage has its own of these. */
const ofLineage: ReadonlySet<string> = new Set(
  [
    layout.allRounds,
    layout.allBatches,
    layout.allTokenScores,
    layout.allWeights,
    layout.allCheckpoints,
    layout.allCanaries,
    layout.allEvaluations,
    layout.allResults,
    layout.allPromptBranches,
    layout.rolloutIndex,
    layout.served,
  ].map((of) => first(of('main'))),
);

const ofRun: ReadonlySet<string> = new Set(
  [
    layout.run(),
    layout.allSpecs(),
    layout.origins(),
    layout.allPools(),
    layout.sftData(),
    layout.chatTemplate(),
    layout.prompt(''),
    layout.allQuarantined(),
    layout.notices(),
    layout.changes(),
    layout.kept(),
    layout.budgetEntry('', 1),
    layout.metrics(),
    layout.sinks(),
    layout.allEventFiles('main'),
    layout.wandb(),
    layout.allLogs(),
    rescoreKeys.all(),
  ].map(first),
);

/** Of the processes that work on a run: which of them has it, and what they are at. None of it is another's to have. */
const ofProcesses: ReadonlySet<string> = new Set(
  [
    layout.claims(),
    layout.allInPlay('main'),
    layout.allPending('main'),
    layout.olderPending('main'),
    layout.unfinishedImport(),
  ].map(first),
);

/** What is made of commits, or points to the newest: it is archived before them, so that it never knows of a later one. */
const derived: readonly string[] = [
  layout.served('main'),
  layout.allEventFiles('main'),
  layout.wandb(),
  layout.sinks(),
  layout.rolloutIndex('main'),
].map(first);

/** `archived`; `left out` = of processes, or left by an interrupted write; `unknown` = nothing that a run stores. */
export function archivedAs(key: string): 'archived' | 'left out' | 'unknown' {
  const parts = key.split('/');
  const isName = parts.every((part) => part !== '' && part !== '.' && part !== '..') && !/[\\\p{Cc}]/u.test(key);
  if (!isName) return 'unknown';
  if (parts.at(-1)!.startsWith('.tmp-') || isTailPart(key)) return 'left out';
  const inLineage = withoutLineage(key);
  const [top = ''] = inLineage.split('/');
  if (ofProcesses.has(top)) return 'left out';
  if (ofLineage.has(top)) return 'archived';
  if (inLineage !== key) return top === 'steps' ? 'archived' : 'unknown';
  return ofRun.has(top) ? 'archived' : 'unknown';
}

export function isDerived(key: string): boolean {
  return derived.includes(first(withoutLineage(key)));
}

export function isSeal(key: string): boolean {
  return /^checkpoints\/step_\d+\/manifest\.json$/.test(withoutLineage(key));
}

/** Folder of the checkpoint that an object belongs to; null for other objects. */
export function checkpointOf(key: string): string | null {
  return /^(?:lineages\/[^/]+\/)?checkpoints\/step_\d+\//.exec(key)?.[0] ?? null;
}

export function isCommit(key: string): boolean {
  return /^lineages\/[^/]+\/steps\//.test(key);
}

function withoutLineage(key: string): string {
  return key.replace(/^lineages\/(?:main|l\d+)\//, '');
}

function first(key: string): string {
  return key.split('/', 1)[0]!;
}
