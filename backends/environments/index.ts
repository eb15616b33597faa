import type { EnvironmentSpec, JsonValue } from '../../config/run-spec.ts';
import { loadEnvironment } from './load.ts';
import type { Environment } from './types.ts';
import { RatchetError } from '../../core/errors.ts';
import { givenVariables, variablesFor } from './variables.ts';
import { requireNamed } from './named.ts';
import { underSystemPrompt } from './own-prompt.ts';
import { openVerifiers } from './verifiers/open.ts';

export type { Environment, Policy, RolloutRecord } from './types.ts';

export type EnvironmentEntry = Pick<
  EnvironmentSpec,
  'id' | 'args' | 'sha256' | 'python' | 'variables' | 'limits' | 'systemPrompt' | 'agent' | 'episode'
> & {
  /** Set on a verifiers environment once it is loaded (`set_kwargs`). */
  readonly extra?: Readonly<Record<string, JsonValue>> | undefined;
  /** Columns of its rollouts' state that a verifiers environment (v0) adds to their rows. */
  readonly stateColumns?: readonly string[] | undefined;
};
type Entry = EnvironmentEntry;

/** How rollouts and rubrics reach environments. */
export interface Environments {
  /** An environment by id and arguments; the same arguments give the same instance. */
  open(entry: Entry): Promise<Environment>;
  /** A fresh one in place of one that failed. Of several that ask because of the same one, all get the same. */
  reopen(entry: Entry, broken: Environment): Promise<Environment>;
}

export function createEnvironments(load: (entry: Entry) => Promise<Environment>): Environments {
  const opened = new Map<string, Promise<Environment>>();
  const keyOf = ({ limits, ...entry }: Entry): string => {
    const { id, args, sha256, python, variables, systemPrompt, agent, episode, extra, stateColumns } = entry;
    const own = python ? limits : null;
    return JSON.stringify([
      id,
      args,
      sha256,
      python,
      variables,
      systemPrompt,
      agent,
      episode,
      own,
      extra,
      stateColumns,
    ]);
  };
  const open = (entry: Entry): Promise<Environment> => {
    const key = keyOf(entry);
    const known = opened.get(key);
    if (known) return known;
    const loading = load(entry);
    opened.set(key, loading);
    // A failed load is tried again, its error belongs to whoever awaits it.
    loading.catch(() => opened.get(key) === loading && opened.delete(key));
    return loading;
  };
  return {
    open,
    async reopen(entry, broken) {
      const key = keyOf(entry);
      const current = opened.get(key);
      const isBroken = (await current) === broken;
      if (isBroken && opened.get(key) === current) opened.delete(key); // unless someone else has by now
      return open(entry);
    },
  };
}

/** Those of this process. */
export const environments: Environments = createEnvironments(async (entry) => {
  const { id, args, sha256, python, variables, systemPrompt, agent, episode } = entry;
  requireNamed(entry);
  const { values } = givenVariables(variablesFor({ python, variables }));
  // One in TypeScript works in this process, which has them.
  if ((agent ?? episode) !== undefined && python?.api !== 'v1') {
    throw new RatchetError(
      'ConfigInvalid',
      `${id}: expected no agent (nor harness, nor episode) beside it, which environments of verifiers v1 have; it is ${python ? 'one of v0' : 'in TypeScript'}.`,
    );
  }
  const opened = python ? openVerifiers({ ...entry, python, given: values }) : loadEnvironment(id, args, { sha256 });
  return underSystemPrompt(await opened, systemPrompt);
});

/** An environment by id and arguments; the same arguments give the same instance. */
export function openEnvironment(entry: Entry): Promise<Environment> {
  return environments.open(entry);
}
