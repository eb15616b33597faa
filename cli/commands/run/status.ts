import { Command } from '@commander-js/extra-typings';
import { RatchetError } from '../../../core/errors.ts';
import { temporalHere } from '../../../workers/temporal/client.ts';
import { jsonText, withoutControls } from '../../output/plain-text.ts';
import { silentStack } from '../../temporal/silent-stack.ts';
import { requirePairs } from '../../typed/option-pairs.ts';
import { storeOption } from '../../typed/store-option.ts';
import type { StoredRun } from '../../stored/stored-runs.ts';
import { withTemporal } from '../../temporal/with-temporal.ts';
import { askRun } from './ask-run.ts';
import { listRuns } from './runs.ts';
import { sinksOf } from '../../stored/metrics-sinks.ts';
import { type StatusReport, describe } from '../../describe/status.ts';

export const statusCommand = new Command('status')
  .description('how far a run is and what it is waiting for; without a name, all runs')
  .argument('[run]')
  .option(...storeOption)
  .option('--rollouts', 'its rollouts in play: turns, tokens, tool calls, effects, sandbox and budget of each')
  .option('--rollout <group/index>', 'one of them, or one that has ended, turn by turn')
  .option('--env <name>', 'with --rollouts: of this environment')
  .option('--limit <k>', 'with --rollouts: at most this many, those in play for the longest first', '50')
  .option('--json', 'as one JSON object')
  .action(async (run, { rollouts, rollout, env, limit, ...options }) => {
    if (run === undefined) {
      if (rollouts !== undefined || rollout !== undefined) throw needsRun();
      return listRuns(options);
    }
    if (rollout !== undefined) return (await rolloutsInPlay()).showRollout(run, rollout, options);
    if (rollouts) return (await rolloutsInPlay()).showRollouts(run, { environment: env, limit }, options);
    const report = await reportOf(run, options.store);
    const text = options.json ? jsonText(report, 2) : withoutControls((await describe(report)).join('\n'));
    process.stdout.write(`${text}\n`, () => {
      if (report.sinksError !== null) process.exit(); // exits at once: open requests to the bucket would keep the process alive
    });
  });

requirePairs(statusCommand, {
  apart: [['--rollouts', '--rollout']],
  beside: [
    ['--env', '--rollouts'],
    ['--limit', '--rollouts'],
  ],
});

export async function reportOf(run: string, store: string | undefined): Promise<StatusReport> {
  const untouched = { run, workflow: null, status: null, retries: [], stoppedBecause: null };
  const nothing = { ...untouched, temporalError: null, silent: null };
  const untold = { ...nothing, branches: {}, waiting: null, otherVersions: [] };
  const committed = (await temporalHere(process.cwd())) === null ? await readCommitted(run, store) : null;
  if (committed) {
    return { ...untold, ...(await sinksOf(run, store)), committed, silent: await silentStack(process.cwd()) };
  }
  try {
    const told = await withTemporal((client) => askRun(client, run));
    return {
      ...nothing,
      ...told,
      committed: told.workflow === 'running' ? null : await readCommitted(run, store),
      ...(await sinksOf(run, store ?? told.status?.storeUri)),
    };
  } catch (error) {
    const isKnown = error instanceof RatchetError && ['ServerUnavailable', 'RunNotFound'].includes(error.code);
    const committed = isKnown ? await readCommitted(run, store) : null;
    if (!committed) throw error;
    const sinks = await sinksOf(run, store);
    const silent = (error as RatchetError).code === 'ServerUnavailable' ? await silentStack(process.cwd()) : null;
    return { ...untold, ...sinks, committed, temporalError: (error as Error).message, silent };
  }
}

/** Read from the run's folder; null without one here, or without a commit. Imported on use: it is heavy. */
async function readCommitted(run: string, store: string | undefined): Promise<StoredRun | null> {
  return (await import('../../stored/stored-runs.ts')).findStoredRun(run, store);
}

function needsRun(): RatchetError {
  return new RatchetError(
    'ConfigInvalid',
    'Rollouts are those of one run: expected its name, as in npx ratchet-rl status RUN --rollouts; npx ratchet-rl runs lists the runs.',
  );
}

/** Imported on use: most askers want the status alone. */
async function rolloutsInPlay() {
  return import('../../stored/rollouts-in-play.ts');
}
