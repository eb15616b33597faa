import { execFile, execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { appendFileSync, copyFileSync, cpSync, mkdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { CliProcess, type Outcome } from '../test/bad-input/cli-process.ts';
import { commandLines, mustBeRefusedLine } from '../test/bad-input/command-lines.ts';
import { damages, kindsIn, type Random } from '../test/bad-input/damages.ts';
import { type Fault, faultIn } from '../test/bad-input/judge.ts';
import { type BadCase, casesOf, type PartName, partNames } from '../test/bad-input/part.ts';
import { badRunFiles, besides, isImporting, mustBeRefused } from '../test/bad-input/run-file-cases.ts';
import { wantedOf } from '../test/bad-input/workflow-cases.ts';
import { randomFrom } from '../test/config/run-files.ts';
import { configText } from '../test/activities/runs.ts';
import { trySent } from './bad-input-sent.ts';
import { tryFolders, tryResults } from './bad-input-strangers.ts';
import { goOn, type GoneOn, type ResumeCase } from './bad-input-resumes.ts';
import { measurement, type Bench, type Figures } from './measurement.ts';
import { furnishRun, runFile, trainRun } from './bad-input-run.ts';
import { withProject } from './run-project.ts';

/**
 * Effects of bad input: command lines, run files, inputs of workflows, answers of servers, templates, folders of
 * strangers, and runs of whose objects one is damaged, read by every command that reads, and resumed. Each is answered clearly (what was expected, what came, where, what to do; another exit code than 0 where it is refused), or does no harm.
 *
 * - `tried`: cases.
 * - `unclear`, goal 0: refusals that say nothing, too much, not where, or in Node's words; what steers the terminal.
 * - `traces`, goal 0: stack traces, and processes that died.
 * - `hangs`, goal 0: commands that did not end, and runs that neither ended, nor paused, nor failed.
 * - `silent`, goal 0: damage that changes what a run learns, or that an audit with --weights, or fsck, calls sound; what is known to be wrong, and is answered with exit code 0.
 *
 * Workflow inputs and messages, answers of servers, and chat templates are given to what reads them. Folders of strangers, with links, FIFOs and
 * damaged files in them, are read by commands that only look: nothing outside a folder may be printed, copied or written.
 *
 * Commands are done in one process, one after the other, as the program does them; a sample is done by the program itself.
 */
const allParts = ['lines', 'files', 'objects', 'resumes', ...partNames, 'folders', 'results'] as const;

export const badInput = measurement(
  'bad-input',
  'what bad input does: command lines, files, inputs, answers, damaged runs',
  measure,
)
  .option('--seed <n>', 'which', Number, 1)
  .option('--lines <n>', 'command lines', Number, 400)
  .option('--files <n>', 'run files', Number, 400)
  .option('--resumes <n>', 'damaged runs that are continued', Number, 80)
  .option('--folders <n>', "commands that read a stranger's run", Number, 300)
  .option('--results <n>', "commands that read a stranger's results", Number, 300)
  .option('--only <parts>', `of ${allParts.join(', ')} these, with commas; without it all`)
  .option(
    '--kinds <pattern>',
    'of the objects those whose name, numbers as N and digests as #, has this in it: a regular expression',
  )
  .option('--answers <file>', 'write each case and its answer there, a line of JSON each: to be read by a person')
  .addHelpText('after', '\nGoals: unclear, traces, hangs and silent 0.');

interface Options {
  readonly seed: number;
  readonly folders: number;
  readonly results: number;
  readonly lines: number;
  readonly files: number;
  readonly resumes: number;
  readonly only?: string;
  readonly kinds?: string;
  readonly answers?: string;
}

const program = fileURLToPath(new URL('../cli/ratchet.mjs', import.meta.url));
const run = 'words';
/** How long a command may take: far above what any of them takes undisturbed, for a busy machine. */
const boundMs = 15_000;
const patientMs = 120_000;
/** One in so many is typed to the program itself. */
const sampledOneIn = 25;
const shownMax = 60;

const reading: readonly (readonly string[])[] = [
  ['status', run],
  ['metrics', run],
  ['metrics', run, '--json'],
  ['checkpoints', run],
  ['audit', run],
  ['audit', run, '--weights'],
  ['rollouts', run],
  ['advise', run],
  ['logs', run],
  ['eval', 'show', `outputs/${run}`],
  ['chat', run, '--max-tokens', '2'],
  ['rollouts', run, '--json'],
  ['fsck', run],
  ['gc', run],
  ['runs'],
  ['events', run],
  ['gepa', 'show', run],
];

/** Readers tried for one damage: the proofs always, and this many of the others, in rotation. */
const othersAtOnce = 4;

function commandsFor(random: Random): readonly (readonly string[])[] {
  const proofs = reading.filter(([name, , flag]) => name === 'fsck' || flag === '--weights');
  const others = reading.filter((one) => !proofs.includes(one));
  const from = Math.floor(random() * others.length);
  return [...proofs, ...Array.from({ length: othersAtOnce }, (_, i) => others[(from + i) % others.length]!)];
}

/**
 * Files of a sealed checkpoint or a kept version, with its record: an audit that reads the weights must not call them
 * sound. A warm-up's files count as neither once the first step is committed.
 */
const audited = /^(?:lineages\/[^/]+\/(?:steps|checkpoints|weights)|checkpoints(?!\/warm_up)|weights)\//;
/** Damage that leaves an object unchanged, or that is reported elsewhere. */
const harmless = new Set(['is a link to elsewhere']);

class Tally {
  tried = 0;
  readonly faults: { readonly fault: Fault; readonly what: string; readonly why: string }[] = [];
  readonly #answers: string | undefined;

  constructor(answers: string | undefined) {
    this.#answers = answers;
    if (answers !== undefined) writeFileSync(answers, '');
  }

  add(what: string, found: { fault: Fault; why: string } | null, answer: unknown): void {
    this.tried++;
    if (found) this.faults.push({ what, ...found });
    if (this.#answers !== undefined)
      appendFileSync(this.#answers, `${JSON.stringify({ what, fault: found?.fault ?? null, answer })}\n`);
  }

  count(fault: Fault): number {
    return this.faults.filter((one) => one.fault === fault).length;
  }
}

async function measure(bench: Bench, options: Options): Promise<Figures> {
  const { seed, only } = options;
  const tally = new Tally(options.answers && path.resolve(options.answers));
  const random = randomFrom(seed);
  await withProject(bench, async (folder) => {
    const cli = new CliProcess();
    try {
      furnish(folder);
      const chosen: readonly string[] = only?.split(',') ?? allParts;
      const unknown = chosen.filter((part) => !allParts.some((one) => one === part));
      if (unknown.length > 0) throw new Error(`--only ${unknown.join(',')}: expected some of ${allParts.join(', ')}`);
      const wants = (part: (typeof allParts)[number]): boolean => chosen.includes(part);
      if (wants('lines') || wants('objects') || wants('resumes')) {
        bench.doing('training a run of three steps');
        await trainRun(bench, folder, run);
      }
      if (wants('lines')) await tryLines(bench, { cli, folder, tally, random, count: options.lines });
      if (wants('files')) await tryFiles(bench, { cli, folder, tally, random, count: options.files });
      if (wants('objects'))
        await tryObjects(bench, { cli, folder, tally, seed, kinds: new RegExp(options.kinds ?? '') });
      for (const part of partNames) if (wants(part)) await tryPart(bench, { tally, seed, part });
      if (wants('workflows')) {
        bench.doing(`${sentToServer} inputs through a Temporal server`);
        await trySent(sentToServer, randomFrom(seed), ({ sample, what, mustRefuse, names }, outcome) =>
          note(
            bench,
            tally,
            `sent ${sample.name}: ${what}`,
            faultIn(outcome, names, mustRefuse, wantedOf(sample)),
            outcome,
          ),
        );
      }
      if (wants('folders')) await tryStrangers(bench, { cli, folder, tally, random }, 'folders', options.folders);
      if (wants('results')) await tryStrangers(bench, { cli, folder, tally, random }, 'results', options.results);
      if (wants('resumes')) {
        const cases = resumeCases(path.join(folder, 'outputs', run), options.resumes, random);
        for (const one of await goOn(bench, { folder, run, runFile: runFile(5), cases, random }))
          tally.add(one.what, faultOfResume(one), one);
      }
    } finally {
      cli.stop();
    }
  });
  const counts = (['unclear', 'traces', 'hangs', 'silent'] as const).map((fault) => [fault, tally.count(fault)]);
  return { tried: tally.tried, ...Object.fromEntries(counts), details: { faults: tally.faults.slice(0, shownMax) } };
}

/** Creates the files that command lines and run files name. */
function furnish(folder: string): void {
  furnishRun(folder);
  for (const name of ['fifo.toml', 'fifo.ts', 'fifo.jsonl']) execFileSync('mkfifo', [path.join(folder, name)]);
  for (const name of ['folder.toml', 'folder.ts']) mkdirSync(path.join(folder, name));
  symlinkSync('loop.toml', path.join(folder, 'loop.toml'));
  writeFileSync(path.join(folder, 'good.toml'), configText);
  for (const [name, text] of Object.entries(besides)) writeFileSync(path.join(folder, name), text);
}

interface Trying {
  readonly cli: CliProcess;
  readonly folder: string;
  readonly tally: Tally;
  readonly random: Random;
}

async function tryLines(
  bench: Bench,
  { cli, folder, tally, random, count }: Trying & { count: number },
): Promise<void> {
  bench.doing(`${count} command lines`);
  let n = 0;
  for (const args of await commandLines(count, random)) {
    bench.signal.throwIfAborted();
    const what = JSON.stringify(args).slice(0, 200);
    const mustRefuse = mustBeRefusedLine(args);
    tell(bench, tally, what, await answered(cli, folder, args), [], mustRefuse);
    if (n++ % sampledOneIn === 0) tell(bench, tally, `program ${what}`, await typed(folder, args), [], mustRefuse);
  }
}

async function tryFiles(
  bench: Bench,
  { cli, folder, tally, random, count }: Trying & { count: number },
): Promise<void> {
  bench.doing(`${count} run files`);
  let n = 0;
  for (const text of badRunFiles(count, random)) {
    bench.signal.throwIfAborted();
    writeFileSync(path.join(folder, 'bad.toml'), text);
    const what = `file ${n} ${JSON.stringify(text.slice(0, 80))}`;
    const args = ['check', 'bad.toml', ...(isImporting(text) ? ['--import'] : [])];
    const names = ['bad.toml', 'environment', 'model'];
    const mustRefuse = mustBeRefused(text);
    tell(bench, tally, what, await answered(cli, folder, args), names, mustRefuse);
    if (n++ % sampledOneIn === 0) tell(bench, tally, `program ${what}`, await typed(folder, args), names, mustRefuse);
  }
}

/** Limited, since each takes a workflow. */
const sentToServer = 40;
/** So many side by side: many wait for a server. */
const casesAtOnce = 3;

async function tryPart(
  bench: Bench,
  { tally, seed, part }: { tally: Tally; seed: number; part: PartName },
): Promise<void> {
  const cases = await casesOf(part, randomFrom(seed));
  bench.doing(`${cases.length} ${part}`);
  const queue = [...cases.entries()];
  const work = async (): Promise<void> => {
    const child = new CliProcess('part-child.ts');
    try {
      for (let next = queue.shift(); next !== undefined; next = queue.shift()) {
        bench.signal.throwIfAborted();
        const [index, one] = next;
        const asked = [part, String(seed), String(index)];
        const outcome =
          (await child.run(tmpdir(), asked, one.boundMs ?? boundMs)) ?? (await child.run(tmpdir(), asked, patientMs));
        note(bench, tally, `${part} ${one.what}`, faultOfCase(one, outcome), outcome);
      }
    } finally {
      child.stop();
    }
  };
  await Promise.all(Array.from({ length: casesAtOnce }, work));
}

function faultOfCase({ names, mustRefuse, wanted }: BadCase, outcome: Outcome): ReturnType<typeof faultIn> {
  return faultIn(outcome, names, mustRefuse, wanted);
}

async function tryStrangers(
  bench: Bench,
  { cli, folder, tally, random }: Trying,
  part: 'folders' | 'results',
  count: number,
): Promise<void> {
  bench.doing(`${count} commands with ${part} of strangers`);
  const child = new CliProcess('part-child.ts');
  const place = path.join(folder, `strangers-${part}`);
  mkdirSync(place);
  try {
    await (part === 'folders' ? tryFolders : tryResults)({
      folder: place,
      count,
      random,
      run(here, args) {
        bench.signal.throwIfAborted();
        return answered(args[0] === 'list' || args[0] === 'fork' ? child : cli, here, args);
      },
      tell: ({ what, found, outcome }) => note(bench, tally, `${part} ${what}`, found, outcome),
    });
  } finally {
    child.stop();
  }
}

async function tryObjects(
  bench: Bench,
  { cli, folder, tally, seed, kinds }: Omit<Trying, 'random'> & { seed: number; kinds: RegExp },
): Promise<void> {
  const place = path.join(folder, 'outputs', run);
  const copy = path.join(folder, 'sound');
  cpSync(place, copy, { recursive: true });
  for (const { kind, keys } of kindsIn(copy)) {
    if (!kinds.test(kind)) continue;
    bench.doing(`damaging ${kind}`);
    // Each kind draws by itself: some of them are damaged as they are among all.
    const random = randomFrom(seed + createHash('sha256').update(kind).digest().readUInt32LE());
    for (const [damage, harm] of Object.entries(damages)) {
      bench.signal.throwIfAborted();
      const key = keys[Math.floor(random() * keys.length)]!;
      const file = path.join(place, key);
      harm(file, random);
      for (const args of commandsFor(random)) {
        const what = `${args.filter((word) => word !== run).join(' ')}: ${key} ${damage}`;
        const outcome = await answered(cli, folder, args);
        const isSilent =
          (args.includes('--weights') || args[0] === 'fsck') &&
          outcome?.code === 0 &&
          audited.test(key) &&
          !harmless.has(damage) &&
          !isAsItWas(file, path.join(copy, key));
        if (isSilent) note(bench, tally, what, { fault: 'silent', why: outcome.text.trim().slice(-200) }, outcome);
        else tell(bench, tally, what, outcome, namesOf(key));
      }
      rmSync(file, { recursive: true, force: true });
      copyFileSync(path.join(copy, key), file);
    }
  }
}

/** A command that times out is tried once more with more time: a busy machine is not a hang. */
async function answered(cli: CliProcess, folder: string, args: readonly string[]): Promise<Outcome> {
  return (await cli.run(folder, args, boundMs)) ?? cli.run(folder, args, patientMs);
}

/** A damage that found nothing to change has done none. */
function isAsItWas(file: string, sound: string): boolean {
  try {
    execFileSync('timeout', ['5', 'cmp', '-s', file, sound]);
    return true;
  } catch {
    return false;
  }
}

/** One of them says where: the file itself, its folder, or the commit by its step; `chat` that came as far as its prompt found no fault with what it read. */
function namesOf(key: string): string[] {
  const step = /^lineages\/.*step_(\d+)/.exec(key)?.[1];
  const commits = step === undefined ? [] : [`step ${step}`, `commit ${step}`, `commit ${Number(step) + 1}`, 'commits'];
  return [path.basename(key), `${path.basename(path.dirname(key))}/`, ...commits, 'no prompt on stdin'];
}

/**
 * Draws cases over the kinds of objects, so that every kind and every damage has its turn, after those that are slow to
 * read.
 */
function resumeCases(folder: string, count: number, random: Random): ResumeCase[] {
  const kinds = kindsIn(folder).filter(({ kind }) => !kind.startsWith('logs/'));
  const names = Object.keys(damages);
  const large = kinds.filter(({ kind }) => /weights\/.*(?:SHANSUMS|tokenizer\.json)$/.test(kind));
  const slow = large.map(({ keys }) => ({ key: keys[0]!, damage: 'is 3 GB' }));
  const drawn = Array.from({ length: count }, (_, i) => {
    const { keys } = kinds[i % kinds.length]!;
    const damage = names[Math.floor(random() * names.length)]!;
    return { key: keys[Math.floor(random() * keys.length)]!, damage };
  });
  return [...slow, ...drawn].slice(0, count);
}

/** Advice to the user on a run that does not continue. */
const advice = /[Rr]estore|[Ss]tart over|\b[Pp]ut (?:it|the)|ratchet [a-z]+ |[Mm]ove it|[Tt]ake it away/;

function faultOfResume(one: GoneOn): { fault: Fault; why: string } | null {
  if (one.end === 'endless') return { fault: 'hangs', why: one.said };
  if (one.end === 'other digest') return { fault: 'silent', why: one.said };
  if (one.end === 'as undisturbed') return null;
  if (!advice.test(one.said)) return { fault: 'unclear', why: `it does not say what to do: ${one.said}` };
  return faultIn({ code: 1, text: one.said, chars: one.said.length }, namesOf(one.key));
}

function tell(
  bench: Bench,
  tally: Tally,
  what: string,
  outcome: Outcome,
  names: readonly string[] = [],
  mustRefuse = false,
): void {
  note(bench, tally, what, faultIn(outcome, names, mustRefuse), outcome);
}

function note(
  bench: Bench,
  tally: Tally,
  what: string,
  found: { fault: Fault; why: string } | null,
  answer: unknown,
): void {
  tally.add(what, found, answer);
  if (found) bench.say(`${found.fault}: ${what}: ${found.why.replaceAll(/\s+/g, ' ').slice(0, 300)}`);
}

/** The same by the program, in a process of its own. */
function typed(folder: string, args: readonly string[]): Promise<Outcome> {
  const env: NodeJS.ProcessEnv = { ...process.env };
  delete env['TEMPORAL_ADDRESS'];
  return new Promise((resolve) => {
    const options = { cwd: folder, env, timeout: boundMs, killSignal: 'SIGKILL', maxBuffer: 64 * 1024 * 1024 } as const;
    const child = execFile(process.execPath, [program, ...args], options, (error, out, err) => {
      const text = out + err;
      if (error?.killed === true) return resolve(null);
      resolve({ code: typeof error?.code === 'number' ? error.code : error ? 1 : 0, text, chars: text.length });
    });
    child.stdin?.end();
  });
}
