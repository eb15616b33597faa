/**
 * A real S3 server for tests: the Versity gateway over two folders. As a program (`npm test` does it) it makes sure that there is one in
 * the cache of the Temporal CLI and prints its path.
 */
import { spawn } from 'node:child_process';
import { existsSync, realpathSync } from 'node:fs';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { setTimeout as delay } from 'node:timers/promises';
import { cacheFolder } from '../../host/cache-folder.ts';
import type { S3Location } from '../../store/store-uri.ts';
import { environmentForAll, selectEnvironment } from '../../core/child-environment.ts';
import { buildAlone, buildGoProgram, type GoProgram } from '../../workers/install/go-build.ts';
import { choosePort } from '../../workers/stack/ports.ts';

const program: GoProgram = {
  name: 'S3 server for tests (versitygw)',
  module: 'github.com/versity/versitygw',
  package: 'cmd/versitygw',
  version: '1.8.0',
  bytesNeeded: 3_000_000_000,
  minutes: 2,
};

const folder = path.join(cacheFolder(), `versitygw-${program.version}`);
const binary = path.join(folder, 'versitygw');

/** Says why tests against S3 are skipped, or false. */
export const skipWithoutGateway: string | false =
  !existsSync(binary) &&
  'there is no S3 server here: npm test builds it where there is Go ≥ 1.25, or Python, whose package index has Go';

/** Credentials of the gateway; the tests find them like a user would, in the environment. */
export const credentials = { accessKeyId: 'ratchet-tests', secretAccessKey: 'ratchet-tests-secret' };

export interface Gateway {
  readonly port: number;
  /** Folder with the bucket's objects as files. */
  readonly bucketFolder: string;
  readonly location: (prefix: string) => S3Location;
  /** Ends it at once; its files stay. */
  readonly stop: () => Promise<void>;
  readonly start: () => Promise<void>;
  readonly remove: () => Promise<void>;
}

/** A gateway with one empty bucket. The process's AWS_* variables become those of the gateway's owner. */
export async function startGateway(): Promise<Gateway> {
  process.env['AWS_ACCESS_KEY_ID'] = credentials.accessKeyId;
  process.env['AWS_SECRET_ACCESS_KEY'] = credentials.secretAccessKey;
  const room = await mkdtemp(path.join(tmpdir(), 'ratchet-s3-'));
  const [metadata, data, bucketFolder] = [
    path.join(room, 'metadata'),
    path.join(room, 'data'),
    path.join(room, 'data', 'runs'),
  ];
  await mkdir(metadata);
  await mkdir(bucketFolder, { recursive: true });
  const port = await choosePort(0);
  let stop = await startProcess(port, metadata, data);
  return {
    port,
    bucketFolder,
    location: (prefix) => ({
      bucket: 'runs',
      prefix,
      endpoint: `http://127.0.0.1:${port}`,
      region: null,
      pathStyle: true,
      sse: null,
      kmsKeyId: null,
    }),
    stop: () => stop(),
    async start() {
      stop = await startProcess(port, metadata, data);
    },
    async remove() {
      await stop();
      await rm(room, { recursive: true, force: true });
    },
  };
}

async function startProcess(port: number, metadata: string, data: string): Promise<() => Promise<void>> {
  const child = spawn(binary, ['--port', `127.0.0.1:${port}`, 'posix', '--sidecar', metadata, data], {
    env: {
      ...selectEnvironment(environmentForAll, process.env),
      ROOT_ACCESS_KEY: credentials.accessKeyId,
      ROOT_SECRET_KEY: credentials.secretAccessKey,
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let said = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk: Buffer) => (said += chunk.toString()));
  const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()));
  const endWithUs = (): void => void child.kill('SIGKILL');
  process.once('exit', endWithUs);
  for (let i = 0; !(await answers(port)); i++) {
    if (child.exitCode !== null || i > 200) throw new Error(`versitygw did not start:\n${said.slice(-2_000)}`);
    await delay(50);
  }
  return async () => {
    process.off('exit', endWithUs);
    child.kill('SIGKILL');
    await ended;
  };
}

async function answers(port: number): Promise<boolean> {
  return fetch(`http://127.0.0.1:${port}/`).then(
    () => true,
    () => false,
  );
}

async function main(): Promise<void> {
  const log = (line: string): void => void process.stderr.write(`${line}\n`);
  try {
    await buildAlone({ name: program.name, folder, log }, async () => {
      if (!existsSync(binary)) await buildGoProgram({ program, folder, target: binary, log });
    });
    process.stdout.write(`${binary}\n`);
  } catch (error) {
    log(`tests against S3 are skipped: ${error instanceof Error ? error.message : String(error)}`);
  }
}

if (process.argv[1] !== undefined && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) await main();
