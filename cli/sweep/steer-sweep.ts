import { RatchetError } from '../../core/errors.ts';
import { sweepWorkflowId } from '../../core/names.ts';
import type { SweepStatus } from '../../core/sweep/sweep.ts';
import { temporalHere } from '../../workers/temporal/client.ts';
import { starterOf } from '../../workers/temporal/history-of-changes.ts';
import { requireRole } from '../../workers/temporal/who-may.ts';
import { print, printJson } from '../output/print.ts';
import { refusedUpdate } from '../temporal/refused-update.ts';
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
  return withTemporal(async (client) => {
    const handle = client.workflow.getHandle(sweepWorkflowId(name));
    const found = await handle.describe().catch(nothingThere);
    if (found === null && onlyLooks && file !== null) return tell(await storedStatus(file));
    if (found === null) throw noSweep(name);
    if (onlyLooks) {
      const status = await handle.query<SweepStatus>('status');
      const isOpen = found.status.name === 'RUNNING' || status.phase === 'finished';
      return tell(isOpen ? status : { ...status, phase: 'not running' });
    }
    if (found.status.name !== 'RUNNING') throw hasEnded(name, found.status.name);
    await requireRole(`steering the sweep ${name}`, { of: 'run', run: name, owner: () => starterOf(handle) });
    if (cancel) {
      await handle.cancel();
      print(
        `${name}: asked to end, and its runs with it; what is committed stays. The same ratchet sweep FILE continues it`,
      );
      return 0;
    }
    try {
      const answer = resume
        ? await handle.executeUpdate<string, []>('resume')
        : await handle.executeUpdate<string, [string | null]>('pause', { args: [pause === true ? null : pause!] });
      print(`${name}: ${answer}`);
      return 0;
    } catch (error) {
      throw refusedUpdate(name, error);
    }
  });
}

async function sweepNameIn(file: string): Promise<string> {
  return (await readSweepFile(file, process.cwd())).name;
}

async function storedStatus(file: string): Promise<SweepStatus> {
  const { input } = await planSweep(file, { projectFolder: process.cwd(), yes: false, say: () => undefined });
  return storedSweep(input);
}

function noSweep(name: string): RatchetError {
  return new RatchetError(
    'RunNotFound',
    `This Temporal server knows no sweep ${name} (any more). npx ratchet-rl sweep FILE.toml begins one, or continues it; with --status it says what its runs have committed.`,
  );
}

function hasEnded(name: string, status: string): RatchetError {
  return new RatchetError(
    'RunNotFound',
    `The sweep ${name} is not running (${status.toLowerCase()}). npx ratchet-rl sweep ${name} --status says how it stands; npx ratchet-rl sweep FILE.toml continues it.`,
  );
}
