import { existsSync } from 'node:fs';
import { homedir } from 'node:os';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { readEnvironmentId } from '../../config/find-environment.ts';

/** Where a package is to come from. Nothing is guessed: each has a spelling of its own. */
export type InstallSource =
  /** `NAME`: the folder ./environments/NAME and nothing else. */
  | {
      readonly kind: 'name';
      readonly name: string;
      readonly module: string;
      readonly version: string | null;
      readonly folder: string;
    }
  /** A folder by its path. */
  | { readonly kind: 'path'; readonly folder: string }
  /** `OWNER/NAME` or `OWNER/NAME@VERSION` of the Environments Hub. */
  | {
      readonly kind: 'hub';
      readonly id: string;
      readonly owner: string;
      readonly name: string;
      readonly module: string;
    }
  /** `pypi:PACKAGE` or `pypi:PACKAGE==VERSION`: the package index. */
  | { readonly kind: 'pypi'; readonly name: string; readonly requirement: string };

/** Reads what `ratchet env install` was given; throws ConfigInvalid for what is no source, or may be two. */
export function readInstallSource(written: string, projectFolder: string): InstallSource {
  const refuse = (received: string): RatchetError =>
    new RatchetError(
      'ConfigInvalid',
      `ratchet env install: expected the NAME of a folder of ./environments, the path of a folder (./packages/my-env), OWNER/NAME, OWNER/NAME@VERSION, or pypi:PACKAGE, pypi:PACKAGE==VERSION; received ${received}`,
    );
  if (written.startsWith('pypi:')) {
    const requirement = written.slice('pypi:'.length);
    const [, name] = /^([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)(?:==[\w.!+]+)?$/.exec(requirement) ?? [];
    if (name === undefined) throw refuse(JSON.stringify(written));
    return { kind: 'pypi', name, requirement };
  }
  if (/^(?:\.{0,2}\/|~\/|\.{1,2}$)/.test(written)) return { kind: 'path', folder: folderAt(written, projectFolder) };
  const id = readEnvironmentId(written);
  const isFolder = written.includes('/') && existsSync(path.resolve(projectFolder, written));
  if (isFolder) throw refuse(`${JSON.stringify(written)}, which is a folder here: write ./${written} for that one`);
  if (id === undefined) throw refuse(JSON.stringify(written));
  const { owner, name, module, version } = id;
  if (owner !== null) return { kind: 'hub', id: written, owner, name, module };
  return { kind: 'name', name, module, version, folder: path.join(projectFolder, 'environments', module) };
}

function folderAt(written: string, projectFolder: string): string {
  return written.startsWith('~/') ? path.join(homedir(), written.slice(2)) : path.resolve(projectFolder, written);
}
