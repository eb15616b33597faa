import type { PythonEnvironmentSpec } from './run-spec.ts';

/** The environment behind an id; the caller looks into folders and packages. */
export type FoundEnvironment =
  /**
   * `id`: a built-in environment, the absolute path of a file, or, with `python`, the name of an installed package.
   * `said`: the decision, if it is not obvious.
   */
  | { readonly ok: true; readonly id: string; readonly said?: string; readonly python?: PythonEnvironmentSpec }
  | {
      readonly ok: false;
      readonly expected: string;
      readonly received: string;
      readonly suggestion?: string;
      /** Argument of `ratchet env install`, if that may help. */
      readonly install?: string;
    };

export interface FindOptions {
  /** Whether `owner/name` may be the built-in environment of that name. */
  readonly builtin: boolean;
  /** The file's system, if it is not ours: its ids name packages of verifiers. */
  readonly system?: string;
}

export type FindEnvironment = (id: string, options: FindOptions) => FoundEnvironment;

/** An id in its written form: `owner/name@version`, of which only the name is required. */
export interface EnvironmentId {
  readonly owner: string | null;
  /** Spelt with dashes, like folders of built-in environments. */
  readonly name: string;
  /** Spelt with underscores, like Python's modules. */
  readonly module: string;
  readonly version: string | null;
}

/** undefined if it is no id: a file's path, or a name that would leave a folder. */
export function readEnvironmentId(id: string): EnvironmentId | undefined {
  const [, owner = null, name, version = null] =
    /^(?:([A-Za-z0-9][\w.-]*)\/)?([A-Za-z0-9][\w.-]{0,63})(?:@([\w.+-]+))?$/.exec(id) ?? [];
  if (name === undefined) return undefined;
  return { owner, name: name.replaceAll('_', '-'), module: name.replaceAll('-', '_'), version };
}
