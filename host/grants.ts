import { appendFileSync, existsSync, mkdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { trustedRootsVariable } from '../core/child-environment.ts';
import { RatchetError } from '../core/errors.ts';
import { ownersOf, realOr, whatOthersCan } from './file-owners.ts';

/**
 * Actions that a worker of our own Temporal server takes only if its user allowed them (reasons:
 * `host/trusted-files.ts`): lines of `.ratchet/granted`. Commands write them, and so do workers for the contents of
 * trusted files; workers read them.
 */
export const grants = {
  noSandbox: 'sandbox-none',
  /** Precedes the digest of an environment and its arguments. */
  environment: 'environment ',
  /** Precedes where sandboxes come from, as JSON: a socket of Docker, a host, a module with its options. */
  sandboxes: 'sandboxes ',
  /** Precedes an origin that may be asked for turns. */
  server: 'server ',
  /** Precedes the name of an environment variable and an origin that may receive its value. */
  key: 'key ',
  /** Precedes the folder of a model outside the project, which is read but never run. */
  model: 'model ',
  /** Precedes a bucket and its server, or the real path of a folder. */
  store: 'store ',
  /** Precedes a digest and the path of a file: only these contents are granted. */
  digest: 'sha256 ',
} as const;

/** A server to ask, and the environment variables whose values it may receive. */
export interface AskedServer {
  readonly url: string;
  readonly keys: readonly string[];
  /**
   * Replaces its origin in grants: `$NAME` if a variable holds the address, the whole URL if the path decides the
   * owner.
   */
  readonly as?: string | undefined;
  /** Variables that gave its address, since no setting names one. */
  readonly variables?: readonly ServerVariable[] | undefined;
}

/**
 * Variables by which the starter of a process names a server, with the variables of its keys. They grant the keys to
 * that server. `usual` is the default address.
 */
const serverVariables = {
  HF_ENDPOINT: { keys: ['HF_TOKEN'], fallback: 'https://huggingface.co' },
  MLFLOW_TRACKING_URI: { keys: ['MLFLOW_TRACKING_TOKEN', 'MLFLOW_TRACKING_USERNAME', 'MLFLOW_TRACKING_PASSWORD'] },
  OTEL_EXPORTER_OTLP_ENDPOINT: { keys: ['OTEL_EXPORTER_OTLP_HEADERS'] },
  OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: { keys: ['OTEL_EXPORTER_OTLP_HEADERS'] },
  OTEL_EXPORTER_OTLP_METRICS_ENDPOINT: { keys: ['OTEL_EXPORTER_OTLP_HEADERS'] },
  WANDB_BASE_URL: { keys: ['WANDB_API_KEY'] },
} as const satisfies Record<string, { readonly keys: readonly string[]; readonly fallback?: string }>;
export type ServerVariable = keyof typeof serverVariables;

/** One line for the server and one for each key. A key goes only to the server that it was named with. */
export function linesOfServer({ url, keys, as }: Pick<AskedServer, 'url' | 'keys' | 'as'>): string[] {
  const place = as ?? originOf(url);
  return [`${grants.server}${place}`, ...keys.map((name) => `${grants.key}${name} ${place}`)];
}

/** A server that lives as long as one of this user's processes: another one may listen there when it has ended. */
export function linesOfServerOf(pid: number, url: string): string[] {
  return linesOfServer({ url, keys: [] }).map((line) => `${line}${whileRuns}${pid}`);
}

/**
 * Refuses to ask a server, or to send it a key, if neither was named by this user, when other users may name servers.
 */
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

/** Refuses an action that was not granted to a worker of our own server. */
export function requireGrant(
  grant: string,
  what: string,
  environment: Environment = process.env,
  /** The line for messages, if the real one would reveal something. */
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

/** The advice for something that only a run's folder requests. */
function askedFor(line: string): string {
  return `Where a stored run names it, npx ratchet-rl eval checkpoints RUN asks for it, or takes --grant '${line}'.`;
}

/** Grants in this process alone, for its lifetime: for servers that were started beside it. */
export function grantHere(lines: readonly string[]): void {
  for (const line of lines) here.add(line);
}

/** Adds grants to a project, each once. */
export function writeGrants(projectFolder: string, lines: readonly string[]): void {
  const wanted = lines.filter((line) => !line.includes('\n'));
  if (wanted.length === 0) return;
  const file = grantedAt(projectFolder);
  const known = existsSync(file) ? readFileSync(file, 'utf8').split('\n') : [];
  const added = [...new Set(wanted)].filter((line) => !known.includes(line));
  mkdirSync(path.dirname(file), { recursive: true, mode: 0o700 });
  // Appends: several commands and workers may do so at once.
  appendFileSync(file, added.map((line) => `${line}\n`).join(''), { mode: 0o600 });
}

/** Grants by a worker of our own server, for a file that it only reads if it belongs to this user. */
export function grantByTrustedFile(lines: readonly string[], environment: Environment = process.env): void {
  const [projectFolder] = rootsIn(environment);
  if (projectFolder !== undefined) writeGrants(projectFolder, lines);
}

/** Whether a project has the grant, for a command or a worker of any server. */
export function isGrantedIn(projectFolder: string, line: string): boolean {
  return isAmong(new Set(grantedLines(projectFolder)), line);
}

export function grantedAt(projectFolder: string): string {
  return path.join(projectFolder, '.ratchet', 'granted');
}

/** A project's grants: absolute paths of files and folders outside of it, and `grants`. */
export function grantedLines(projectFolder: string): string[] {
  const file = grantedAt(projectFolder);
  if (realOr(file, null) === null) return [];
  const own = ownersOf(realOr(projectFolder, projectFolder), projectFolder);
  const isOurs = [path.dirname(file), file].every((place) => whatOthersCan(place, own) === null);
  return isOurs ? readFileSync(file, 'utf8').split('\n') : [];
}

/** The project's folder, and further ones named at the start of its server; empty: no grants are needed. */
export function rootsIn(environment: Environment): string[] {
  return (environment[trustedRootsVariable] ?? '').split(path.delimiter).filter((root) => path.isAbsolute(root));
}

type Environment = Readonly<NodeJS.ProcessEnv>;

const here = new Set<string>();

const whileRuns = ' while ';

/** Every request checks; the file is read again after this time. */
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
    const { keys: own, fallback = '' }: { readonly keys: readonly string[]; readonly fallback?: string } =
      serverVariables[name];
    const named = environment[name] || fallback;
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
    return false; // it has ended, or belongs to another user
  }
}

/** `scheme://host:port`, in lower case and without the scheme's default port. */
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
