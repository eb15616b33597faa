import type { EnvironmentSpec } from '../../core/spec/run-spec.ts';
import { loadEnvironment } from './load.ts';
import type { Environment } from './types.ts';

export type { Environment, Policy, RolloutRecord } from './types.ts';

const opened = new Map<string, Promise<Environment>>();

/** How rollouts and rubrics reach environments; tests bring their own. */
export interface Environments {
  open(entry: Pick<EnvironmentSpec, 'id' | 'args'>): Promise<Environment>;
  /** A fresh one in place of one that failed. Of several that ask because of the same one, all get the same. */
  reopen(entry: Pick<EnvironmentSpec, 'id' | 'args'>, broken: Environment): Promise<Environment>;
}

export const environments: Environments = { open: openEnvironment, reopen: reopenEnvironment };

/** An environment by id and arguments; the same arguments give the same instance. */
export function openEnvironment(spec: Pick<EnvironmentSpec, 'id' | 'args'>): Promise<Environment> {
  const key = JSON.stringify([spec.id, spec.args]);
  const known = opened.get(key);
  if (known) return known;
  const loading = loadEnvironment(spec.id, spec.args);
  opened.set(key, loading);
  loading.catch(() => opened.delete(key)); // a failed load is tried again, its error belongs to whoever awaits it
  return loading;
}

async function reopenEnvironment(
  entry: Pick<EnvironmentSpec, 'id' | 'args'>,
  broken: Environment,
): Promise<Environment> {
  const key = JSON.stringify([entry.id, entry.args]);
  const current = await opened.get(key);
  if (current === broken) opened.delete(key);
  return openEnvironment(entry);
}
