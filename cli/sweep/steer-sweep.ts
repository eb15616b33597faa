import { ServiceError, type WorkflowHandle } from '@temporalio/client';
import { RatchetError } from '../../core/errors.ts';
import { sweepWorkflowId } from '../../core/names.ts';
import type { SweepStatus } from '../../core/sweep/sweep.ts';
import { findTemporal, temporalHere } from '../../workers/temporal/client.ts';
import { starterOf } from '../../workers/temporal/history-of-changes.ts';
import { rootMessage } from '../../workers/temporal/root-message.ts';
import { askUpdate } from '../../workers/temporal/update-run.ts';
import { requireRole } from '../../workers/temporal/who-may.ts';
import { print, printJson } from '../output/print.ts';
import { withTemporal } from '../temporal/with-temporal.ts';
import { planSweep, readSweepFile } from './plan-sweep.ts';
import { nothingThere } from './same-sweep.ts';
import { storedSweep } from './stored-sweep.ts';
import { sweepLines } from './sweep-table.ts';

/** What is asked of a sweep; without any of it, how the sweep stands. */
export interface SweepSteering {
  readonly status?: boolean;
  readonly pause?: string | true;
  readonly resume?: boolean;
  readonly cancel?: boolean;
  readonly json?: boolean;
}

/** Asks the sweep of a file, or of that name, how it stands, or asks something of it; the exit code. */
export async function steerSweep(what: string, { pause, resume, cancel, json }: SweepSteering): Promise<number> {
  const file = what.endsWith('.toml') ? what : null;
  const name = file === null ? what : await sweepNameIn(file);
  const onlyLooks = pause === undefined && !resume && !cancel;
  const tell = (status: SweepStatus): number => {
    if (json) printJson(status);
    else print(sweepLines(status).join('\n'));
    return 0;
  };
  // Without a server, what is committed says how it stands: the file names the runs to look at.
  if (onlyLooks && file !== null && (await temporalHere(process.cwd())) === null) return tell(await storedStatus(file));
  if (onlyLooks && file === null) await findTemporal(process.cwd()).catch(sayWithItsFile);
  return withTemporal(async (client) => {
    const handle = client.workflow.getHandle(sweepWorkflowId(name));
    const found = await handle.describe().catch(nothingThere);
    if (found === null && onlyLooks && file !== null) return tell(await storedStatus(file));
    if (found === null) throw noSweep(name);
    if (onlyLooks) {
      const status = await statusOf(handle, name);
      const isOpen = found.status.name === 'RUNNING' || status.phase === 'finished';
      return tell(isOpen ? status : { ...status, phase: 'not running', pausedBecause: null });
    }
    if (found.status.name !== 'RUNNING') throw hasEnded(name, found.status.name);
    await requireRole(`steering the sweep ${name}`, { of: 'run', run: name, owner: () => starterOf(handle) });
    const named = { noun: 'sweep', name, look: `npx ratchet-rl sweep ${name} --status` } as const;
    const tellUpdate = async (update: string, reason: string | null): Promise<void> =>
      print(`${name}: ${await askUpdate(handle, named, { update, args: [reason] })}`);
    if (pause !== undefined) await tellUpdate('pause', pause === true ? null : pause);
    else if (resume) await tellUpdate('resume', null);
    else {
      await handle.cancel();
      print(
        `${name}: asked to end, and its runs with it; what is committed stays. The same ratchet sweep FILE continues it`,
      );
    }
    return 0;
  });
}

/** Long enough for an orchestrator on a busy machine. */
const answerWithinMs = 10_000;

async function statusOf(handle: WorkflowHandle, name: string): Promise<SweepStatus> {
  try {
    const { client } = handle;
    return await client.withDeadline(Date.now() + answerWithinMs, () => handle.query<SweepStatus>('status'));
  } catch (error) {
    if (!(error instanceof ServiceError)) throw error;
    throw new RatchetError(
      'ServerUnavailable',
      `${name}: no orchestrator answers for the sweep (${rootMessage(error)}). Once one is there (ratchet dev, or ratchet worker --role orchestrator), ask again. npx ratchet-rl runs says how far its runs are.`,
      { cause: error },
    );
  }
}

async function sweepNameIn(file: string): Promise<string> {
  return (await readSweepFile(file, process.cwd())).name;
}

async function storedStatus(file: string): Promise<SweepStatus> {
  const { input } = await planSweep(file, { projectFolder: process.cwd(), yes: false, say: () => undefined });
  return storedSweep(input);
}

/** Where there is no server to ask for a name. */
function sayWithItsFile(error: unknown): never {
  if (!(error instanceof RatchetError)) throw error;
  const hint = 'Without it, npx ratchet-rl sweep FILE.toml --status says what the runs of that file have committed.';
  throw new RatchetError(error.code, `${error.message} ${hint}`, { cause: error });
}

function noSweep(name: string): RatchetError {
  return new RatchetError(
    'RunNotFound',
    `This Temporal server knows no sweep ${name} (any more). npx ratchet-rl sweep FILE.toml begins one, or continues it; npx ratchet-rl sweep FILE.toml --status says what its runs have committed.`,
  );
}

function hasEnded(name: string, status: string): RatchetError {
  return new RatchetError(
    'RunNotFound',
    `The sweep ${name} is not running (${status.toLowerCase()}). npx ratchet-rl sweep ${name} --status says how it stands; npx ratchet-rl sweep FILE.toml continues it.`,
  );
}
