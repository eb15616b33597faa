/** A PostgreSQL server on loopback for the tests of a cluster. */
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { chownSync, writeFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { createConnection } from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { environmentForAll, selectEnvironment } from '../../core/child-environment.ts';
import type { Guard } from '../../workers/stack/guard.ts';
import { choosePort } from '../../workers/stack/ports.ts';
import { GuardedProcess } from './guarded-process.ts';
import { postgresUser } from './programs.ts';

export interface Postgres {
  readonly port: number;
  readonly user: string;
  readonly password: string;
  readonly process: GuardedProcess;
  remove(): Promise<void>;
}

const superuser = 'temporal';

/** Initialized and started, in a folder of its own: its user need not see the test's. */
export async function startPostgres(programs: string, guard: Guard): Promise<Postgres> {
  const room = await mkdtemp(path.join(os.tmpdir(), 'ratchet-postgres-'));
  const user = postgresUser();
  const own = (file: string): void => {
    if (user.uid !== undefined) chownSync(file, user.uid, user.gid);
  };
  own(room);
  const password = randomBytes(16).toString('hex');
  const passwordFile = path.join(room, 'password');
  writeFileSync(passwordFile, password, { mode: 0o600 });
  own(passwordFile);
  const data = path.join(room, 'data');
  const initdb = ['-D', data, '-U', superuser, `--pwfile=${passwordFile}`, '--auth=scram-sha-256', '--encoding=UTF8'];
  await promisify(execFile)(path.join(programs, 'initdb'), [...initdb, '--locale=C', '--no-sync'], {
    cwd: room,
    env: selectEnvironment(environmentForAll, process.env),
    ...user,
  });
  const port = await choosePort(0);
  const settings = {
    listen_addresses: '127.0.0.1',
    port: String(port),
    unix_socket_directories: '',
    max_connections: '200',
    // What is committed is with the kernel before it is acknowledged, so that it survives a killed process; not a lost machine.
    fsync: 'off',
  };
  const log = path.join(room, 'log');
  writeFileSync(log, '');
  own(log);
  const server = new GuardedProcess(
    {
      name: 'PostgreSQL',
      command: path.join(programs, 'postgres'),
      args: ['-D', data, ...Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`])],
      folder: room,
      log,
      user,
      isReady: () => letsIn(port),
    },
    guard,
  );
  try {
    await server.start();
  } catch (error) {
    await rm(room, { recursive: true, force: true });
    throw error;
  }
  return {
    port,
    user: superuser,
    password,
    process: server,
    remove: () => rm(room, { recursive: true, force: true, maxRetries: 5 }),
  };
}

/**
 * Whether PostgreSQL begins a session. It listens a moment before, and refuses sessions while it starts: source, the message
 * flow of a start-up in its documentation of the protocol, version 3.0.
 */
function letsIn(port: number): Promise<boolean> {
  const asked = Buffer.from(`....\0\x03\0\0user\0${superuser}\0\0`, 'latin1');
  asked.writeInt32BE(asked.length);
  return new Promise((resolve) => {
    const socket = createConnection({ host: '127.0.0.1', port }, () => socket.write(asked));
    const finish = (answer: boolean): void => {
      socket.destroy();
      resolve(answer);
    };
    socket.once('data', ([type]) => finish(type === 'R'.charCodeAt(0))); // a request for a password; a refusal is an E
    socket.once('close', () => finish(false));
    socket.once('error', () => finish(false));
  });
}

/** Whether somebody listens on a port of the loopback. */
export function accepts(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = createConnection({ host: '127.0.0.1', port });
    const finish = (answer: boolean): void => {
      socket.destroy();
      resolve(answer);
    };
    socket.once('connect', () => finish(true));
    socket.once('error', () => finish(false));
  });
}
