import type { MissingEnvironment, ParseOptions } from './parse-run-config.ts';
import type { Reporter } from './reporter.ts';
import type { EnvironmentSpec, RunSpec } from './run-spec.ts';
import type { RatchetConfig } from './settings/index.ts';

type ResolvedEnvironment = Pick<EnvironmentSpec, 'id' | 'python'>;

interface Environments {
  /** By what was written: what it stands for. */
  readonly found: ReadonlyMap<string, ResolvedEnvironment>;
  readonly said: readonly string[];
  readonly missing: readonly MissingEnvironment[];
}

/** Looks for every environment once; those that are not here are problems, unless the file is only looked at. */
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
    ...config.env.map(({ id }, i) => ({ id, path: ['env', i, 'id'] })),
    ...(config.eval?.env ?? []).map(({ id }, i) => ({ id, path: ['eval', 'env', i, 'id'] })),
  ];
  for (const { id, path } of findEnvironment ? entries : []) {
    if (reporter.has(path)) continue;
    const found = findEnvironment!(id, { builtin: config.builtin, ...(system === undefined ? {} : { system }) });
    if (found.ok) {
      resolved.set(id, { id: found.id, ...(found.python === undefined ? {} : { python: found.python }) });
      if (found.said !== undefined) said.add(found.said);
      continue;
    }
    const { expected, received, suggestion, install = null } = found;
    const problem = { path, expected, received, ...(suggestion === undefined ? {} : { suggestion }) };
    if (isOnlyLookedAt) missing.push({ ...reporter.placed(problem), id, install });
    else reporter.add(problem);
  }
  return { found: resolved, said: [...said], missing };
}

export function withFound(spec: RunSpec, found: ReadonlyMap<string, ResolvedEnvironment>): RunSpec {
  const named = <Entry extends { readonly id: string }>(entry: Entry): Entry => ({ ...entry, ...found.get(entry.id) });
  return {
    ...spec,
    environments: spec.environments.map(named),
    eval: spec.eval && { ...spec.eval, environments: spec.eval.environments.map(named) },
  };
}
