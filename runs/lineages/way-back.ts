import { RatchetError } from '../../core/errors.ts';
import type { RunHandle, RunState } from '../../core/rl/run-state.ts';
import { layout } from '../layout.ts';
import { RestorableSteps } from './restorable-steps.ts';
import { committedSteps, type LineagePlace, readCommit, storeOf } from '../run-access.ts';

/** Larger objects are not read while looking for the step; only their existence is checked. */
const readBytesMax = 16 * 1024 * 1024;
/** Short, because the run has failed already and its activity sends no heartbeats. */
const lookMsMax = 1_500;
const stepsLookedAt = 200;

/** Objects that every step needs. If one of these is damaged, no step can be continued from. */
const ofAllSteps = [
  layout.run(),
  layout.allSpecs(),
  layout.origins(),
  layout.claims(),
  layout.trainerClaims(),
  layout.sftData(),
  layout.chatTemplate(),
];

/** Adds to a failed read the newest step that the run can continue from without the object, if one is found quickly. */
export async function withWayBack(
  run: Pick<RunHandle, 'name' | 'store' | 'lineage'>,
  error: unknown,
): Promise<unknown> {
  if (!(error instanceof RatchetError) || error.code !== 'CheckpointDamaged') return error;
  if (error.message.includes('npx ratchet-rl rewind ')) return error;
  const message = error.message.replaceAll(storeOf(run).uri, '');
  if (ofAllSteps.some((key) => message.includes(key))) return error;
  const step = await soon(newestWithout(run, error.message).catch(() => null)); // the original error matters more
  if (step === null) return error;
  const advice = `Nothing that was trained up to step ${step} is lost: npx ratchet-rl rewind ${run.name} --step ${step} continues from there.`;
  return new RatchetError(error.code, `${error.message} ${advice}`, { cause: error.cause });
}

/** Newest committed step that can be restored and whose state does not refer to the damaged object. */
async function newestWithout(run: LineagePlace, message: string): Promise<number | null> {
  const steps = await RestorableSteps.of(run, { bytesMax: readBytesMax });
  for (const step of (await committedSteps(run)).toReversed().slice(0, stepsLookedAt)) {
    const found = (await steps.at(step)) && (await readCommit(run, step));
    if (found && !namesIn(run, found.commit.state).some((key) => message.includes(key))) return step;
  }
  return null;
}

/** Objects that a run continues from, as its commit names them, besides weights and batches. */
function namesIn({ lineage }: LineagePlace, state: RunState): string[] {
  const { surplus, open = [], curriculum, prompts = {} } = state;
  return [
    ...surplus.map(({ scored }) => scored.key),
    ...open.map((round) => layout.round(lineage, round.step, round.first, round.last)),
    ...(curriculum.pools ? [curriculum.pools.key] : []),
    ...Object.values(prompts).map(({ ref }) => ref.key),
  ];
}

async function soon<T>(value: Promise<T>): Promise<T | null> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<null>((resolve) => (timer = setTimeout(resolve, lookMsMax, null)));
  return Promise.race([value, late]).finally(() => clearTimeout(timer));
}
