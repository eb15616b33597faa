import type { PythonEnvironmentSpec } from './run-spec.ts';

/** What an environment's id stands for here; who knows the folders answers. */
export type FoundEnvironment =
  /**
   * `id`: that of a built-in environment, the absolute path of a file, or, with `python`, the name of a package that is installed.
   * `said`: what was decided, where that is not plain.
   */
  | { readonly ok: true; readonly id: string; readonly said?: string; readonly python?: PythonEnvironmentSpec }
  | {
      readonly ok: false;
      readonly expected: string;
      readonly received: string;
      readonly suggestion?: string;
      /** What `ratchet env install` takes to bring it here, where that may help. */
      readonly install?: string;
    };

export interface FindOptions {
  /** Whether `owner/name` may be the built-in environment of that name. */
  readonly builtin: boolean;
  /** The system whose file it is, where it is not our own: there the id names a package of verifiers. */
  readonly system?: string;
}

export type FindEnvironment = (id: string, options: FindOptions) => FoundEnvironment;

/** An id as people write it: `owner/name@version`, of which only the name has to be there. */
export interface EnvironmentId {
  readonly owner: string | null;
  /** With dashes, as folders of built-in environments are called. */
  readonly name: string;
  /** With underscores, as Python's modules are called. */
  readonly module: string;
  readonly version: string | null;
}

/** undefined for what is no id: a file's path, or something that would leave a folder. */
export function readEnvironmentId(id: string): EnvironmentId | undefined {
  const [, owner = null, name, version = null] =
    /^(?:([A-Za-z0-9][\w.-]*)\/)?([A-Za-z0-9][\w.-]{0,63})(?:@([\w.+-]+))?$/.exec(id) ?? [];
  if (name === undefined) return undefined;
  return { owner, name: name.replaceAll('_', '-'), module: name.replaceAll('-', '_'), version };
}
