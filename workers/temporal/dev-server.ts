import { execFile } from 'node:child_process';
import { existsSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import type { Connection } from '@temporalio/client';
import { searchAttributes } from './search-attributes.ts';

interface ServerPorts {
  readonly grpc: number;
  readonly ui: number;
}

/** Default ports of Temporal and its UI. */
export const defaultPorts: ServerPorts = { grpc: 7233, ui: 8233 };

/** How long a finished run stays in the UI; the server's own default is a day. */
const retentionDays = 30;

/** Files of one embedded server. */
export function serverFiles(stateFolder: string) {
  return {
    database: join(stateFolder, 'temporal.db'),
    version: join(stateFolder, 'temporal.version'),
    process: join(stateFolder, 'temporal.pid'),
  };
}

/**
 * Dynamic configuration that shares rollout workers among runs (`core/fleet/rollout-turns.ts`). A queue has four
 * partitions by default: each shares what it happens to have, with the pollers that happen to ask it, and a few hundred
 * pieces of work are far from fair by that.
 */
export const fairQueues: Readonly<Record<string, string>> = {
  'matching.enableFairness': 'true',
  'matching.numTaskqueueReadPartitions': '1',
  'matching.numTaskqueueWritePartitions': '1',
};

/**
 * WAL and eager activities halve the time of a short step (98 → 40 ms per activity). `settings`: further dynamic
 * configuration. `uiHost`: address of the UI. `isFair`: see {@link prepareDatabase}.
 */
export function serverArguments(
  ports: ServerPorts,
  databaseFile: string,
  {
    settings = {},
    uiHost = '127.0.0.1',
    isFair = true,
  }: {
    readonly settings?: Readonly<Record<string, string>> | undefined;
    readonly uiHost?: string;
    readonly isFair?: boolean;
  } = {},
): string[] {
  const options: readonly (readonly [string, string])[] = [
    ['--ip', '127.0.0.1'],
    ['--port', String(ports.grpc)],
    ['--ui-ip', uiHost],
    ['--ui-port', String(ports.ui)],
    // Besides gRPC the server has an HTTP port that accepts posts from any web page. This setting allows only a host
    // name that no page has.
    ['--dynamic-config-value', 'frontend.httpAllowedHosts=["nobody.invalid"]'],
    ['--db-filename', databaseFile],
    ['--sqlite-pragma', 'journal_mode=wal'],
    ['--sqlite-pragma', 'synchronous=1'],
    ['--dynamic-config-value', 'system.enableActivityEagerExecution=true'],
    // The server reads its only shard's transfer queue 20 times a second by default: 50 ms for every task that is handed out.
    ['--dynamic-config-value', 'history.transferProcessorMaxPollRPS=500'],
    // Timers and retries are rounded up to this, by default to 1 s.
    ['--dynamic-config-value', 'history.timerProcessorMaxTimeShift="10ms"'],
    ...Object.entries({ ...(isFair ? fairQueues : {}), ...settings }).map(
      ([key, value]) => ['--dynamic-config-value', `${key}=${value}`] as const,
    ),
    ['--log-level', 'warn'],
  ];
  const attributes = Object.entries(searchAttributes).map(([name, type]) => ['--search-attribute', `${name}=${type}`]);
  return ['server', 'start-dev', ...options.flat(), ...attributes.flat()];
}

/** The server version that wrote the database of a stack; null if it is not recorded. */
export function databaseVersion(stateFolder: string): string | null {
  return recordOf(stateFolder)?.version ?? null;
}

/** Written in the second line of the record. Code of before 1 December 2026 takes that for another version, and so begins a new database. */
const fairMark = 'fair queues';

function recordOf(stateFolder: string): { readonly version: string; readonly isFair: boolean } | null {
  const { version: file } = serverFiles(stateFolder);
  if (!existsSync(file)) return null;
  const [version = '', mark] = readFileSync(file, 'utf8').trim().split('\n');
  return { version, isFair: mark === fairMark };
}

/**
 * A database is only given to the server version that wrote it: Temporal does not promise that another reads it. One of another
 * version is moved aside, never deleted. Runs are not lost by it: their truth is in the store, and starting them again resumes.
 *
 * Returns whether its queues are fair. A server keeps what waits in fair queues in another table (1.29), and reads only one of the
 * two, and of the partitions those that there are: so a database stays as it was begun.
 */
export function prepareDatabase(
  stateFolder: string,
  serverVersion: string,
  log: (line: string) => void,
): { readonly isFair: boolean } {
  const files = serverFiles(stateFolder);
  const record = recordOf(stateFolder);
  const written = record?.version ?? 'unknown';
  if (existsSync(files.database) && written !== serverVersion) {
    const aside = join(stateFolder, `temporal.${written}.${new Date().toISOString().replaceAll(/[:.]/g, '-')}.db`);
    for (const suffix of ['', '-wal', '-shm']) {
      if (existsSync(files.database + suffix)) renameSync(files.database + suffix, aside + suffix);
    }
    log(
      `the history in ${files.database} was written by Temporal server ${written}, this one is ${serverVersion}: ` +
        `moved to ${aside}, starting a new one; runs resume from their store when started again`,
    );
  }
  const isFair = !existsSync(files.database) || record?.isFair === true;
  writeFileSync(files.version, `${serverVersion}\n${isFair ? `${fairMark}\n` : ''}`);
  return { isFair };
}

/**
 * A server of an earlier start that outlived both its supervisor and its guard (`killall -9 node`) still has the database open, and
 * a second one on the same file corrupts both. It is ours if it is the recorded process and has our database on its command line.
 */
export async function endLeftoverServer(stateFolder: string, log: (line: string) => void): Promise<void> {
  const files = serverFiles(stateFolder);
  if (!existsSync(files.process)) return;
  const pid = Number(readFileSync(files.process, 'utf8'));
  if (Number.isSafeInteger(pid) && pid > 1 && (await commandLine(pid)).includes(files.database)) {
    log(`ending a Temporal server left over from an earlier start (process ${pid})`);
    for (const signal of ['SIGTERM', 'SIGKILL'] as const) {
      signalProcess(pid, signal);
      for (let turn = 0; turn < 40 && (await commandLine(pid)).includes(files.database); turn += 1) await sleep(50);
    }
  }
  rmSync(files.process, { force: true });
}

export function recordServer(stateFolder: string, pid: number): void {
  writeFileSync(serverFiles(stateFolder).process, String(pid));
}

/** Asks a server once; true when it answers, knows its search attributes, and keeps runs for `retentionDays`. */
export async function isServing(address: string): Promise<boolean> {
  const { Connection } = await import('@temporalio/client');
  const { msToTs } = await import('@temporalio/common/lib/time.js');
  let connection: Connection | null = null;
  try {
    connection = await Connection.connect({ address, connectTimeout: 2_000 });
    const { customAttributes } = await connection.operatorService.listSearchAttributes({ namespace: 'default' });
    if (Object.keys(searchAttributes).some((name) => !(name in customAttributes))) return false;
    const config = { workflowExecutionRetentionTtl: msToTs(retentionDays * 24 * 3_600_000) };
    await connection.workflowService.updateNamespace({ namespace: 'default', config });
    return true;
  } catch {
    return false;
  } finally {
    await connection?.close();
  }
}

async function commandLine(pid: number): Promise<string> {
  try {
    return (await promisify(execFile)('ps', ['-ww', '-o', 'command=', '-p', String(pid)])).stdout;
  } catch {
    return '';
  }
}

function signalProcess(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch {
    // Gone already.
  }
}
