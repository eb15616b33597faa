import { Command } from '@commander-js/extra-typings';
import type { Client } from '@temporalio/client';
import { RatchetError } from '../../../core/errors.ts';
import { findRunning } from '../../../workers/temporal/client.ts';
import { ownerOf, requireRole } from '../../../workers/temporal/who-may.ts';
import { type Orchestrator, orchestratorPollers } from '../../../workers/temporal/why-stuck.ts';
import type { WalkedRun } from '../../../workers/stack/walk-fleet.ts';
import { withTemporal } from '../../temporal/with-temporal.ts';
import { print } from '../../output/print.ts';

/** A worker polls anew every minute: one without a poll for longer is gone. */
const polledWithinMs = 75_000;
/** Characters of a digest that suffice to distinguish two versions. */
const shortChars = 8;

interface UpgradeOptions {
  readonly to?: string;
  readonly now?: true;
  readonly dryRun?: true;
}

export const upgradeCommand = new Command('upgrade')
  .description(
    'move open runs to the present version of Ratchet, or to another one, while they are at work: each continues from its newest commit, with what was asked of it; without a name all runs, pools, evaluations, prompt searches and sweeps',
  )
  .argument('[run]')
  .option('--to <version>', 'another version than that of this command, as --dry-run names it: back to the one before')
  .option('--now', 'do not wait until a run has committed the step under way')
  .option('--dry-run', 'what would move, what it waits for, and which orchestrators are there; changes nothing')
  .action((run, options) => withTemporal((client) => upgrade(client, run ?? null, options)));

async function upgrade(client: Client, run: string | null, { to, now, dryRun }: UpgradeOptions): Promise<void> {
  const { lookAtFleet, walkFleet } = await import('../../../workers/stack/walk-fleet.ts');
  const { currentVersion, makeCurrent } = await import('../../../workers/temporal/worker-deployment.ts');
  const { workflowCodeVersion } = await import('../../../workers/program/workflow-bundle.ts');
  const pollers = await orchestratorPollers(client, Date.now() - polledWithinMs);
  const version = to === undefined ? await workflowCodeVersion() : versionNamed(to, pollers);
  const asked = { service: client.workflowService, namespace: client.options.namespace };
  const ours = pollers.filter((one) => one.version === version);
  const isUnversioned = !ours.some(({ isDeployed }) => isDeployed);
  const current = await currentVersion(asked);
  const handle = run === null ? null : await runningOf(client, run);
  const only = handle?.workflowId ?? null;
  const walk = { client, version, isUnversioned, only, isNow: now === true };
  if (dryRun) {
    for (const line of whoIsThere(pollers, { version, current })) print(line);
    for (const line of runLines(await lookAtFleet(walk))) print(line);
    return;
  }
  if (handle === null) await requireRole('upgrading all runs', { of: 'all' });
  else await requireRole('upgrade', { of: 'run', run: run!, owner: ownerOf(handle) });
  if (ours.length === 0) throw noOrchestrator(version, pollers);
  const wanted = isUnversioned ? '' : version;
  if (current !== null && current !== wanted) {
    if (only !== null) throw movesAll(version, to);
    await makeCurrent(asked, wanted);
    print(`new runs begin under version ${short(version)} now`);
  }
  const notMoved = await walkFleet({ ...walk, say: print });
  if (run !== null && notMoved.length === 0) print(`${run}: is at work under version ${short(version)}`);
  if (run === null) for (const line of await drained(client, version)) print(line);
  if (notMoved.length > 0)
    throw new RatchetError(
      'ServerUnavailable',
      `${notMoved.length} could not be moved: ${notMoved.join(', ')}. The same command tries again.`,
    );
}

function versionNamed(named: string, pollers: readonly Orchestrator[]): string {
  const known = [...new Set(pollers.map(({ version }) => version))].filter((version) => version !== '');
  const found = known.filter((version) => version.startsWith(named));
  if (found.length === 1) return found[0]!;
  const there = known.length === 0 ? 'none' : known.map(short).join(', ');
  const said = found.length === 0 ? `no orchestrator of it polls` : `several versions begin so`;
  throw new RatchetError('ConfigInvalid', `--to ${named}: ${said}. Orchestrators are there of: ${there}.`);
}

async function runningOf(client: Client, run: string) {
  const handle = await findRunning(client, run);
  if (handle) return handle;
  const message = `The run ${run} is not running: \`ratchet train\` with its file continues from its newest commit, under the present version.`;
  throw new RatchetError('RunNotFound', message);
}

function noOrchestrator(version: string, pollers: readonly Orchestrator[]): RatchetError {
  const others = [...new Set(pollers.map((one) => short(one.version)))];
  const there = others.length === 0 ? 'none is there' : `there are those of ${others.join(', ')}`;
  return new RatchetError(
    'ServerUnavailable',
    `No orchestrator of version ${short(version)} polls for work (${there}), so runs would stand still. Start one (npx ratchet-rl worker --role orchestrator, of that version), then type this again.`,
  );
}

function movesAll(version: string, to: string | undefined): RatchetError {
  const typed = to === undefined ? '' : ` --to ${to}`;
  return new RatchetError(
    'ConfigInvalid',
    `New runs begin under another version than ${short(version)}, and a run that is moved begins anew. \`npx ratchet-rl upgrade${typed}\` without a run moves all of them.`,
  );
}

function whoIsThere(
  pollers: readonly Orchestrator[],
  { version, current }: { readonly version: string; readonly current: string | null },
): string[] {
  const isCurrent = current === version ? ', under which new runs begin' : '';
  const lines = [`to version ${short(version)}${isCurrent}`];
  if (current !== null && current !== version)
    lines.push(
      `new runs begin under ${current === '' ? 'orchestrators without a deployment version' : `version ${short(current)}`}`,
    );
  for (const { version: one, identity } of pollers) lines.push(`version ${short(one)}: ${identity}`);
  return lines;
}

function runLines(runs: readonly WalkedRun[]): string[] {
  const lines = runs
    .filter(({ is }) => is !== 'here')
    .map(({ workflowId, step, version, is, what }) => {
      const where = `step ${step ?? '–'}, version ${short(version ?? '')}`;
      return `${workflowId} (${where}): ${is === 'due' ? 'moves at once' : is === 'begins' ? `waits for ${what}` : `moves after ${what}`}`;
    });
  const here = runs.length - lines.length;
  return [...lines, `${here} of ${runs.length} runs are at work under that version`];
}

/** Orchestrators of other versions: whether they can be ended. */
async function drained(client: Client, version: string): Promise<string[]> {
  const pollers = await orchestratorPollers(client, Date.now() - polledWithinMs);
  const others = new Set(pollers.map((one) => one.version).filter((one) => one !== version && one !== ''));
  const lines: string[] = [];
  for (const other of others) {
    const query = `TemporalWorkerDeploymentVersion='ratchet:${other}' AND ExecutionStatus='Running'`;
    const { count } = await client.workflow.count(query);
    const who = pollers.filter((one) => one.version === other).map(({ identity }) => identity);
    lines.push(
      count === 0
        ? `version ${short(other)}: nothing is pinned to it; end its orchestrators, if they still run: ${who.join(', ')}`
        : `version ${short(other)}: ${count} workflows are still pinned to it; let its orchestrators run (${who.join(', ')})`,
    );
  }
  return lines;
}

function short(version: string): string {
  return version === '' ? 'unknown' : version.slice(0, shortChars);
}
