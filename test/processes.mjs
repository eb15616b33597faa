/**
 * Decides which test files share a process. Starting a process and loading the product takes longer than most files; a file that changes or
 * measures its process has one of its own.
 */
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';

/** @typedef {{ readonly name: string, readonly files: readonly string[], readonly seconds: number }} TestProcess */

/** Tests of these folders share one process each, whatever their sources say: those of `test/workflows` share a Temporal server. */
const together = ['test/workflows/'];
/** Several short processes side by side end sooner than one long one. */
const secondsMost = 12;
/** A file that the list of seconds lacks takes less than those in it. */
const secondsUnknown = 0.5;

/** What a source does that another test of the same process could notice. @type {readonly (readonly [string, RegExp])[]} */
const reasons = [
  [
    'changes environment variables',
    /process\.env(?:\[[^\]]+\]|\.\w+) *\??\??=[^=]|delete process\.env|Object\.assign\(process\.env/,
  ],
  ['changes the folder or the mask', /process\.(?:chdir|umask|set\w*id)\(/],
  ['changes a global', /globalThis(?:\.\w+|\[[^\]]+\]) *=[^=]|Object\.\w+\(globalThis/],
  ['changes clocks or methods', /\bmock\.(?:timers|method|module|getter|setter)\b/],
  ['ends the process or hears its signals', /process\.(?:(?:on|once)\((?!'exit')|exitCode *=|exit\()/],
  ['measures the process', /process\.(?:memoryUsage|cpuUsage|resourceUsage|getActive)|\/proc\/self|\bgc\(/],
  ['has hooks around every test of the process', /^(?:before|beforeEach|afterEach)\(/m],
];

/** Imports of files beside, but for those of types alone. */
const imports = /^(?:import|export)(?! type)[^;']*'(\.[^']+)'|import\('(\.[^']+)'\)/gm;

/**
 * Returns why a test file needs a process of its own; null if it may share one.
 * @param {string} file
 * @returns {string | null}
 */
export function whyAlone(file) {
  for (const source of withHelpers(file)) {
    const text = readFileSync(source, 'utf8');
    const reason = reasons.find(([, sign]) => sign.test(text));
    if (reason) return `${source} ${reason[0]}`;
  }
  return null;
}

/**
 * A test file and what it imports from the tests.
 * @param {string} file
 * @returns {Set<string>}
 */
function withHelpers(file) {
  const found = new Set([file]);
  for (const source of found) {
    for (const [, named, lazy] of readFileSync(source, 'utf8').matchAll(imports)) {
      const helper = path.join(path.dirname(source), named ?? lazy ?? '');
      if (/(?:^|[/])test[/]/.test(helper) && /\.(?:ts|mjs)$/.test(helper) && existsSync(helper)) found.add(helper);
    }
  }
  return found;
}

/**
 * Test files by process: those that take longest start first, and one against a real server, which waits more than it computes, takes turns
 * with another one.
 * @param {readonly string[]} files relative to the project
 * @param {Readonly<Record<string, number>>} seconds of files that take long
 * @returns {TestProcess[]}
 */
export function shareProcesses(files, seconds) {
  const secondsOf = (/** @type {string} */ file) => seconds[file] ?? secondsUnknown;
  /** @type {Map<string, TestProcess>} */
  const processes = new Map();
  /** @type {Map<string, number>} */
  const full = new Map();
  for (const file of files) {
    const joined = together.find((place) => file.startsWith(place));
    const takesLong = /\.(?:e2e|slow)\.test\.ts$/.test(file) || secondsOf(file) >= secondsMost;
    const isAlone = !joined && (takesLong || whyAlone(file) !== null);
    const room = joined ?? `${/^(?:.*[/])?test[/][^/.]+/.exec(file)?.[0] ?? 'test'}/`;
    const inRoom = () => `${room}shared-${full.get(room) ?? 1}.test`;
    const before = isAlone ? undefined : processes.get(inRoom());
    if (!joined && before && before.seconds + secondsOf(file) > secondsMost) full.set(room, (full.get(room) ?? 1) + 1);
    const name = isAlone ? file.replace(/\.ts$/, '') : inRoom();
    const others = processes.get(name) ?? { files: [], seconds: 0 };
    processes.set(name, { name, files: [...others.files, file], seconds: others.seconds + secondsOf(file) });
  }
  const byLength = [...processes.values()].sort((one, other) => other.seconds - one.seconds);
  return inTurns(byLength, ({ name }) => name.endsWith('.e2e.test'));
}

/**
 * Takes one of either kind while there are both, each kind in its order.
 * @template T
 * @param {readonly T[]} all
 * @param {(one: T) => boolean} isOfFirst
 * @returns {T[]}
 */
function inTurns(all, isOfFirst) {
  const [first, second] = [all.filter(isOfFirst), all.filter((one) => !isOfFirst(one))];
  return Array.from({ length: Math.max(first.length, second.length) }, (_, i) => [first[i], second[i]])
    .flat()
    .filter((one) => one !== undefined);
}
