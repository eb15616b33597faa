import type { PythonEnvironmentSpec } from '../../../config/run-spec.ts';

export type VerifiersApi = PythonEnvironmentSpec['api'];

/** The version of verifiers that each API is spoken with: the last that has v0, and the newest. */
export const verifiersVersions = { v0: '0.3.1', v1: '0.4.0' } as const satisfies Record<VerifiersApi, string>;

/**
 * What a package asks of verifiers: the version specifier of its requirement, '' where any version will do, null where it does not
 * need verifiers. A requirement by URL says nothing of versions: ''.
 */
export function verifiersRequirement(dependencies: readonly string[]): string | null {
  for (const dependency of dependencies) {
    const [, rest] = /^verifiers(?![\w.-])\s*(?:\[[^\]]*\])?([^]*)$/i.exec(dependency.trim()) ?? [];
    if (rest === undefined) continue;
    const specifier = rest.split(';', 1)[0]!.trim().replace(/^\((.*)\)$/, '$1').trim(); // prettier-ignore
    return specifier.startsWith('@') ? '' : specifier;
  }
  return null;
}

/** The APIs whose version a specifier lets through. */
export function apisThatFit(specifier: string): VerifiersApi[] {
  return (['v0', 'v1'] as const).filter((api) => satisfies(verifiersVersions[api], specifier));
}

/** The API that an installed version of verifiers is spoken to with; undefined for those before 0.3.1, which Ratchet does not know. */
export function apisOfVersion(version: string): VerifiersApi[] {
  if (satisfies(version, '>=0.4')) return ['v1'];
  return satisfies(version, '>=0.3.1') ? ['v0', 'v1'] : [];
}

/** Python's version specifiers (PEP 440) over release numbers: `>=0.3.1,<0.4`. Suffixes such as `.post1` and `rc2` are not looked at. */
function satisfies(version: string, specifier: string): boolean {
  return specifier
    .split(',')
    .map((clause) => clause.trim())
    .filter((clause) => clause !== '')
    .every((clause) => satisfiesClause(release(version), clause));
}

function satisfiesClause(version: readonly number[], clause: string): boolean {
  const [, operator = '', written = ''] = /^(===|==|!=|~=|<=|>=|<|>)\s*(\S+)$/.exec(clause) ?? [];
  const bound = release(written);
  const order = compare(version, bound);
  const isPrefix = () => compare(version.slice(0, bound.length), bound) === 0;
  const isEqual = () => (written.endsWith('.*') ? isPrefix() : order === 0);
  switch (operator) {
    case '>=':
      return order >= 0;
    case '<=':
      return order <= 0;
    case '>':
      return order > 0;
    case '<':
      return order < 0;
    case '==':
    case '===':
      return isEqual();
    case '!=':
      return !isEqual();
    case '~=':
      return order >= 0 && compare(version.slice(0, bound.length - 1), bound.slice(0, -1)) === 0;
    default:
      return false; // what cannot be read lets nothing through: whoever asks then asks the user
  }
}

/** `0.3.1.post2` → [0, 3, 1] */
function release(version: string): number[] {
  return (/^v?(\d+(?:\.\d+)*)/.exec(version)?.[1] ?? '').split('.').map(Number);
}

function compare(a: readonly number[], b: readonly number[]): number {
  for (let i = 0; i < Math.max(a.length, b.length); i++) {
    const difference = (a[i] ?? 0) - (b[i] ?? 0);
    if (difference !== 0) return difference;
  }
  return 0;
}
