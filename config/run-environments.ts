import { present } from '../core/present.ts';
import type { MissingEnvironment, ParseOptions } from './run-config.ts';
import type { Reporter } from './toml/reporter.ts';
import type { EnvironmentSpec, RunSpec } from './run-spec.ts';
import type { RatchetConfig } from './settings/index.ts';

type ResolvedEnvironment = Pick<EnvironmentSpec, 'id' | 'python'>;

interface Environments {
  /** Environments keyed by the written id. */
  readonly found: ReadonlyMap<string, ResolvedEnvironment>;
  readonly said: readonly string[];
  readonly missing: readonly MissingEnvironment[];
}

/** Looks up every environment once; missing ones are problems, unless the file is only examined. */
export function findEnvironments(
  config: RatchetConfig,
  { findEnvironment, isOnlyLookedAt = false }: ParseOptions,
  reporter: Reporter,
  system?: string,
): Environments {
  const resolved = new Map<string, ResolvedEnvironment>();
  const said = new Set<string>();
  const missing: MissingEnvironment[] = [];
  const entries = [
    ...config.env.map(({ id, kind }, i) => ({ id, kind, path: ['env', i, 'id'] })),
    ...(config.eval?.env ?? []).map(({ id, kind }, i) => ({ id, kind, path: ['eval', 'env', i, 'id'] })),
  ].filter(({ kind }) => kind !== 'agent');
  for (const { id, path } of findEnvironment ? entries : []) {
    if (reporter.has(path)) continue;
    const found = findEnvironment!(id, { builtin: config.builtin, ...present({ system }) });
    if (found.ok) {
      resolved.set(id, { id: found.id, ...present({ python: found.python }) });
      if (found.said !== undefined) said.add(found.said);
      continue;
    }
    const { expected, received, suggestion, install = null } = found;
    const problem = { path, expected, received, ...present({ suggestion }) };
    if (isOnlyLookedAt) missing.push({ ...reporter.placed(problem), id, install });
    else reporter.add(problem);
  }
  return { found: resolved, said: [...said], missing };
}

export function withFound(spec: RunSpec, found: ReadonlyMap<string, ResolvedEnvironment>): RunSpec {
  const named = <Entry extends Pick<EnvironmentSpec, 'id' | 'program'>>(entry: Entry): Entry =>
    entry.program ? entry : { ...entry, ...found.get(entry.id) };
  return {
    ...spec,
    environments: spec.environments.map(named),
    eval: spec.eval && { ...spec.eval, environments: spec.eval.environments.map(named) },
  };
}
