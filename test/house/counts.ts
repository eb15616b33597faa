/** Counts of all product files, by room and as a whole. */
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { readSource, type SourceFile } from './source-file.ts';

/** The median, the value that nine in ten do not exceed, and the largest. */
export type Spread = readonly [p50: number, p90: number, max: number];

export interface RoomCounts {
  readonly files: number;
  readonly codeLines: number;
  readonly linesPerFile: Spread;
  readonly linesPerFunction: Spread;
  readonly exports: Spread;
  readonly imports: Spread;
  /** Comment lines among lines that are not blank. */
  readonly commentShare: number;
}

export interface Counts {
  /** `product` is the sum of the rooms. */
  readonly rooms: Readonly<Record<string, RoomCounts>>;
  /** Code lines of tests and measurements. */
  readonly beside: Readonly<Record<string, { readonly files: number; readonly codeLines: number }>>;
  /** Groups of files that import one another in a circle, largest first. */
  readonly cycles: { readonly values: readonly string[][]; readonly withTypes: readonly string[][] };
  /** Pairs of rooms whose values go both ways, with the number of imports each way. */
  readonly twoWayArrows: readonly {
    readonly rooms: readonly [string, string];
    readonly there: number;
    readonly back: number;
  }[];
  readonly filesOver15Imports: readonly string[];
  /** Folders with more than 27 files side by side, and their number. */
  readonly flatFolders: Readonly<Record<string, number>>;
  readonly comments: {
    readonly all: number;
    readonly short: number;
    readonly byFirstWord: Readonly<Record<string, number>>;
  };
  /** How often a word is written in comments, texts and names. */
  readonly privateWords: Readonly<Record<string, number>>;
  /** Comparisons with a kind of backend outside the adapters, by file. */
  readonly backendKinds: Readonly<Record<string, number>>;
  readonly conditionalSpreads: number;
  /** Calls of `present`, which does the same. */
  readonly present: number;
  readonly patched: number;
  readonly unusedExports: UnusedExports;
}

export interface UnusedExport {
  readonly file: string;
  readonly name: string;
  readonly isType: boolean;
}

export interface UnusedExports {
  readonly all: number;
  readonly usedByNobody: readonly UnusedExport[];
  readonly usedByTestsOnly: readonly UnusedExport[];
  /** Exported for tests; its own file uses it too. */
  readonly alsoByTests: readonly UnusedExport[];
  readonly inOwnFileOnly: readonly UnusedExport[];
}

/** Rooms that look at the product and are no part of it. */
const besideProduct = ['test', 'bench'];

const firstWords = ['Of', 'With', 'Where', 'As', 'By', 'For', 'What', 'Whoever', 'Nobody'];

const backendKinds = new Set(['onnx', 'embedded', 'module', 'tinker', 'vllm', 'endpoint', 'openai', 'pypi', 'hub']);

/** Folders of adapters, and of parts of backends that are none. */
const adapters = { in: /^backends\//, but: /^backends\/(configs|rollouts|store)\// };

/** Exports of code that a run file names by its file or folder. */
const namedInRunFiles = new Set(['default', 'loadEnvironment']);

/** Words of our own in place of the field's. */
const privateWords: Readonly<Record<string, RegExp>> = {
  'fruitless (rejected)': /\bfruitless\b/g,
  'goes on (continues)': /\bgo(es)? on\b/g,
  'harvest (collect)': /\bharvest\w*/g,
  lies: /\blies\b/g,
  nobody: /\bnobody\b/g,
  'play (generate)': /\bplay(s|ed|ing|er|ers)?\b/g,
  'purse (budget)': /\bpurses?\b/g,
  'sayings (texts)': /\bsayings?\b/g,
  sit: /\bsit(s|ting)?\b/g,
  taught: /\btaught\b/g,
  'told, tell (emit)': /\b(told|tells?)\b/g,
  'turnstile (admission queue)': /\bturnstiles?\b/g,
  'usual (default)': /\busual(ly)?\b/g,
  whoever: /\bwhoever\b/g,
};

export function countHouse(root: string): Counts {
  const listed = listFiles(root);
  const texts = new Map(listed.map((file) => [file, readFileSync(path.join(root, file), 'utf8')]));
  const all = listed.map((file) => readSource(file, texts.get(file)!));
  const isCounted = ({ file }: SourceFile): boolean => /(?<!\.d)\.tsx?$/.test(file);
  const counted = all.filter(isCounted);
  const product = counted.filter(({ file }) => !besideProduct.includes(roomOf(file)));
  const byRoom = grouped(product, ({ file }) => roomOf(file));
  const comments = product.flatMap((source) => source.comments);
  const first = comments.map((text) => /^[A-Za-z]+/.exec(text)?.[0]);
  const words = product.map(({ file }) => wordsOf(texts.get(file)!));
  const kinds = product.filter(({ file }) => !adapters.in.test(file) || adapters.but.test(file));
  const calls = (name: string): number => sum(product.map((source) => source.calls.get(name) ?? 0));
  return {
    rooms: {
      ...Object.fromEntries([...byRoom].map(([room, sources]) => [room, countRoom(sources)])),
      product: countRoom(product),
    },
    beside: Object.fromEntries(
      besideProduct.map((room) => {
        const sources = counted.filter(({ file }) => roomOf(file) === room);
        return [room, { files: sources.length, codeLines: sum(sources.map(({ codeLines }) => codeLines)) }];
      }),
    ),
    cycles: { values: cyclesOf(product, false), withTypes: cyclesOf(product, true) },
    twoWayArrows: twoWayArrows(product),
    filesOver15Imports: product.filter((source) => importsOf(source) > 15).map(({ file }) => file),
    flatFolders: flatFolders(product),
    comments: {
      all: comments.length,
      short: comments.filter((text) => text.split(/\s+/).length <= 6).length,
      byFirstWord: Object.fromEntries(firstWords.map((word) => [word, first.filter((one) => one === word).length])),
    },
    privateWords: Object.fromEntries(
      Object.entries(privateWords).map(([word, form]) => [
        word,
        sum(words.map((text) => text.match(form)?.length ?? 0)),
      ]),
    ),
    backendKinds: Object.fromEntries(
      kinds
        .map((source): [string, number] => [
          source.file,
          source.kinds.filter(({ kind }) => backendKinds.has(kind)).length,
        ])
        .filter(([, number]) => number > 0),
    ),
    conditionalSpreads: sum(product.map((source) => source.conditionalSpreads)),
    present: calls('present'),
    patched: calls('patched'),
    unusedExports: unusedExports(all, product, entryFiles(root)),
  };
}

function countRoom(sources: readonly SourceFile[]): RoomCounts {
  const codeLines = sum(sources.map((source) => source.codeLines));
  const commentLines = sum(sources.map((source) => source.commentLines));
  return {
    files: sources.length,
    codeLines,
    linesPerFile: spread(sources.map((source) => source.codeLines)),
    linesPerFunction: spread(sources.flatMap((source) => source.functions)),
    exports: spread(sources.map((source) => source.exports.length)),
    imports: spread(sources.map(importsOf)),
    commentShare: commentLines / Math.max(1, codeLines + commentLines),
  };
}

const importsOf = ({ imports }: SourceFile): number => imports.filter(({ isDeclaration }) => isDeclaration).length;

/** Strongly connected files (Tarjan 1972). */
function cyclesOf(sources: readonly SourceFile[], withTypes: boolean): string[][] {
  const next = new Map(
    sources.map(({ file, imports }) => [
      file,
      imports.filter(({ isType }) => withTypes || !isType).map(({ from }) => from),
    ]),
  );
  const cycles: string[][] = [];
  const index = new Map<string, number>();
  const low = new Map<string, number>();
  const stack: string[] = [];
  const onStack = new Set<string>();
  const visit = (file: string): void => {
    index.set(file, index.size);
    low.set(file, index.get(file)!);
    stack.push(file);
    onStack.add(file);
    for (const to of next.get(file)!) {
      if (!next.has(to)) continue;
      if (!index.has(to)) visit(to);
      if (onStack.has(to)) low.set(file, Math.min(low.get(file)!, low.get(to)!));
    }
    if (low.get(file) !== index.get(file)) return;
    const members = stack.splice(stack.indexOf(file));
    for (const member of members) onStack.delete(member);
    if (members.length > 1 || next.get(file)!.includes(file)) cycles.push(members.sort());
  };
  for (const { file } of sources) if (!index.has(file)) visit(file);
  return cycles.sort((a, b) => b.length - a.length);
}

function twoWayArrows(sources: readonly SourceFile[]): Counts['twoWayArrows'] {
  const rooms = new Set(sources.map(({ file }) => roomOf(file)));
  const arrows = new Map<string, number>();
  for (const { file, imports } of sources) {
    for (const { from, isType } of imports) {
      const [here, there] = [roomOf(file), roomOf(from)];
      if (isType || here === there || !rooms.has(there)) continue;
      arrows.set(`${here} ${there}`, (arrows.get(`${here} ${there}`) ?? 0) + 1);
    }
  }
  return [...arrows].flatMap(([arrow, there]) => {
    const [a, b] = arrow.split(' ') as [string, string];
    const back = arrows.get(`${b} ${a}`);
    return back !== undefined && a < b ? [{ rooms: [a, b] as const, there, back }] : [];
  });
}

function flatFolders(sources: readonly SourceFile[]): Record<string, number> {
  const folders = grouped(sources, ({ file }) => path.posix.dirname(file));
  const flat = [...folders].map(([folder, files]): [string, number] => [folder, files.length]);
  return Object.fromEntries(flat.filter(([, files]) => files > 27).sort(([, a], [, b]) => b - a));
}

function unusedExports(
  all: readonly SourceFile[],
  product: readonly SourceFile[],
  entries: ReadonlySet<string>,
): UnusedExports {
  const byTests = usesBy(all, (file) => besideProduct.includes(roomOf(file)));
  const byProduct = usesBy(all, (file) => !besideProduct.includes(roomOf(file)), entries);
  const imported = new Set(
    all
      .filter(({ file }) => !besideProduct.includes(roomOf(file)))
      .flatMap(({ imports }) => imports.map(({ from }) => from)),
  );
  const unused: Record<Exclude<keyof UnusedExports, 'all'>, UnusedExport[]> = {
    usedByNobody: [],
    usedByTestsOnly: [],
    alsoByTests: [],
    inOwnFileOnly: [],
  };
  for (const source of product) {
    // A file that no other imports is started, or found by its name.
    if (!imported.has(source.file) && !isUsed(byTests, source.file)) continue;
    for (const { name, isType } of source.exports) {
      if (isUsed(byProduct, source.file, name) || namedInRunFiles.has(name)) continue;
      const isInOwnFile = (source.words.get(name) ?? 0) > 1;
      const isInTests = isUsed(byTests, source.file, name);
      const list = isInTests
        ? isInOwnFile ? unused.alsoByTests : unused.usedByTestsOnly
        : isInOwnFile ? unused.inOwnFileOnly : unused.usedByNobody; // prettier-ignore
      list.push({ file: source.file, name, isType });
    }
  }
  return { all: sum(product.map((source) => source.exports.length)), ...unused };
}

/** Names by file; null for all of them. */
type Uses = Map<string, Set<string | null>>;

function usesBy(all: readonly SourceFile[], isUser: (file: string) => boolean, entries?: ReadonlySet<string>): Uses {
  const sources = new Map(all.map((source) => [source.file, source]));
  const uses: Uses = new Map();
  const use = (file: string, name: string | null): void => {
    const names = uses.get(file) ?? new Set();
    if (names.has(name)) return;
    uses.set(file, names.add(name));
    const source = sources.get(file);
    for (const { name: own, from } of source?.exports ?? [])
      if (from && (name === null || own === name)) use(from.file, from.name);
    for (const other of source?.exportsAllOf ?? []) use(other, name);
  };
  for (const entry of entries ?? []) use(entry, null);
  for (const { file, imports } of all.filter((source) => isUser(source.file))) {
    for (const { from, names } of imports) {
      if (from === file) continue;
      for (const name of names ?? [null]) use(from, name);
    }
  }
  return uses;
}

function isUsed(uses: Uses, file: string, name?: string): boolean {
  const names = uses.get(file);
  return names !== undefined && (name === undefined || names.has(name) || names.has(null));
}

/** Files that others import by the package's name. */
function entryFiles(root: string): Set<string> {
  const { exports } = JSON.parse(readFileSync(path.join(root, 'package.json'), 'utf8')) as {
    exports: Record<string, string | Record<string, string>>;
  };
  const files = Object.values(exports).flatMap((one) => (typeof one === 'string' ? [one] : Object.values(one)));
  return new Set(files.map((file) => path.posix.normalize(file)));
}

/** A text in lower case, with the parts of its names apart: `playHere` is two words. */
function wordsOf(text: string): string {
  return text
    .replaceAll(/([a-z0-9])([A-Z])/g, '$1 $2')
    .replaceAll('_', ' ')
    .toLowerCase();
}

function grouped<T>(all: readonly T[], keyOf: (one: T) => string): Map<string, T[]> {
  const groups = new Map<string, T[]>();
  for (const one of all) groups.set(keyOf(one), [...(groups.get(keyOf(one)) ?? []), one]);
  return groups;
}

function spread(numbers: readonly number[]): Spread {
  const sorted = numbers.toSorted((a, b) => a - b);
  const at = (share: number): number => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? 0;
  return [at(0.5), at(0.9), sorted.at(-1) ?? 0];
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, one) => total + one, 0);
}

function roomOf(file: string): string {
  return file.slice(0, Math.max(0, file.indexOf('/')));
}

/** TypeScript and JavaScript files that git tracks, or does not ignore, below a folder. */
function listFiles(root: string): string[] {
  const listed = execFileSync('git', ['ls-files', '-z', '--cached', '--others', '--exclude-standard'], {
    cwd: root,
    encoding: 'utf8',
  });
  return listed
    .split('\0')
    .filter((file) => /\.(ts|tsx|mts|mjs)$/.test(file) && file.includes('/') && existsSync(path.join(root, file)))
    .sort();
}
