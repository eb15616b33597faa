import type { EnvironmentSpec, JsonValue } from '../../config/run-spec.ts';
import { loadEnvironment } from './load.ts';
import type { Environment } from './types.ts';
import { RatchetError } from '../../core/errors.ts';
import { givenVariables, variablesFor } from './variables.ts';
import { requireNamed } from './named.ts';
import { type InstalledState, installedState } from './packages/installed-state.ts';
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
  /** An environment by id and arguments; the same arguments give the same instance while what is installed is the same. */
  open(entry: Entry): Promise<Environment>;
  /** A fresh one in place of one that failed. Of several that ask because of the same one, all get the same. */
  reopen(entry: Entry, broken: Environment): Promise<Environment>;
  /** The same for one run, evaluation or search: it keeps what was installed when it first asked, whatever is installed meanwhile. */
  for?(user: string): Environments;
}

/** Runs and evaluations whose state is remembered in a process: more than are ever under way in one. */
const usersMax = 512;

/** @param stateOf Digest of what is installed where an environment runs: with another one it is loaded anew. */
export function createEnvironments(
  load: (entry: Entry, state: string) => Promise<Environment>,
  stateOf: (entry: Entry) => string = () => '',
): Environments {
  const opened = new Map<string, Promise<Environment>>();
  const users = new Map<string, Map<string, string>>();
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
  const openIn = (entry: Entry, state: string): Promise<Environment> => {
    const key = `${state} ${keyOf(entry)}`;
    const known = opened.get(key);
    if (known) return known;
    const loading = load(entry, state);
    opened.set(key, loading);
    // A failed load is tried again, its error belongs to whoever awaits it.
    loading.catch(() => opened.get(key) === loading && opened.delete(key));
    return loading;
  };
  const seenBy = (stateFor: (entry: Entry) => string): Environments => ({
    open: async (entry) => openIn(entry, stateFor(entry)),
    async reopen(entry, broken) {
      const state = stateFor(entry);
      const key = `${state} ${keyOf(entry)}`;
      const current = opened.get(key);
      const isBroken = (await current) === broken;
      if (isBroken && opened.get(key) === current) opened.delete(key); // unless someone else has by now
      return openIn(entry, state);
    },
  });
  return {
    ...seenBy(stateOf),
    for(user) {
      const states = users.get(user) ?? new Map<string, string>();
      users.delete(user);
      users.set(user, states); // the newest last
      if (users.size > usersMax) users.delete(users.keys().next().value!);
      const seen = seenBy((entry) => {
        const key = keyOf(entry);
        const state = states.get(key) ?? stateOf(entry);
        states.set(key, state);
        return state;
      });
      const open = async (entry: Entry): Promise<Environment> => {
        try {
          return await seen.open(entry);
        } catch (error) {
          states.delete(keyOf(entry)); // what it lacked may be installed before the next try
          throw error;
        }
      };
      return { ...seen, open };
    },
  };
}

/** Those of one run, evaluation or search. */
export function environmentsFor(environments: Environments, user: string): Environments {
  return environments.for?.(user) ?? environments;
}

/** Those of this process. */
export const environments: Environments = createEnvironments(
  async (entry, state) => {
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
    const opened = python
      ? openVerifiers({ ...entry, python, given: values, state: JSON.parse(state) as InstalledState })
      : loadEnvironment(id, args, { sha256 });
    return underSystemPrompt(await opened, systemPrompt);
  },
  ({ python }) => (python ? JSON.stringify(installedState(python)) : ''),
);

/** An environment by id and arguments; the same arguments give the same instance. */
export function openEnvironment(entry: Entry): Promise<Environment> {
  return environments.open(entry);
}
