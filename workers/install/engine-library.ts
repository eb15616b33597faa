import { createHash } from 'node:crypto';
import { createReadStream, mkdirSync, readdirSync, renameSync, rmSync } from 'node:fs';
import { mkdtemp } from 'node:fs/promises';
import path from 'node:path';
import { pipeline } from 'node:stream/promises';
import { environmentForAll, selectEnvironment } from '../../core/child-environment.ts';
import { RatchetError } from '../../core/errors.ts';
import { runInstaller } from '../../backends/python/interpreter.ts';
import { cachedRuntime, isRuntimeHere, libraryName, librariesOfPlatform } from '../../engine/onnx/runtime-package.ts';
import { buildAlone } from './go-build.ts';
import { requireFreeSpace, sayEvery } from '../stack/long-wait.ts';
import { unpack } from '../temporal/temporal-cli-download.ts';

const name = 'ONNX Runtime library';

/** The archive holds libraries of all platforms. */
const bytesNeeded = 250_000_000;

/**
 * Makes sure that the embedded engine's library is on this machine. A clone has it among its packages. An installed
 * Ratchet does not depend on that package: its install script, which npm would run, downloads CUDA files from a server
 * that is not a package registry, and fails without it. So npm downloads the package's archive from its configured
 * registry without running scripts, the archive is compared with the lock file's digest, and the library for this
 * platform is cached. Throws `ServerUnavailable` with what is missing.
 */
export async function ensureEngineLibrary(log: (line: string) => void): Promise<void> {
  if (isRuntimeHere()) return;
  const wanted = cachedRuntime();
  await buildAlone({ name, folder: wanted.folder, log }, async () => {
    if (!isRuntimeHere()) await fetchEngineLibrary(wanted, log);
  });
}

/** Fills the cache's folder with the manifest and the library of this platform. */
export async function fetchEngineLibrary(
  { folder, wanted }: ReturnType<typeof cachedRuntime>,
  log: (line: string) => void,
): Promise<void> {
  const parent = path.dirname(folder);
  mkdirSync(parent, { recursive: true, mode: 0o700 });
  await requireFreeSpace(parent, bytesNeeded);
  log(`downloading the ${name} (${wanted.name} ${wanted.version}, about 110 MB, once)`);
  const wait = sayEvery(log, () => `downloading the ${name}`);
  const room = await mkdtemp(`${folder}-unpacking-`);
  try {
    const archive = await fetchArchive(`${wanted.name}@${wanted.version}`, room);
    await requireDigest(archive, wanted.integrity);
    const made = path.join(room, 'made');
    mkdirSync(path.join(made, librariesOfPlatform), { recursive: true });
    for (const file of [path.join(librariesOfPlatform, libraryName(wanted.version)), 'package.json'])
      await unpack(archive, room, path.join(made, file), { member: `package/${file}` });
    rmSync(folder, { recursive: true, force: true });
    renameSync(made, folder);
    log(`downloaded the ${name} in ${wait.elapsed()}`);
  } finally {
    wait.end();
    rmSync(room, { recursive: true, force: true });
  }
}

/** npm knows the user's registry, its keys and its proxies. Returns the archive's path. */
async function fetchArchive(wanted: string, room: string): Promise<string> {
  const args = ['pack', wanted, '--pack-destination', room, '--ignore-scripts', '--loglevel=error'];
  try {
    await runInstaller('npm', args, {
      env: selectEnvironment([...environmentForAll, 'npm_config_*', 'NPM_CONFIG_*', 'NPM_TOKEN'], process.env),
    });
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new RatchetError(
      'ServerUnavailable',
      `the embedded engine needs ${wanted} of the npm registry, which could not be fetched: ${why}. npm needs to be on PATH and to reach its registry; or install the package beside Ratchet: npm install --ignore-scripts ${wanted}`,
      { cause: error },
    );
  }
  const file = readdirSync(room).find((entry) => entry.endsWith('.tgz'));
  if (file === undefined) throw new RatchetError('ServerUnavailable', `npm pack ${wanted} left no archive in ${room}`);
  return path.join(room, file);
}

async function requireDigest(archive: string, integrity: string): Promise<void> {
  const [algorithm = '', expected] = integrity.split(/-(.*)/s);
  const hash = createHash(algorithm);
  await pipeline(createReadStream(archive), hash);
  const received = hash.digest('base64');
  if (received === expected) return;
  throw new RatchetError(
    'ServerUnavailable',
    `${path.basename(archive)}: expected the digest ${integrity} of the lock file, got ${algorithm}-${received}. The registry that npm is configured for serves another file; nothing of it was kept.`,
  );
}
