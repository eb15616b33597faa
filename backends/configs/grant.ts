import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import type { EvaluatedEnvironment } from '../core/eval/evaluation.ts';
import { isEnvironmentFile } from '../core/names.ts';
import type { RunSpec } from '../core/spec/run-spec.ts';
import { grantedAt, grants, isOfProject } from '../engine/trusted-files.ts';

/**
 * Writes down what a person has named at a command line and workers of our own server would not take from Temporal by itself
 * (`engine/trusted-files.ts`): files outside of the project, and Python without a sandbox.
 */
export function grantNamed(projectFolder: string, lines: readonly string[]): void {
  const wanted = lines
    .map((line) => (line === grants.noSandbox ? line : path.resolve(projectFolder, line)))
    .filter((line) => line === grants.noSandbox || (!isOfProject(line, projectFolder) && existsSync(line)))
    .filter((line) => !line.includes('\n'));
  if (wanted.length === 0) return;
  const file = grantedAt(projectFolder);
  const known = existsSync(file) ? readFileSync(file, 'utf8').split('\n') : [];
  const all = new Set([...known.filter((line) => line !== ''), ...wanted]);
  mkdirSync(path.dirname(file), { recursive: true, mode: 0o700 });
  writeFileSync(file, [...all, ''].join('\n'), { mode: 0o600 });
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
    ...namedByEnvironments([...spec.environments, ...(spec.eval?.environments ?? [])]),
  ];
}

type Entry = Pick<EvaluatedEnvironment, 'id' | 'args' | 'python' | 'variables'>;

export function namedByEnvironments(environments: readonly Entry[]): string[] {
  return environments.flatMap(({ id, args, python, variables }) => [
    ...(isEnvironmentFile(id) ? [id] : []),
    ...(python === undefined ? [] : [python.folder]),
    ...(variables?.files ?? []),
    ...(args['sandbox'] === 'none' ? [grants.noSandbox] : []),
    ...(typeof args['python'] === 'string' && args['python'].includes('/') ? [args['python']] : []),
  ]);
}
