import { setTimeout as delay } from 'node:timers/promises';
import { WorkflowNotFoundError, type WorkflowHandle } from '@temporalio/client';
import { Command } from '@commander-js/extra-typings';
import { RatchetError } from '../../../core/errors.ts';
import { keysAt } from '../../../config/toml/schema-reader.ts';
import { RatchetConfig } from '../../../config/settings/index.ts';
import { type LiveSetting, liveSettingNames, liveSettings, unknownSetting } from '../../../core/rl/live-settings.ts';
import type { Person } from '../../../core/roles.ts';
import { ownerOf, requireRole } from '../../../workers/temporal/who-may.ts';
import { findRun } from '../../../workers/temporal/client.ts';
import { type Argument, updateRun } from '../../../workers/temporal/update-run.ts';
import { type Stuck, whyStuck } from '../../../workers/temporal/why-stuck.ts';
import { withTemporal } from '../../temporal/with-temporal.ts';
import { print } from '../../output/print.ts';

export const pauseCommand = new Command('pause')
  .description('let what is under way finish, then start no further step; the GPU is given back after a minute')
  .argument('<run>')
  .argument('[reason]', 'shown by `ratchet status`')
  .action((run, reason = '') => tell(run, 'pause', [reason.trim() || 'asked to']));

export const resumeCommand = new Command('resume')
  .description('continue after a pause')
  .argument('<run>')
  .action((run) => tell(run, 'resume', [null]));

export const stopCommand = new Command('stop')
  .description(
    'end the run after the step under way, with its evaluations and its checkpoint; `ratchet train FILE` continues later',
  )
  .argument('<run>')
  .option('--now', 'cancel what is under way instead; nothing committed is lost')
  .action((run, options) => (options.now ? stopNow(run) : tell(run, 'stop', [null])));

export const setCommand = new Command('set')
  .description('change a running run, from its next step on')
  .argument('<run>')
  .argument('<settings...>', 'name=value …')
  .addHelpText('after', `\nWhat can be set:\n${settingLines().join('\n')}\n`)
  .action((run, settings) => tell(run, 'set', [readSettings(settings, run)]));

function settingLines(): string[] {
  return liveSettingNames.map((name) => {
    const { expected, says } = liveSettings[name];
    return `  ${name.padEnd(22)}${expected}; ${says}`;
  });
}

/** `name=value` pairs as numbers; refuses names that cannot be set, so that this needs no server. */
export function readSettings(pairs: readonly string[], run: string): Record<string, number> {
  const settings = new Map<string, number>();
  for (const pair of pairs) {
    const [, written = '', text] = /^([^=]*)(?:=(.*))?$/s.exec(pair)!;
    const name = liveNameOf(written);
    if (name === null) throw new RatchetError('ConfigInvalid', unknownSetting(written, run, isOfRunFile(written)));
    if (settings.has(name)) throw new RatchetError('ConfigInvalid', `${name} is given twice.`);
    const value = text === undefined || text.trim() === '' ? Number.NaN : Number(text);
    if (Number.isNaN(value)) {
      const { expected } = liveSettings[name];
      throw new RatchetError(
        'ConfigInvalid',
        `${name}: expected ${expected}, as in ${name}=VALUE; got ${JSON.stringify(text ?? '')}`,
      );
    }
    settings.set(name, value);
  }
  return Object.fromEntries(settings);
}

function isOfRunFile(written: string): boolean {
  const path = written.trim().replace(/^--/, '').replaceAll('-', '_').split('.');
  return keysAt(RatchetConfig, path.slice(0, -1)).includes(path.at(-1)!);
}

/** Dashes as on the command line of train are fine. */
function liveNameOf(written: string): LiveSetting | null {
  const name = written.trim().replace(/^--/, '').replaceAll('-', '_');
  return liveSettingNames.find((known) => known === name) ?? null;
}

/** Sends an update and prints the run's answer. */
export async function tell(run: string, update: string, args: Argument): Promise<void> {
  print(`${run}: ${await askUpdate(run, update, args)}`);
}

/** Returns the run's own words about what it did. */
export function askUpdate(run: string, update: string, args: Argument, as?: Person): Promise<string> {
  return withTemporal(async (client) => updateRun(await findRun(client, run), run, { update, args, as }), as);
}

/** How long one waits to see a cancelled run end. */
const endPatienceMs = 30_000;
/** Interval between looks at why a run does not end. */
const stuckLookMs = 2_000;

async function stopNow(run: string): Promise<void> {
  await withTemporal(async (client) => {
    const handle = await findRun(client, run);
    if ((await nameOfStatus(handle)) !== 'RUNNING') {
      throw new RatchetError(
        'RunNotFound',
        `The run ${run} is not running; \`npx ratchet-rl status ${run}\` says how far it is.`,
      );
    }
    await requireRole('stop --now', { of: 'run', run, owner: ownerOf(handle) });
    await handle.cancel();
    const status = await untilEnded(handle, run);
    const goOn = 'What is committed stays; `ratchet train` with its file continues from there.';
    print(
      status === 'RUNNING'
        ? `${run}: told to cancel; what is under way has not ended after ${endPatienceMs / 1000} s. \`npx ratchet-rl status ${run}\` says what it waits for. ${goOn}`
        : `${run}: running → ${status.toLowerCase()}. ${goOn}`,
    );
  });
}

/**
 * Waits until the run ends, and returns how. A workflow that cannot take the request, because it is stuck or has no
 * worker, is terminated; its commits stay.
 */
async function untilEnded(handle: WorkflowHandle, run: string): Promise<string> {
  let lookedAt = Date.now();
  for (const start = Date.now(); ;) {
    const status = await nameOfStatus(handle);
    if (status !== 'RUNNING') return status;
    const isOver = Date.now() - start > endPatienceMs;
    if (isOver || Date.now() - lookedAt > stuckLookMs) {
      lookedAt = Date.now();
      const stuck = await whyStuck(handle, run);
      // Waits for an orchestrator that is being restarted.
      if (stuck && (stuck.is !== 'nobody there' || isOver)) await terminate(handle, stuck);
      else if (isOver) return status;
    }
    await delay(200);
  }
}

/** Terminates the run with its evaluations and searches, which are just as stuck. */
async function terminate(handle: WorkflowHandle, { text }: Stuck): Promise<void> {
  const { raw } = await handle.describe();
  await handle.terminate(`ratchet stop --now: ${text}`);
  for (const { workflowId } of raw.pendingChildren ?? []) {
    await handle.client
      .getHandle(workflowId ?? '')
      .terminate('its run was stopped')
      .catch((error: unknown) => {
        if (!(error instanceof WorkflowNotFoundError)) throw error; // it has ended meanwhile
      });
  }
}

async function nameOfStatus(handle: WorkflowHandle): Promise<string> {
  return (await handle.describe()).status.name;
}
