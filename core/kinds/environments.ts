import { isEnvironmentFile } from '../names.ts';

/**
 * Facts about a kind of environment before it is opened. Only that of an agent has a key: the environment's id implies
 * every other.
 */
interface EnvironmentTraits {
  /** Description in the list of all kinds. */
  readonly is: string;
  /**
   * Place of its code: the rollout worker, or a child process of that worker.
   */
  readonly process: 'worker' | 'child';
  /** Whether it ends its rollouts at their time limit itself; else the worker does. */
  readonly keepsTime: boolean;
  /** Author of its code. Commands that only read a file never run the user's code, and a person must have named it. */
  readonly code: 'ratchet' | 'user';
  /** Prerequisites of a run, for people. */
  readonly install: string;
  /** Whether it may provide demonstrations for the warm-up. */
  readonly demonstrates: boolean;
  /** Whether it reads the files of `env_files`. */
  readonly readsVariableFiles: boolean;
}

export const environments = {
  'built-in': {
    is: 'one that comes with Ratchet',
    process: 'worker',
    keepsTime: false,
    code: 'ratchet',
    install: 'nothing',
    demonstrates: true,
    readsVariableFiles: false,
  },
  file: {
    is: 'a file of yours',
    process: 'worker',
    keepsTime: false,
    code: 'user',
    install: 'what it imports',
    demonstrates: true,
    readsVariableFiles: false,
  },
  package: {
    is: 'a Python package of verifiers',
    process: 'child',
    keepsTime: true,
    code: 'user',
    install: '`ratchet env install`',
    demonstrates: false,
    readsVariableFiles: true,
  },
  agent: {
    is: 'a program of yours that owns its loop, in a sandbox',
    process: 'worker',
    keepsTime: true,
    code: 'user',
    install: 'what its sandbox needs',
    demonstrates: false,
    readsVariableFiles: false,
  },
} as const satisfies Readonly<Record<string, EnvironmentTraits>>;

type EnvironmentKind = keyof typeof environments;

interface Entry {
  readonly id?: string;
  /** The Python package, if it is one. */
  readonly python?: object | undefined;
  /** The agent, if it is one. */
  readonly program?: object | undefined;
}

function kindOfEnvironment({ id = '', python, program }: Entry): EnvironmentKind {
  if (program !== undefined) return 'agent';
  if (python !== undefined) return 'package';
  return isEnvironmentFile(id) ? 'file' : 'built-in';
}

export function environmentTraits(entry: Entry): EnvironmentTraits {
  return environments[kindOfEnvironment(entry)];
}
