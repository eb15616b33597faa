import { RatchetError } from '../core/errors.ts';
import type { RunHandle, RunState } from '../core/rl/run-state.ts';
import { layout } from './layout.ts';
import { RestorableSteps } from './restorable-steps.ts';
import { committedSteps, type LineagePlace, readCommit, storeOf } from './run-access.ts';

/** More than this is not read to say where a run can continue: of what is larger it is only seen that it is there. */
const readBytesMax = 16 * 1024 * 1024;
/** The run has failed by now, and its activity sends no heartbeats. */
const lookMsMax = 1_500;
const stepsLookedAt = 200;

/** Read for every step of a run: without these it continues from none. */
const ofAllSteps = [
  layout.run(),
  layout.allSpecs(),
  layout.origins(),
  layout.claims(),
  layout.trainerClaims(),
  layout.sftData(),
  layout.chatTemplate(),
];

/** A failure to read what is stored, with the newest step that the run continues from without that object, where one is found soon. */
export async function withWayBack(
  run: Pick<RunHandle, 'name' | 'store' | 'lineage'>,
  error: unknown,
): Promise<unknown> {
  if (!(error instanceof RatchetError) || error.code !== 'CheckpointDamaged') return error;
  if (error.message.includes('npx ratchet rewind ')) return error;
  const message = error.message.replaceAll(storeOf(run).uri, '');
  if (ofAllSteps.some((key) => message.includes(key))) return error;
  const step = await soon(newestWithout(run, error.message).catch(() => null)); // the failure itself counts
  if (step === null) return error;
  const advice = `Nothing that was trained up to step ${step} is lost: npx ratchet rewind ${run.name} --step ${step} continues from there.`;
  return new RatchetError(error.code, `${error.message} ${advice}`, { cause: error.cause });
}

/** The newest committed step that can be restored, and whose state names nothing that the message does. */
async function newestWithout(run: LineagePlace, message: string): Promise<number | null> {
  const steps = await RestorableSteps.of(run, { bytesMax: readBytesMax });
  for (const step of (await committedSteps(run)).toReversed().slice(0, stepsLookedAt)) {
    const found = (await steps.at(step)) && (await readCommit(run, step));
    if (found && !namesIn(run, found.commit.state).some((key) => message.includes(key))) return step;
  }
  return null;
}

/** Objects beside weights and batches that a run takes up from a commit. */
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
