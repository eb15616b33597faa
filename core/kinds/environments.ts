import { isEnvironmentFile } from '../names.ts';

/**
 * Facts about a kind of environment before it is opened. The kind has no key of its own: the environment's id implies
 * it.
 */
interface EnvironmentTraits {
  /** Description in the list of all kinds. */
  readonly is: string;
  /**
   * Place of its rollouts: the rollout worker, or a child process of that worker, which enforces time limits itself.
   */
  readonly process: 'worker' | 'child';
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
    code: 'ratchet',
    install: 'nothing',
    demonstrates: true,
    readsVariableFiles: false,
  },
  file: {
    is: 'a file of yours',
    process: 'worker',
    code: 'user',
    install: 'what it imports',
    demonstrates: true,
    readsVariableFiles: false,
  },
  package: {
    is: 'a Python package of verifiers',
    process: 'child',
    code: 'user',
    install: '`ratchet env install`',
    demonstrates: false,
    readsVariableFiles: true,
  },
} as const satisfies Readonly<Record<string, EnvironmentTraits>>;

type EnvironmentKind = keyof typeof environments;

interface Entry {
  readonly id?: string;
  /** The Python package, if it is one. */
  readonly python?: object | undefined;
}

function kindOfEnvironment({ id = '', python }: Entry): EnvironmentKind {
  if (python !== undefined) return 'package';
  return isEnvironmentFile(id) ? 'file' : 'built-in';
}

export function environmentTraits(entry: Entry): EnvironmentTraits {
  return environments[kindOfEnvironment(entry)];
}
