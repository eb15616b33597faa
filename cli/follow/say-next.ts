import { trainerTraits } from '../../core/kinds/trainers.ts';
import { describeSolved, solvedShare } from '../../core/rl/advice/left-to-learn.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import type { Audience } from './audience.ts';
import { stepRecords } from '../../runs/metrics/step-records.ts';
import { standOfRun } from '../../runs/lineages/standing.ts';
import { goOnWith } from '../stored/stored-runs.ts';
import { whatWasLearned } from './what-was-learned.ts';
import { untilSent } from './until-sent.ts';
import { trainAgain, type TypedCommand, withoutResume } from '../typed/typed-command.ts';

/**
 * Suggests the next command: more steps only when they would find something to learn. Given a signal, it first waits
 * until W&B has the run's metrics.
 */
export async function sayNext(
  typed: TypedCommand,
  spec: RunSpec,
  { say }: Audience,
  left: AbortSignal | null,
): Promise<void> {
  if (left) await untilSent(spec, { say }, left);
  const { name, maxSteps, store } = spec;
  const command = withoutResume(typed);
  const place = { name, store: store.uri };
  const afresh = `${trainAgain(command)} --fresh`;
  if (maxSteps === 0) return say(`next    afresh: ${afresh}`);
  for (const { text, bold } of await whatWasLearned(place)) say(text, bold);
  // The embedded engine's weights are on this machine, so chatting with them is possible.
  if (trainerTraits(spec.trainer).engine === 'embedded') say(`chat    talk to it: npx ratchet-rl chat ${name}`);
  const stand = (await standOfRun(place)) ?? { maxSteps, state: 'finished' };
  const steps = await stepRecords(place);
  const solved = solvedShare(steps.map(({ metrics }) => metrics));
  if (stand.state !== 'finished') {
    say(`next    to continue: ${goOnWith(command, stand)}`);
  } else if (solved === null) {
    say(`next    further: ${goOnWith(command, stand)}`);
  } else {
    say(`next    ${describeSolved(solved)}; look at them:`);
    say(`        npx ratchet-rl rollouts ${name} --step ${steps.at(-1)?.step ?? stand.maxSteps}`);
  }
  say(`        afresh: ${afresh}`);
}
