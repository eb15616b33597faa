import { appendFileSync, existsSync, mkdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { trustedRootsVariable } from '../core/child-environment.ts';
import { RatchetError } from '../core/errors.ts';
import { ownersOf, realOr, whatOthersCan } from './file-owners.ts';

/**
 * What a worker of our own Temporal server does only where its own user said so (`engine/trusted-files.ts` has why): lines of
 * `.ratchet/granted`. Written by commands, and by workers of what a trusted file says; read by workers.
 */
export const grants = {
  noSandbox: 'sandbox-none',
  /** Before the digest of an environment and its arguments. */
  environment: 'environment ',
  /** Before an origin: it is asked for turns. */
  server: 'server ',
  /** Before the name of an environment variable and an origin: that server is told its value. */
  key: 'key ',
  /** Precedes the folder of a model outside the project, which is read but never run. */
  model: 'model ',
  /** Before a bucket and where that is, or before the real path of a folder. */
  store: 'store ',
  /** Precedes a digest and the path of a file: granted is what the file was then. */
  digest: 'sha256 ',
} as const;

/** A server that is asked, and the names of environment variables whose values it is told. */
export interface AskedServer {
  readonly url: string;
  readonly keys: readonly string[];
  /** Stands in grants for its origin: `$NAME` where a variable holds the address, the whole URL where the path says whose it is. */
  readonly as?: string | undefined;
  /** Variables that its address was taken from, since no setting names one. */
  readonly variables?: readonly ServerVariable[] | undefined;
}

/**
 * Variables by which whoever starts a process names a server, and the variables with the keys for it. They grant that server these keys.
 * `usual` is the address where the variable is not set.
 */
const serverVariables = {
  HF_ENDPOINT: { keys: ['HF_TOKEN'], usual: 'https://huggingface.co' },
  MLFLOW_TRACKING_URI: { keys: ['MLFLOW_TRACKING_TOKEN', 'MLFLOW_TRACKING_USERNAME', 'MLFLOW_TRACKING_PASSWORD'] },
  OTEL_EXPORTER_OTLP_ENDPOINT: { keys: ['OTEL_EXPORTER_OTLP_HEADERS'] },
  OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: { keys: ['OTEL_EXPORTER_OTLP_HEADERS'] },
  OTEL_EXPORTER_OTLP_METRICS_ENDPOINT: { keys: ['OTEL_EXPORTER_OTLP_HEADERS'] },
  WANDB_BASE_URL: { keys: ['WANDB_API_KEY'] },
} as const satisfies Record<string, { readonly keys: readonly string[]; readonly usual?: string }>;
export type ServerVariable = keyof typeof serverVariables;

/** Where it is and each of its keys, a line each. A key goes to the server that it was named with, and to no other that was named. */
export function linesOfServer({ url, keys, as }: Pick<AskedServer, 'url' | 'keys' | 'as'>): string[] {
  const place = as ?? originOf(url);
  return [`${grants.server}${place}`, ...keys.map((name) => `${grants.key}${name} ${place}`)];
}

/** A server that runs as long as a process of this user's does: another one may listen there when it has ended. */
export function linesOfServerOf(pid: number, url: string): string[] {
  return linesOfServer({ url, keys: [] }).map((line) => `${line}${whileRuns}${pid}`);
}

/** Refuses to ask a server, or to tell it a key, that nobody named where anybody may name one. */
export function requireServer(server: AskedServer, what: string, environment: Environment = process.env): void {
  if (isOfEnvironment(server, environment)) return;
  const missing = linesOfServer(server).find((line) => !isGranted(line, environment));
  if (missing === undefined) return;
  const told = missing.startsWith(grants.key) ? ` with the key in ${missing.split(' ')[1]}` : '';
  throw refused(
    `${what} at ${originOf(server.url)} is not asked${told}: this user named no such thing in this folder.`,
    missing,
    `Name it at a command line of yours, in a run file or by itself: npx ratchet-rl train FILE, npx ratchet-rl gepa run FILE, npx ratchet-rl eval run FILE or ENV -b URL -k NAME. ${askedFor(missing)}`,
    environment,
  );
}

/** Refuses what a worker of our own server was asked for and nobody granted. */
export function requireGrant(
  grant: string,
  what: string,
  environment: Environment = process.env,
  /** The line that the message names, where the real one would reveal something. */
  shown: string = grant,
): void {
  if (isGranted(grant, environment)) return;
  throw refused(
    `${what} is not taken from Temporal: the Temporal server of this folder does not authenticate its clients, and this user named no such thing.`,
    shown,
    `A run file that says so grants it once it is named at a command line of yours: npx ratchet-rl train FILE. ${askedFor(shown)}`,
    environment,
  );
}

/** The advice for something that only a run's folder names. */
function askedFor(line: string): string {
  return `Where a stored run names it, npx ratchet-rl eval checkpoints RUN asks for it, or takes --grant '${line}'.`;
}

/** Granted in this process alone, for as long as it lives: servers that were started beside it. */
export function grantHere(lines: readonly string[]): void {
  for (const line of lines) here.add(line);
}

/** Adds lines to those of a project, each once. */
export function writeGrants(projectFolder: string, lines: readonly string[]): void {
  const wanted = lines.filter((line) => !line.includes('\n'));
  if (wanted.length === 0) return;
  const file = grantedAt(projectFolder);
  const known = existsSync(file) ? readFileSync(file, 'utf8').split('\n') : [];
  const added = [...new Set(wanted)].filter((line) => !known.includes(line));
  mkdirSync(path.dirname(file), { recursive: true, mode: 0o700 });
  // At its end: several commands and workers may do so at once.
  appendFileSync(file, added.map((line) => `${line}\n`).join(''), { mode: 0o600 });
}

/** The same by a worker of our own server, of a file that it would not have read were it anybody else's. */
export function grantByTrustedFile(lines: readonly string[], environment: Environment = process.env): void {
  const [projectFolder] = rootsIn(environment);
  if (projectFolder !== undefined) writeGrants(projectFolder, lines);
}

/** Whether a line is among those of a project, whoever asks: a command, or a worker of any server. */
export function isGrantedIn(projectFolder: string, line: string): boolean {
  return isAmong(new Set(grantedLines(projectFolder)), line);
}

export function grantedAt(projectFolder: string): string {
  return path.join(projectFolder, '.ratchet', 'granted');
}

/** What is granted in a project: absolute paths of files and folders outside of it, and `grants`. */
export function grantedLines(projectFolder: string): string[] {
  const file = grantedAt(projectFolder);
  if (realOr(file, null) === null) return [];
  const own = ownersOf(realOr(projectFolder, projectFolder), projectFolder);
  const isOurs = [path.dirname(file), file].every((place) => whatOthersCan(place, own) === null);
  return isOurs ? readFileSync(file, 'utf8').split('\n') : [];
}

/** The project's folder, and further ones that were named where its server was started; none: nothing has to be granted. */
export function rootsIn(environment: Environment): string[] {
  return (environment[trustedRootsVariable] ?? '').split(path.delimiter).filter((root) => path.isAbsolute(root));
}

type Environment = Readonly<NodeJS.ProcessEnv>;

const here = new Set<string>();

const whileRuns = ' while ';

/** Each request asks; the file is read again after this. */
const freshMs = 1_000;
const read = new Map<string, { readonly atMs: number; readonly lines: ReadonlySet<string> }>();

function isGranted(line: string, environment: Environment): boolean {
  const [projectFolder] = rootsIn(environment);
  if (projectFolder === undefined || here.has(line)) return true;
  const known = read.get(projectFolder);
  if (known && performance.now() - known.atMs < freshMs && isAmong(known.lines, line)) return true;
  const lines = new Set(grantedLines(projectFolder));
  read.set(projectFolder, { atMs: performance.now(), lines });
  return isAmong(lines, line);
}

function isOfEnvironment({ url, keys, variables = [] }: AskedServer, environment: Environment): boolean {
  return variables.some((name) => {
    const { keys: own, usual = '' }: { readonly keys: readonly string[]; readonly usual?: string } =
      serverVariables[name];
    const named = environment[name] || usual;
    return URL.canParse(named) && originOf(named) === originOf(url) && keys.every((key) => own.includes(key));
  });
}

function isAmong(lines: ReadonlySet<string>, line: string): boolean {
  if (lines.has(line)) return true;
  const start = line + whileRuns;
  return [...lines].some((one) => one.startsWith(start) && isRunning(Number(one.slice(start.length))));
}

function isRunning(pid: number): boolean {
  try {
    return Number.isSafeInteger(pid) && pid > 0 && process.kill(pid, 0);
  } catch {
    return false; // it has ended, or is another user's
  }
}

/** `scheme://host:port`, in lower case and without the port that the scheme has by itself. */
function originOf(url: string): string {
  const { protocol, host, origin } = new URL(url);
  return origin === 'null' ? `${protocol}//${host}` : origin;
}

function refused(whatNot: string, line: string, remedy: string, environment: Environment): RatchetError {
  return new RatchetError(
    'ConfigInvalid',
    `${whatNot} Expected the line "${line}" in ${grantedAt(rootsIn(environment)[0] ?? '')}, found none. ${remedy} On a machine that nobody else uses, RATCHET_ALONE=1 where the Temporal server of this folder is started takes all of this away.`,
  );
}
