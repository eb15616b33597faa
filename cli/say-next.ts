import { describeSolved, solvedShare } from '../core/rl/left-to-learn.ts';
import type { RunSpec } from '../config/run-spec.ts';
import type { Audience } from './audience.ts';
import { stepRecords } from './run-records.ts';
import { standOfRun } from '../runs/standing.ts';
import { goOnWith } from './stored-runs.ts';
import { whatWasLearned } from './what-was-learned.ts';
import { untilSent } from './until-sent.ts';
import { trainAgain, type TypedCommand, withoutResume } from './typed-command.ts';

/** What a person may type next: more steps only where these would find something to learn. With a signal it waits first until W&B has the run's metrics. */
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
  // The embedded engine's weights are here to be talked to.
  if (spec.trainer.kind === 'onnx') say(`chat    talk to it: npx ratchet-rl chat ${name}`);
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
