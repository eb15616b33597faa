import type { PythonEnvironmentSpec } from '../../../config/run-spec.ts';

export type VerifiersApi = PythonEnvironmentSpec['api'];

/** The version of verifiers for each API: the last with v0, and the newest. */
export const verifiersVersions = { v0: '0.3.1', v1: '0.4.0' } as const satisfies Record<VerifiersApi, string>;

/** One thing that a package asks for, as PEP 508 writes it. */
interface Requirement {
  readonly name: string;
  readonly extras: readonly string[];
  /** `>=1,<2`; '' = any version, or an address. */
  readonly specifier: string;
  /** The address after `@`; null = the package index. */
  readonly address: string | null;
  /** Condition behind the semicolon; null = always. */
  readonly marker: string | null;
}

const requirementParts = /^([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)\s*(?:\[([^\]]*)\])?\s*([^]*)$/;

/** null if the text is no requirement. */
export function readRequirement(text: string): Requirement | null {
  const [, name, extras = '', rest = ''] = requirementParts.exec(text.trim()) ?? [];
  if (name === undefined) return null;
  // An address may contain a semicolon: its marker follows a space.
  const isAddress = rest.startsWith('@');
  const at = isAddress ? rest.search(/\s;/) : rest.indexOf(';');
  const [asked, marker] = at < 0 ? [rest, null] : [rest.slice(0, at), rest.slice(rest.indexOf(';', at) + 1).trim()];
  const wanted = asked.trim().replace(/^\((.*)\)$/, '$1').trim(); // prettier-ignore
  return {
    name,
    extras: namesOfExtras(extras),
    specifier: isAddress ? '' : wanted,
    address: isAddress ? wanted.slice(1).trim() : null,
    marker,
  };
}

/** Example: `a, b` → [a, b]. */
export function namesOfExtras(written: string): string[] {
  return written.split(',').map((extra) => extra.trim()).filter((extra) => extra !== ''); // prettier-ignore
}

/** Whether two names denote one package, or one extra: `Wiki_Search`, `wiki-search`. */
export function isSameName(a: string, b: string): boolean {
  const plain = (name: string) => name.toLowerCase().replaceAll(/[-_.]+/g, '-');
  return plain(a) === plain(b);
}

/** Context of an installation, which decides which requirements apply. */
export interface InstalledWith {
  /** The package's own name: `name[a]` among its requirements adds that extra. */
  readonly name?: string;
  /** 'any': the requested extras are unknown, so each may apply. */
  readonly extras?: readonly string[] | 'any';
  /** Python's version: `3.11.7`. */
  readonly python?: string;
}

/** The requirements of a package that apply to this machine, without their markers. */
export function applicableRequirements(dependencies: readonly string[], asked: InstalledWith = {}): Requirement[] {
  const all = dependencies.flatMap((dependency) => readRequirement(dependency) ?? []);
  const { name, extras = [] } = asked;
  const applying = all.filter(({ marker }) => marker === null || markerHolds(marker, asked));
  const own = applying.filter((one) => name !== undefined && isSameName(one.name, name));
  const more = own.flatMap((one) => one.extras).filter((extra) => extras !== 'any' && !extras.some((known) => isSameName(known, extra))); // prettier-ignore
  if (more.length > 0) return applicableRequirements(dependencies, { ...asked, extras: more.concat(extras) });
  return applying.filter((one) => !own.includes(one)).map((one) => ({ ...one, marker: null }));
}

/**
 * A package's requirement on verifiers: the version specifier, '' if any version will do, null if it does not need
 * verifiers with these extras and this Python. A requirement by address has no version: ''.
 */
export function verifiersRequirement(dependencies: readonly string[], asked: InstalledWith = {}): string | null {
  const found = applicableRequirements(dependencies, asked).filter(({ name }) => isSameName(name, 'verifiers'));
  if (found.length === 0) return null;
  return found.map(({ specifier }) => specifier).filter((specifier) => specifier !== '').join(','); // prettier-ignore
}

/** Extras that each make a package need verifiers. */
export function extrasWithVerifiers(dependencies: readonly string[], asked: InstalledWith = {}): string[] {
  const named = dependencies.flatMap((dependency) =>
    [...(readRequirement(dependency)?.marker ?? '').matchAll(/\bextra\s*==\s*["']([^"']+)["']/g)].map(
      ([, name]) => name!,
    ),
  );
  return [...new Set(named)].filter(
    (extra) => verifiersRequirement(dependencies, { ...asked, extras: [extra] }) !== null,
  );
}

type MarkerToken = string;

/**
 * Evaluates a marker of PEP 508: `python_version >= "3.11" and extra == "env"`. Unreadable markers and unknown names
 * count as true.
 */
export function markerHolds(marker: string, asked: InstalledWith = {}): boolean {
  const tokens = marker.match(/"[^"]*"|'[^']*'|[()]|[<>=!~]{1,3}|[\w.]+/g) ?? [];
  const reader = { tokens, at: 0 };
  const holds = anyOf(reader, asked);
  return reader.at === tokens.length ? holds : true;
}

interface MarkerReader {
  readonly tokens: readonly MarkerToken[];
  at: number;
}

function anyOf(reader: MarkerReader, asked: InstalledWith): boolean {
  let holds = allOf(reader, asked);
  while (reader.tokens[reader.at] === 'or') {
    reader.at += 1;
    const next = allOf(reader, asked);
    holds ||= next;
  }
  return holds;
}

function allOf(reader: MarkerReader, asked: InstalledWith): boolean {
  let holds = oneOf(reader, asked);
  while (reader.tokens[reader.at] === 'and') {
    reader.at += 1;
    const next = oneOf(reader, asked);
    holds &&= next;
  }
  return holds;
}

function oneOf(reader: MarkerReader, asked: InstalledWith): boolean {
  if (reader.tokens[reader.at] === '(') {
    reader.at += 1;
    const holds = anyOf(reader, asked);
    reader.at += 1; // the closing bracket
    return holds;
  }
  const left = reader.tokens[reader.at++] ?? '';
  const not = reader.tokens[reader.at] === 'not' ? (reader.at++, 'not ') : '';
  const operator = `${not}${reader.tokens[reader.at++] ?? ''}`;
  return compared(left, operator, reader.tokens[reader.at++] ?? '', asked);
}

function compared(left: MarkerToken, operator: string, right: MarkerToken, asked: InstalledWith): boolean {
  if (left === 'extra' || right === 'extra') {
    const { extras = [] } = asked;
    const extra = unquoted(left === 'extra' ? right : left);
    const isAsked = extras === 'any' || extras.some((one) => isSameName(one, extra));
    return operator === '!=' ? extras === 'any' || !isAsked : isAsked;
  }
  const [a, b] = [markerValue(left, asked), markerValue(right, asked)];
  if (a === undefined || b === undefined) return true;
  if (operator === 'in' || operator === 'not in') return b.includes(a) === (operator === 'in');
  if ([left, right].some((one) => /^(?:python_version|python_full_version|implementation_version)$/.test(one)))
    return satisfies(a, `${operator}${b}`);
  return operator === '!=' ? a !== b : operator === '==' || operator === '===' ? a === b : true;
}

function unquoted(token: MarkerToken): string {
  return token.replaceAll(/^["']|["']$/g, '');
}

/** undefined for an unknown name. */
function markerValue(token: MarkerToken, { python = '3.11.0' }: InstalledWith): string | undefined {
  if (/^["']/.test(token)) return unquoted(token);
  const full = /^\d+\.\d+/.test(python) ? python : '3.11.0';
  const known: Readonly<Record<string, string>> = {
    python_version: full.split('.').slice(0, 2).join('.'),
    python_full_version: full,
    implementation_version: full,
    sys_platform: process.platform,
    platform_system: process.platform === 'darwin' ? 'Darwin' : 'Linux',
    platform_machine: machineName(),
    os_name: 'posix',
    implementation_name: 'cpython',
    platform_python_implementation: 'CPython',
  };
  return known[token];
}

/** The value of Python's `platform.machine()`. */
function machineName(): string {
  if (process.arch === 'x64') return 'x86_64';
  return process.arch === 'arm64' && process.platform === 'linux' ? 'aarch64' : process.arch;
}

/** The versions of Python that verifiers supports and a `requires-python` allows. */
export function pythonsThatFit(specifier: string): string[] {
  return ['3.11', '3.12', '3.13'].filter((version) => satisfies(`${version}.99`, specifier) || satisfies(`${version}.0`, specifier)); // prettier-ignore
}

/** The APIs whose version a specifier allows. */
export function apisThatFit(specifier: string): VerifiersApi[] {
  return (['v0', 'v1'] as const).filter((api) => satisfies(verifiersVersions[api], specifier));
}

/** The API of an installed version of verifiers; undefined for those before 0.3.1, which are not supported. */
export function apisOfVersion(version: string): VerifiersApi[] {
  if (satisfies(version, '>=0.4')) return ['v1'];
  return satisfies(version, '>=0.3.1') ? ['v0', 'v1'] : [];
}

/**
 * Python's version specifiers (PEP 440) over release numbers: `>=0.3.1,<0.4`. Suffixes such as `.post1` and `rc2` are
 * ignored.
 */
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
      return false; // unreadable specifiers allow nothing: the caller then asks the user
  }
}

/** Example: `0.3.1.post2` → [0, 3, 1]. */
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
