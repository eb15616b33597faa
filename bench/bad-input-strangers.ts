import {
  cpSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Outcome } from '../test/bad-input/cli-process.ts';
import { damages, kindsIn, oddNames, plants, type Random } from '../test/bad-input/damages.ts';
import { type Fault, faultIn } from '../test/bad-input/judge.ts';
import { unpack } from '../test/data/older-runs/archive.mjs';

/*
 * Folders from a stranger: a run, or results of evaluations, with something planted or damaged. Commands that only look
 * read them. They must neither hang, nor print or copy what a link leads to, nor write into the folder.
 */

export interface StrangerCase {
  readonly what: string;
  readonly args: readonly string[];
  readonly names: readonly string[];
}

interface Judged {
  readonly what: string;
  readonly outcome: Outcome;
  readonly found: { readonly fault: Fault; readonly why: string } | null;
}

interface Options {
  /** An empty folder of this part. */
  readonly folder: string;
  /** How many commands. */
  readonly count: number;
  readonly random: Random;
  readonly run: (here: string, args: readonly string[]) => Promise<Outcome>;
  readonly tell: (judged: Judged) => void;
}

const canary = 'canary-of-the-user';
/** Passes for a row of metrics, an answer or a template, so that reading it would print it. */
const secretText = `{"step":1,"text":"${canary}","metrics":{"train/reward":0.5}}\n`;
const run = 'words';

/** A change in a folder, and the names that refusals of it mention. */
interface Change {
  readonly what: string;
  readonly names: readonly string[];
  readonly make: (folder: string) => void;
}

interface Stage {
  readonly here: string;
  readonly theirs: string;
  readonly secret: string;
}

function stageIn(folder: string): Stage {
  const stage = {
    here: path.join(folder, 'here'),
    theirs: path.join(folder, 'theirs'),
    secret: path.join(folder, 'ours', 'secret'),
  };
  mkdirSync(stage.here, { recursive: true });
  mkdirSync(path.dirname(stage.secret), { recursive: true });
  writeFileSync(stage.secret, secretText);
  forgetReads(stage);
  readFileSync(stage.secret);
  if (readOf(stage) === null)
    throw new Error(
      `${folder} keeps no times of reading, which show that a link was followed; set TMPDIR to another disk`,
    );
  return stage;
}

/*
 * A link's target may be read without being printed, since a command seldom expects it there. The system updates the
 * access time of a file or a folder if that is older than its last change, or than a day.
 */
const longAgo = new Date('2001-01-01T00:00:00Z');

function forgetReads({ secret }: Stage): void {
  for (const place of [secret, path.dirname(secret)]) utimesSync(place, longAgo, longAgo);
}

/** Name of our own file or folder that was read since then. */
function readOf({ secret }: Stage): string | null {
  const read = [secret, path.dirname(secret)].find((place) => statSync(place).atimeMs > longAgo.getTime());
  return read === undefined ? null : path.basename(read);
}

/** Tries runs that another user made. */
export async function tryFolders(options: Options): Promise<void> {
  const stage = stageIn(options.folder);
  const sound = path.join(options.folder, 'sound');
  mkdirSync(sound);
  unpack(sound, 'nov-26-level-0-between');
  const { theirs } = stage;
  const at = ['--store', theirs];
  const looks: readonly (readonly string[])[] = [
    ['audit', run, ...at],
    ['audit', run, '--weights', ...at],
    ['report', run, ...at],
    ['report', path.join(theirs, run), '-o', 'again.html'],
    ['status', run, ...at],
    ['runs', ...at],
    ['fsck', run, ...at],
    ['metrics', run, ...at],
    ['events', run, ...at],
    ['checkpoints', run, ...at],
    ['rollouts', run, '--step', '1', ...at],
    ['gc', run, ...at],
    ['advise', run, ...at],
    ['export', 'rollouts', run, '--jsonl', 'rollouts.jsonl', ...at],
    ['logs', run, 'train', '--outputs', theirs],
    ['eval', 'show', path.join(theirs, run)],
    ['eval', 'compare', path.join(theirs, run), path.join(theirs, run)],
    ['eval', 'checkpoints', run, ...at, '--dry-run'],
    ['list', theirs],
    ['fork', theirs],
    ['model', 'export', run, '--merged', 'merged', ...at],
  ];
  await tryAll(options, stage, { sound, changes: changesOfRun(path.join(sound, run)), looks, looksAtOnce: 3 });
}

function changesOfRun(sound: string): Change[] {
  const changes: Change[] = [];
  const plantedAt = (key: string, kinds = Object.keys(plants)): void => {
    for (const kind of kinds) {
      const make = (folder: string): void => plants[kind]!(path.join(folder, run, key), secretOf(folder));
      changes.push({ what: `${key} ${kind}`, names: namesOf(key), make });
    }
  };
  for (const { keys } of kindsIn(sound)) plantedAt(keys[0]!);
  const links = ['is a link to a folder of ours', 'is a link to a file of ours', 'is a FIFO', 'is empty'];
  const folders = readdirSync(sound, { recursive: true, withFileTypes: true }).filter((entry) => entry.isDirectory());
  for (const entry of folders) plantedAt(path.relative(sound, path.join(entry.parentPath, entry.name)), links);
  for (const log of ['metrics.jsonl', 'events.jsonl', 'logs/attempt_1/train.log'])
    for (const part of ['999999'.padStart(15, '0'), '0'.repeat(15), '-1', '\u001b[2J\u202e', 'x'.repeat(200)])
      plantedAt(`${log}.tail/${part}`);
  for (const name of oddNames)
    for (const folder of ['', 'lineages', 'weights', 'evals', 'logs', 'checkpoints', 'rollouts'])
      for (const isFolder of [false, true])
        changes.push({
          what: `${folder}/${JSON.stringify(name)} is ${isFolder ? 'a folder' : 'a file'} more`,
          names: [],
          make(place) {
            const file = path.join(place, run, folder, name);
            mkdirSync(path.dirname(file), { recursive: true });
            if (isFolder) mkdirSync(file);
            else writeFileSync(file, '{}');
          },
        });
  return changes;
}

/** Results of evaluations: ours, and those that verifiers and prime write. */
export async function tryResults(options: Options): Promise<void> {
  const stage = stageIn(options.folder);
  const sound = path.join(options.folder, 'sound');
  const data = fileURLToPath(new URL('../test/data/evals', import.meta.url));
  const unpacked = path.join(options.folder, 'unpacked');
  mkdirSync(unpacked, { recursive: true });
  unpack(unpacked, 'nov-26-level-0-between');
  const ours = path.join(unpacked, run, 'evals', `reverse-text--${run}`);
  const forms = {
    'ours--words/abcd1234': path.join(ours, readdirSync(ours).sort()[0]!),
    'toy_single--org--words-1b/d44fc336': path.join(data, 'verifiers-0.3.1/toy_single--org--words-1b/d44fc336'),
    'toy_tool--org--words-1b/e39b9c72': path.join(data, 'verifiers-0.3.1/toy_tool--org--words-1b/e39b9c72'),
    'toy_v1--org--words-1b--null--2b414ca7': path.join(data, 'verifiers-0.4.0/toy_v1--org--words-1b--null--2b414ca7'),
  };
  for (const [name, from] of Object.entries(forms)) cpSync(from, path.join(sound, name), { recursive: true });
  const good = path.join(stage.here, 'good');
  cpSync(path.join(sound, 'toy_single--org--words-1b'), path.join(good, 'toy_single--org--words-1b'), {
    recursive: true,
  });
  const changes: Change[] = [];
  const files = readdirSync(sound, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
  for (const entry of files) {
    const key = path.relative(sound, path.join(entry.parentPath, entry.name));
    if (!/(?:results|traces)\.jsonl$|metadata\.json$|eval\.json$/.test(key)) continue;
    const names = [...namesOf(key), key.split('/')[0]!];
    for (const kind of Object.keys(plants))
      changes.push({
        what: `${key} ${kind}`,
        names,
        make: (folder) => plants[kind]!(path.join(folder, key), secretOf(folder)),
      });
    for (const [damage, harm] of Object.entries(damages))
      // Those that draw have more to say.
      for (let i = 0; i < (/a key|flipped|cut/.test(damage) ? 6 : 1); i++)
        changes.push({
          what: `${key} ${damage}${i === 0 ? '' : ` (${i + 1})`}`,
          names,
          make: (folder) => harm(path.join(folder, key), options.random),
        });
  }
  const { theirs } = stage;
  const looks: readonly (readonly string[])[] = [
    ['eval', 'show', theirs],
    ['eval', 'show', theirs, '--json'],
    ['eval', 'compare', path.join(good, 'toy_single--org--words-1b/d44fc336'), theirs],
    ['list', theirs],
    ['report', theirs],
  ];
  await tryAll(options, stage, { sound, changes, looks, looksAtOnce: 2 });
}

function secretOf(theirs: string): string {
  return path.join(path.dirname(theirs), 'ours', 'secret');
}

function namesOf(key: string): string[] {
  return [path.basename(key), ...key.split('/').slice(0, -1), 'step', 'commit', run, 'theirs'];
}

async function tryAll(
  { folder, count, random, run: answered, tell }: Options,
  stage: Stage,
  of: {
    readonly sound: string;
    readonly changes: readonly Change[];
    readonly looks: readonly (readonly string[])[];
    readonly looksAtOnce: number;
  },
): Promise<void> {
  const { sound, changes, looks, looksAtOnce } = of;
  const wanted = Math.min(changes.length, Math.ceil(count / looksAtOnce));
  let turn = Math.floor(random() * looks.length);
  for (let i = 0; i < wanted; i++) {
    const { what, names, make } = changes[Math.floor((i * changes.length) / wanted)]!;
    rmSync(stage.theirs, { recursive: true, force: true });
    cpSync(sound, stage.theirs, { recursive: true });
    make(stage.theirs);
    const before = contentOf(stage.theirs);
    for (let n = 0; n < looksAtOnce; n++) {
      const args = looks[turn++ % looks.length]!;
      rmSync(stage.here, { recursive: true, force: true });
      mkdirSync(stage.here);
      if (existsSync(path.join(folder, 'good')))
        cpSync(path.join(folder, 'good'), path.join(stage.here, 'good'), { recursive: true });
      forgetReads(stage);
      const outcome = await answered(stage.here, args);
      const shown = args.filter((arg) => !arg.startsWith('/') && arg !== '--store').join(' ');
      const found = faultIn(outcome, names) ?? harmIn(stage, before, outcome);
      tell({ what: `${shown}: ${what}`, outcome, found });
    }
  }
}

/** Harm found: something printed, copied or written that should not have been. */
function harmIn(stage: Stage, before: ReadonlyMap<string, string>, outcome: Outcome): Judged['found'] {
  const { here, theirs, secret } = stage;
  const silent = (why: string): Judged['found'] => ({ fault: 'silent', why });
  const read = readOf(stage);
  if (read !== null) return silent(`it reads what a link leads to: ${read} of ours`);
  if (outcome?.text.includes(canary)) return silent('it tells what a link leads to');
  for (const [file, content] of contentOf(here))
    if (content.includes(canary)) return silent(`it copies what a link leads to into ${path.relative(here, file)}`);
  const ours = readdirSync(path.dirname(secret));
  if (ours.length !== 1 || readFileSync(secret, 'utf8') !== secretText)
    return silent('it writes beside what a link leads to');
  const now = contentOf(theirs);
  const changed = [...new Set([...before.keys(), ...now.keys()])].filter((file) => before.get(file) !== now.get(file));
  // The first look through the rollouts builds their index.
  const others = changed.filter((file) => !/^words\/index($|\/)/.test(path.relative(theirs, file)));
  return others.length === 0 ? null : silent(`it changes ${path.relative(theirs, others[0]!)} in the folder`);
}

const contentBytesMax = 4 * 2 ** 20;

function contentOf(folder: string): Map<string, string> {
  const found = new Map<string, string>();
  for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
    const file = path.join(entry.parentPath, entry.name);
    if (entry.isSymbolicLink()) found.set(file, `-> ${readlinkSync(file)}`);
    else if (!entry.isFile()) found.set(file, entry.isDirectory() ? 'folder' : 'special');
    else {
      const { size, mode } = lstatSync(file);
      found.set(
        file,
        size > contentBytesMax ? `${size} bytes` : (mode & 0o400) === 0 ? 'closed' : readFileSync(file, 'latin1'),
      );
    }
  }
  return found;
}
