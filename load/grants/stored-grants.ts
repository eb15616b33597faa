import path from 'node:path';
import type { CodeRef, EndpointsRef } from '../../config/run-spec.ts';
import { RatchetError } from '../../core/errors.ts';
import { isOthers, realOr } from '../../host/file-owners.ts';
import { grantedLines, grants, isGrantedIn } from '../../host/grants.ts';
import { digestLine, digestOf, isOfProject, isOtherThanGranted, isWithin } from '../../host/trusted-files.ts';
import { readEndpoints } from '../../backends/inference/openai/endpoints-file.ts';
import { serverKeysOf } from '../../backends/inference/model-server.ts';
import { isNoFile, namedByEnvironments } from './grant.ts';

/** Finds things that a stored run names without a grant by its user. The run's folder may come from another user. */

/** An environment as its run has it. */
type Entry = Parameters<typeof namedByEnvironments>[0][number];

/** The parts of a stored run that are about to be used. */
export interface NamedByRun {
  /** Paths, and lines of `.ratchet/granted`, in the notation of `grant.ts`. */
  readonly lines: readonly string[];
  /** Environments among the lines, whose arguments the question shows. */
  readonly environments: readonly Entry[];
  /** Files among the lines, whose servers the question shows. */
  readonly endpoints?: readonly EndpointsRef[];
  /** Files among the lines that the run had as they were then. */
  readonly code?: readonly CodeRef[];
}

/** One thing that its user has not granted. */
export interface NotGranted {
  /** Line to type; a file's has its digest, so that it grants no other contents. */
  readonly line: string;
  /** Name in the question to the user. */
  readonly says: string;
  /** null for a line that is not a file. */
  readonly file: string | null;
  /** Lines to add to `.ratchet/granted`. */
  readonly grants: readonly string[];
}

interface Around {
  readonly projectFolder: string;
  /** Folders of runs, which may be copies of another user's. Files in them do not belong to the project. */
  readonly runFolders: readonly string[];
}

/** Selects things that are neither in the project nor granted. */
export function notGranted({ lines, environments, endpoints = [] }: NamedByRun, around: Around): NotGranted[] {
  return [...new Set(lines)].flatMap((line) => {
    if (!isNoFile(line)) {
      const found = ofFile(path.resolve(around.projectFolder, line), around);
      const pools = endpoints.filter((ref) => ref.path === line).map(serversOf);
      return found.map((one) => ({ ...one, says: [one.says, ...pools].join('') }));
    }
    if (isGrantedIn(around.projectFolder, line) || isModelOfProject(line, around)) return [];
    return { line, says: saysOf(line, environments), file: null, grants: [line] };
  });
}

/**
 * Code that differs from the run's. Its workers would refuse it, unless it was changed back after the user had looked.
 */
export function changedCode({ code = [] }: NamedByRun, missing: readonly NotGranted[]): CodeRef | null {
  const isMissing = (file: string): boolean => missing.some((one) => one.file === file);
  return code.find(({ path: file, sha256 }) => isMissing(file) && sha256 !== null && digestOf(file) !== sha256) ?? null;
}

function ofFile(file: string, around: Around): NotGranted[] {
  const real = realOr(file, null);
  if (isTaken(file, real, around)) return [];
  const digest = real === null ? null : digestOf(real);
  const as = digest === null ? '' : ` sha256 ${digest.slice(0, shownDigits)}`;
  const found = real === null ? ' (not there)' : digest === null ? ' (a folder)' : ` (${as.trim()}…)`;
  return [{ line: `${file}${as}`, says: `${file}${found}`, file, grants: real === null ? [] : linesOf(file, digest) }];
}

/** Empty for a missing file, whose future contents cannot be approved. */
function linesOf(file: string, digest: string | null): string[] {
  return digest === null ? [file] : [file, `${grants.digest}${digest} ${realOr(file, file)}`];
}

/** The question lists the servers, so its reader need not open the file. */
function serversOf(endpoints: EndpointsRef): string {
  try {
    const named = readEndpoints(endpoints).map((server) => {
      const keys = serverKeysOf(server);
      return `${server.url}${keys.length === 0 ? '' : ` with the key in ${keys.join(' and ')}`}`;
    });
    return `, which names ${named.join(' and ')}`;
  } catch (error) {
    if (!(error instanceof RatchetError)) throw error;
    return ', whose servers cannot be read';
  }
}

const shownDigits = 16;

/** Whether this user has named it before, with the same contents. */
function isTaken(file: string, real: string | null, { projectFolder, runFolders }: Around): boolean {
  const lines = grantedLines(projectFolder);
  if (real === null) return lines.includes(file) || isOfProject(file, projectFolder);
  const isCopied = runFolders.some((folder) => isWithin(realOr(folder, folder), real));
  if (!isCopied && [projectFolder, ...furtherRoots(projectFolder)].some((root) => isOf(root, real, projectFolder)))
    return true;
  const isNamed = lines.some((line) => path.isAbsolute(line) && isWithin(realOr(line, line), real));
  if (!isNamed || isOtherThanGranted(real, lines)) return false;
  const own = digestLine(real);
  return !isOthers(real) || (own !== null && lines.includes(own));
}

function isOf(root: string, real: string, projectFolder: string): boolean {
  return root === projectFolder ? isOfProject(real, projectFolder) : isWithin(realOr(root, root), real);
}

/** Code folders that this user named; the supervisor reads the same ones (`workers/stack/supervisor.ts`). */
function furtherRoots(projectFolder: string): string[] {
  const { RATCHET_CODE_ROOTS: roots = '', VIRTUAL_ENV: active = '' } = process.env;
  return [...roots.split(path.delimiter), active]
    .filter((root) => root !== '')
    .map((root) => path.resolve(projectFolder, root));
}

/** A model is read and never executed. */
function isModelOfProject(line: string, { projectFolder }: Around): boolean {
  if (!line.startsWith(grants.model)) return false;
  const folder = line.slice(grants.model.length);
  return isWithin(realOr(projectFolder, projectFolder), realOr(folder, folder));
}

function saysOf(line: string, environments: readonly Entry[]): string {
  if (line === grants.noSandbox) return 'Python that a model wrote, without a sandbox';
  if (line.startsWith(grants.sandboxes)) return `sandboxes of ${line.slice(grants.sandboxes.length)}`;
  if (line.startsWith(grants.environment)) return environmentOf(line, environments);
  if (line.startsWith(grants.key)) {
    const [name, origin] = line.slice(grants.key.length).split(' ');
    return `the key in ${name} for ${origin}`;
  }
  return line.replace(/^(?:server|model|store) /, (kind) => `the ${kind}`);
}

/** Long arguments are cut; the line has the digest of all of them. */
const argumentsShownMax = 300;

function environmentOf(line: string, environments: readonly Entry[]): string {
  const entry = environments.find((one) => namedByEnvironments([one]).includes(line));
  if (entry === undefined) return `an ${line}`;
  const { id, args, agent, extra, variables, program } = entry;
  if (program !== undefined) return agentOf(id, program, variables);
  const given = JSON.stringify({ ...args, ...(agent && { agent }), ...(extra && { extra }) });
  const shown = given.length > argumentsShownMax ? `${given.slice(0, argumentsShownMax)}…` : given;
  return `the environment ${id} with the arguments ${shown}${seenBy(variables)}`;
}

function seenBy(variables: Entry['variables']): string {
  return variables === undefined || variables.names.length === 0 ? '' : `, which sees ${variables.names.join(', ')}`;
}

/** The program, and what it reaches. */
function agentOf(
  id: string,
  { command, sandbox: { pool, network, setup } }: NonNullable<Entry['program']>,
  variables: Entry['variables'],
): string {
  const words = JSON.stringify(command);
  const shown = words.length > argumentsShownMax ? `${words.slice(0, argumentsShownMax)}…` : words;
  const setsUp = setup === null ? '' : `, set up by ${JSON.stringify(setup).slice(0, argumentsShownMax)}`;
  const reached = network === 'open' ? ', with the network of its machine' : '';
  return `the agent ${id}, which runs ${shown} in sandboxes of kind ${pool.provider.kind}${setsUp}${reached}${seenBy(variables)}`;
}
