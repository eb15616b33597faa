import { existsSync } from 'node:fs';
import { homedir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { namesOfExtras } from '../../backends/environments/packages/requirement.ts';
import { RatchetError } from '../../core/errors.ts';
import { readEnvironmentId } from '../../config/find-environment.ts';

/** Origin of a package. Each kind has a spelling of its own, so that nothing is guessed. */
export type InstallSource = {
  /** Requested extras: `my-env[tools]`. */
  readonly extras: readonly string[];
} &
  /** `NAME`: only the folder ./environments/NAME. */
  (
    | {
        readonly kind: 'name';
        readonly name: string;
        readonly module: string;
        readonly version: string | null;
        readonly folder: string;
      }
    /** A folder by its path. */
    | { readonly kind: 'path'; readonly folder: string }
    /** A wheel by its path. */
    | { readonly kind: 'wheel'; readonly file: string; readonly name: string }
    /** `OWNER/NAME` or `OWNER/NAME@VERSION` of the Environments Hub. */
    | {
        readonly kind: 'hub';
        readonly id: string;
        readonly owner: string;
        readonly name: string;
        readonly module: string;
      }
    /** `pypi:PACKAGE`, `pypi:PACKAGE[EXTRA]>=VERSION`: the package index. `requirement` is for pip. */
    | { readonly kind: 'pypi'; readonly name: string; readonly requirement: string }
  );

/** Parses the argument of `ratchet env install`; throws ConfigInvalid for an invalid or ambiguous source. */
export function readInstallSource(written: string, projectFolder: string): InstallSource {
  const refuse = (received: string): RatchetError =>
    new RatchetError(
      'ConfigInvalid',
      `ratchet env install: expected the NAME of a folder of ./environments, the path of a folder or of a wheel (./packages/my-env), OWNER/NAME, OWNER/NAME@VERSION, or pypi:PACKAGE, pypi:PACKAGE==VERSION, each with [EXTRA] where it is wanted; received ${received}`,
    );
  if (/^pypi:/i.test(written)) return ofIndex(written.slice('pypi:'.length).trim(), refuse);
  const instead = fromElsewhere(written);
  if (instead !== undefined) throw refuse(`${JSON.stringify(written)}. ${instead}`);
  const [, plain = written, bracketed] = /^([^[\]]+)\[([^[\]]*)\]$/.exec(written) ?? [];
  const extras = readExtras(bracketed);
  if (extras === null) throw refuse(`${JSON.stringify(written)}, whose extras are no names`);
  const file = plain.startsWith('file://') ? fileURLToPath(plain) : plain;
  if (/^(?:\.{0,2}\/|~\/|\.{1,2}$)/.test(file) || /\.(?:whl|tar\.gz|zip)$/.test(file))
    return atPath(folderAt(file, projectFolder), extras, refuse);
  const id = readEnvironmentId(file);
  const isFolder = file.includes('/') && existsSync(path.resolve(projectFolder, file));
  if (isFolder) throw refuse(`${JSON.stringify(written)}, which is a folder here: write ./${written} for that one`);
  if (id === undefined) throw refuse(JSON.stringify(written));
  const { owner, name, module, version } = id;
  if (owner !== null) return { kind: 'hub', id: file, owner, name, module, extras };
  return { kind: 'name', name, module, version, folder: path.join(projectFolder, 'environments', module), extras };
}

const indexParts = /^([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)\s*(?:\[([^[\]]*)\])?\s*([^]*)$/;
const specifierClause = /^(?:===|==|!=|~=|<=|>=|<|>)\s*[\w.!+*-]+$/;

/** A requirement as pip takes it, of a name and versions. */
function ofIndex(asked: string, refuse: (received: string) => RatchetError): InstallSource {
  const written = JSON.stringify(`pypi:${asked}`);
  const [, name, bracketed, rest = ''] = indexParts.exec(asked) ?? [];
  if (name === undefined) throw refuse(written);
  const extras = readExtras(bracketed);
  if (extras === null) throw refuse(`${written}, whose extras are no names`);
  const start = `pypi:${name}${extrasText(extras)}`;
  if (rest.startsWith('/')) throw refuse(`${written}. Of the Environments Hub it is ${asked}, without pypi:`);
  if (rest.includes(';')) throw refuse(`${written}. Leave the marker out: ${start}${rest.split(';', 1)[0]!.trim()}`);
  if (/^@\s*[\d.]+$/.test(rest)) throw refuse(`${written}. A version is written ${start}==${rest.slice(1).trim()}`);
  if (rest.startsWith('@'))
    throw refuse(`${written}, which names an address. ${fromElsewhere(rest.slice(1).trim()) ?? fetchFirst}`);
  const specifier = rest.replace(/^\((.*)\)$/, '$1');
  const clauses = specifier.split(',').map((clause) => clause.trim());
  if (specifier.trim() !== '' && !clauses.every((clause) => specifierClause.test(clause))) {
    throw refuse(`${written}. Versions are written ${start}==0.1.2, or ${start}>=0.1,<0.3`);
  }
  const versions = specifier.trim() === '' ? '' : clauses.map((clause) => clause.replaceAll(/\s/g, '')).join(',');
  return { kind: 'pypi', name, requirement: `${name}${extrasText(extras)}${versions}`, extras };
}

function atPath(place: string, extras: readonly string[], refuse: (received: string) => RatchetError): InstallSource {
  if (/\.(?:tar\.gz|zip)$/.test(place)) {
    throw refuse(
      `${place}, a source distribution: unpack it, read it, and install its folder, since building it runs its code`,
    );
  }
  if (!place.endsWith('.whl')) return { kind: 'path', folder: place, extras };
  if (!existsSync(place)) throw refuse(`${place}, and there is no such file`);
  const [name = ''] = path.basename(place).split('-', 1);
  return { kind: 'wheel', file: place, name, extras };
}

const fetchFirst =
  'Fetch it, read it, and install its folder or its wheel by the path: npx ratchet-rl env install ./FOLDER';

/** Advice for pip's other spellings: an address, or another form of a version; undefined for anything else. */
function fromElsewhere(written: string): string | undefined {
  const [, repository, revision, fragment = ''] =
    /^git\+([a-z+]+:\/\/[^#@\s]*(?:@[^#@/\s]+[:/][^#@\s]*)?)(?:@([^#\s]+))?(?:#(\S*))?$/.exec(written) ?? [];
  if (repository !== undefined) {
    const name = path.basename(repository).replace(/\.git$/, '');
    const below = /(?:^|&)subdirectory=([^&]+)/.exec(fragment)?.[1];
    const folder = `./packages/${name}`;
    return [
      'A repository is fetched before it is installed, so that its code can be read first:',
      `  git clone ${repository} ${folder}${revision === undefined ? '' : ` && git -C ${folder} checkout ${revision}`}`,
      `  npx ratchet-rl env install ${folder}${below === undefined ? '' : `/${below}`}`,
    ].join('\n');
  }
  if (/^[a-z][a-z+]*:\/\//i.test(written) && !written.startsWith('file://')) return fetchFirst;
  const [, name, rest] = /^([A-Za-z0-9][\w.-]*(?:\[[^\]]*\])?)\s*((?:[=!~<>]=?=?)[^]*)$/.exec(written) ?? [];
  if (name !== undefined) return `Of the package index it is written pypi:${name}${rest}`;
  const [, named, address] = /^([A-Za-z0-9][\w.-]*(?:\[[^\]]*\])?)\s*@\s*([a-z+]+:\/\/\S+)$/.exec(written) ?? [];
  return named === undefined ? undefined : (fromElsewhere(address!) ?? fetchFirst);
}

/** null when one is not a valid name. */
function readExtras(bracketed: string | undefined): string[] | null {
  const extras = namesOfExtras(bracketed ?? '');
  return extras.every((extra) => /^[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?$/.test(extra)) ? extras : null;
}

/** `[a,b]`, or nothing. */
export function extrasText(extras: readonly string[]): string {
  return extras.length === 0 ? '' : `[${extras.join(',')}]`;
}

function folderAt(written: string, projectFolder: string): string {
  return written.startsWith('~/') ? path.join(homedir(), written.slice(2)) : path.resolve(projectFolder, written);
}
