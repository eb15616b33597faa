import { appendFileSync, existsSync, mkdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import type { EvaluatedEnvironment } from '../../core/eval/evaluation.ts';
import { isEnvironmentFile } from '../../core/names.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { grantedAt, grants, isOfProject, readsAnything } from '../../engine/trusted-files.ts';
import { asNamed } from '../environments/named.ts';

/**
 * Writes down what a person has named at a command line and workers of our own server would not take from Temporal by itself
 * (`engine/trusted-files.ts`): files outside of the project, environments in Python with their arguments, and Python without a sandbox.
 */
export function grantNamed(projectFolder: string, lines: readonly string[]): void {
  const wanted = lines
    .map((line) => (isNoFile(line) ? line : path.resolve(projectFolder, line)))
    .filter((line) => isNoFile(line) || (!isOfProject(line, projectFolder) && existsSync(line)))
    .filter((line) => !line.includes('\n'));
  if (wanted.length === 0) return;
  const file = grantedAt(projectFolder);
  const known = existsSync(file) ? readFileSync(file, 'utf8').split('\n') : [];
  const added = [...new Set(wanted)].filter((line) => !known.includes(line));
  mkdirSync(path.dirname(file), { recursive: true, mode: 0o700 });
  // At its end: several commands and workers may do so at once.
  appendFileSync(file, added.map((line) => `${line}\n`).join(''), { mode: 0o600 });
}

function isNoFile(line: string): boolean {
  return line === grants.noSandbox || line.startsWith(grants.environment);
}

/**
 * The same by a worker, of a file that it has just read as it stands: it would not have taken one that somebody else can have written.
 * `isAsItStands`: nothing was laid over it but other such files.
 */
export function grantByFile(projectFolder: string, environments: readonly Entry[], isAsItStands: boolean): void {
  if (!isAsItStands || readsAnything()) return;
  const named = environments.flatMap((entry) => asNamed(entry) ?? []);
  grantNamed(projectFolder, named);
}

/** What a run executes, or reads and keeps, that somebody has to have named. */
export function namedIn(spec: RunSpec): string[] {
  const { loss, advantage, trainer, inference } = spec;
  const code = [
    loss.import,
    typeof advantage === 'string' ? null : advantage.import,
    trainer.kind === 'module' ? trainer.import : null,
    inference.kind === 'module' ? inference.import : null,
  ];
  return [
    ...code.flatMap((ref) => ref?.path ?? []),
    ...[spec.sft?.data?.path, spec.chatTemplate?.path].filter((file) => typeof file === 'string'),
    ...namedByEnvironments(environmentsOf(spec)),
  ];
}

/** Those that it trains on, and those that it is evaluated on. */
export function environmentsOf({ environments, eval: evaluation }: RunSpec): Entry[] {
  return [...environments, ...(evaluation?.environments ?? [])];
}

type Entry = Pick<EvaluatedEnvironment, 'id' | 'args' | 'python' | 'variables' | 'agent' | 'extra'>;

export function namedByEnvironments(environments: readonly Entry[]): string[] {
  return environments.flatMap((entry) => {
    const { id, args, python, variables } = entry;
    return [
      ...(isEnvironmentFile(id) ? [id] : []),
      ...(python === undefined ? [] : [python.folder]),
      ...(variables?.files ?? []),
      ...(args['sandbox'] === 'none' ? [grants.noSandbox] : []),
      ...(typeof args['python'] === 'string' && args['python'].includes('/') ? [args['python']] : []),
      ...(asNamed(entry) ?? []),
    ];
  });
}
