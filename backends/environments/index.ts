import type { EnvironmentEntry } from '../../core/settings/environments.ts';
import { loadEnvironment } from './load.ts';
import type { Environment } from './types.ts';
import { RatchetError } from '../../core/errors.ts';
import { givenVariables, variablesFor } from './variables.ts';
import { openAgent } from './agent/agent-environment.ts';
import { requireNamed } from './named.ts';
import { type InstalledState, installedState } from './packages/installed-state.ts';
import { underSystemPrompt } from './own-prompt.ts';
import { openVerifiers } from './verifiers/open.ts';

export type { Environment } from './types.ts';

export type { EnvironmentEntry };
type Entry = EnvironmentEntry;

/** Access to environments for rollouts and rubrics. */
export interface Environments {
  /** An environment by id and arguments; equal arguments give the same instance while the installation is unchanged. */
  open(entry: Entry): Promise<Environment>;
  /** A fresh instance in place of a failed one. Several calls about one failed instance get the same. */
  reopen(entry: Entry, broken: Environment): Promise<Environment>;
  /**
   * Environments for one run, evaluation or search: it keeps the installation of its first request, whatever is
   * installed meanwhile.
   */
  for?(user: string): Environments;
}

/** Runs and evaluations whose state is remembered in a process: more than ever run in one. */
const usersMax = 512;

/** @param stateOf Digest of the installation of an environment: another digest reloads it. */
export function createEnvironments(
  load: (entry: Entry, state: string) => Promise<Environment>,
  stateOf: (entry: Entry) => string = () => '',
): Environments {
  const opened = new Map<string, Promise<Environment>>();
  const users = new Map<string, Map<string, string>>();
  const keyOf = ({ limits, ...entry }: Entry): string => {
    const { id, args, sha256, python, variables, systemPrompt, agent, episode, extra, stateColumns, program } = entry;
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
      program,
    ]);
  };
  const openIn = (entry: Entry, state: string): Promise<Environment> => {
    const key = `${state} ${keyOf(entry)}`;
    const known = opened.get(key);
    if (known) return known;
    const loading = load(entry, state);
    opened.set(key, loading);
    // A failed load is tried again; its awaiting caller gets the error.
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
      if (isBroken && opened.get(key) === current) opened.delete(key); // unless it was replaced meanwhile
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
          states.delete(keyOf(entry)); // the missing part may be installed before the next try
          throw error;
        }
      };
      return { ...seen, open };
    },
  };
}

/** The environments of one run, evaluation or search. */
export function environmentsFor(environments: Environments, user: string): Environments {
  return environments.for?.(user) ?? environments;
}

export const environments: Environments = createEnvironments(
  async (entry, state) => {
    const { id, args, sha256, python, variables, systemPrompt, agent, episode, program } = entry;
    requireNamed(entry);
    const { values } = givenVariables(variablesFor({ python, variables, program }));
    if (program) return underSystemPrompt(await openAgent({ id, program, given: values }), systemPrompt);
    // An environment in TypeScript runs in this process, which has the variables.
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

/** An environment by id and arguments; equal arguments give the same instance. */
export function openEnvironment(entry: Entry): Promise<Environment> {
  return environments.open(entry);
}
