import { RatchetError } from '../../core/errors.ts';
import { firstLineage } from '../../core/names.ts';
import type { AskedOfRun } from '../../core/rl/run-state.ts';
import { beginLineage, completeLineage } from './lineages.ts';
import {
  begunLineages,
  committedSteps,
  type LineagePlace,
  readHead,
  requireCommit,
  type RunPlace,
} from '../run-access.ts';

/** The lineage to continue in: the current one, or a new one that begins at the requested or configured step. */
export async function openLineage(
  run: RunPlace,
  asked: { readonly rewind: number | undefined; readonly resumeStep: number | null; readonly request: string },
): Promise<string> {
  const { rewind, resumeStep, request } = asked;
  const begun = await begunLineages(run);
  const newest = begun.at(-1);
  if (newest) await completeLineage(run, newest);
  const lineage = newest?.lineage ?? firstLineage;
  if (begun.some((record) => record.request === request)) return lineage; // done before: newer steps are kept
  if (rewind !== undefined) return (await beginLineage({ run, step: rewind, request })).lineage;
  if (resumeStep === null || resumeStep === -1) return lineage;
  // When an interrupted command is typed again, the lineage exists: newer steps are kept.
  const head = await readHead({ ...run, lineage });
  if (head?.commit.step === resumeStep || (await firstStep({ ...run, lineage })) === resumeStep) return lineage;
  return (await beginLineage({ run, step: resumeStep, request })).lineage;
}

/** The same for a run that is taken over. A request that can no longer be met must not end it. */
export async function openLineageAsAsked(
  run: RunPlace,
  asked: AskedOfRun | null,
): Promise<{ readonly lineage: string; readonly refused: readonly string[] }> {
  const current = { rewind: undefined, resumeStep: null, request: '' };
  const rewind = asked?.rewind;
  try {
    const wanted = rewind ? { ...current, rewind: rewind.step, request: rewind.request } : current;
    return { lineage: await openLineage(run, wanted), refused: [] };
  } catch (error) {
    if (!(error instanceof RatchetError && error.code === 'Unsupported')) throw error;
    return { lineage: await openLineage(run, current), refused: [error.message] };
  }
}

/** Step at which a lineage took over; null when it began with a model. */
async function firstStep(run: LineagePlace): Promise<number | null> {
  const [first] = await committedSteps(run);
  return first === undefined ? null : ((await requireCommit(run, first)).commit.origin?.step ?? null);
}
