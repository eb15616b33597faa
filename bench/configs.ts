import { execFile } from 'node:child_process';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { dialectNamed } from '../config/dialects/index.ts';
import { parseRunConfig } from '../config/parse-run-config.ts';
import {
  configsFolder,
  letters,
  randomFrom,
  runFiles,
  spoiled,
  typoMissed,
  typosOf,
} from '../test/config/run-files.ts';
import { measurement, type Bench, type Figures } from './measurement.ts';
import { median, round } from './statistics.ts';

/**
 * Whether run files that people have load, what becomes of spoiled ones, and how long `ratchet check` takes.
 *
 * - `files`, `refused`, goal 0: run files of test/data/configs, and those that do not load.
 * - `typo_cases`, `typo_missed`, goal 0: every key of the documents' samples with every one of its characters deleted, swapped,
 *   replaced or inserted; missed is what is accepted, or refused without a suggestion of the right key. A misspelling that is
 *   another key does not count.
 * - `fuzz_cases`, `fuzz_crashes`, goal 0: files with lines, values and headers thrown about, and those that end in anything but
 *   a spec or a list of problems.
 * - `check_ms`, goal < 300: of `ratchet check FILE` as one types it, the median, less that of a Node that does nothing; the
 *   slower of a run file of ours and one of Hosted Training.
 */
export const configs = measurement(
  'configs',
  'whether run files that people have are read, and misspelt ones refused',
  measure,
)
  .option('--fuzz-cases <n>', 'how many spoiled files', Number, 100_000)
  .option('--seed <n>', 'what is done to them', Number, 1)
  .option('--times <n>', 'how often `ratchet check` is timed', Number, 11)
  .addHelpText('after', '\nGoals: refused, typo_missed and fuzz_crashes 0; check_ms < 300.');

interface Options {
  readonly fuzzCases: number;
  readonly seed: number;
  readonly times: number;
}

const missedShownMax = 20;
const program = fileURLToPath(new URL('../cli/ratchet.mjs', import.meta.url));
const checked = [
  fileURLToPath(new URL('../configs/rl/reverse-text.toml', import.meta.url)),
  path.join(configsFolder, 'seeds/hosted-alphabet-sort.toml'),
];

async function measure(bench: Bench, { fuzzCases, seed, times }: Options): Promise<Figures> {
  const seeds = runFiles('seeds');
  const files = [...seeds, ...runFiles('runs')];
  const refused = files.filter(({ name, text }) => !parseRunConfig(text, { file: name }).ok).map(({ name }) => name);
  const typos = misspell(bench, seeds);
  const fuzz = throwAbout(bench, files, { fuzzCases, seed });
  bench.doing('timing ratchet check');
  const node = await repeated(times, ['-e', '0']);
  const checks: Record<string, number> = {};
  for (const file of checked) {
    checks[path.basename(file)] = round(1000 * ((await repeated(times, [program, 'check', file])) - node), 0);
  }
  return {
    files: files.length,
    refused: refused.length,
    typo_cases: typos.cases,
    typo_missed: typos.missed.length,
    fuzz_cases: fuzzCases,
    fuzz_crashes: fuzz.crashes.length,
    check_ms: Math.max(...Object.values(checks)),
    details: {
      refused,
      typo_missed: typos.missed.slice(0, missedShownMax),
      fuzz_accepted: fuzz.accepted,
      fuzz_crashes: fuzz.crashes.slice(0, missedShownMax),
      check_ms: checks,
      node_ms: round(1000 * node, 0),
      parse_ms: typos.parseMs,
    },
  };
}

function misspell(bench: Bench, seeds: ReturnType<typeof runFiles>) {
  const missed: string[] = [];
  let cases = 0;
  const startedAt = performance.now();
  for (const { name, text } of seeds) {
    bench.doing(`misspelling the keys of ${name}`);
    const read = parseRunConfig(text, { file: name });
    if (read.readAs === null) continue;
    const dialect = dialectNamed(read.readAs.dialect);
    for (const typo of typosOf(text, () => letters)) {
      bench.signal.throwIfAborted();
      cases++;
      const wrong = typoMissed(typo, dialect, name);
      if (wrong !== null) missed.push(`${name}: ${typo.path.join('.')} as ${typo.typo}: ${wrong}`);
    }
  }
  return { cases, missed, parseMs: round((performance.now() - startedAt) / cases, 2) };
}

function throwAbout(
  bench: Bench,
  files: ReturnType<typeof runFiles>,
  { fuzzCases, seed }: Pick<Options, 'fuzzCases' | 'seed'>,
) {
  const random = randomFrom(seed);
  const crashes: string[] = [];
  let accepted = 0;
  bench.doing(`spoiling ${fuzzCases} files`);
  for (let i = 0; i < fuzzCases; i++) {
    bench.signal.throwIfAborted();
    const text = spoiled(files[i % files.length]!.text, random);
    try {
      if (parseRunConfig(text, { file: 'spoiled.toml' }).ok) accepted++;
    } catch (error) {
      crashes.push(`${String(error)}\n${text}`);
    }
  }
  return { crashes, accepted };
}

/** Median of the wall times of a process, in seconds. Its output is not looked at. */
async function repeated(times: number, args: readonly string[]): Promise<number> {
  const values: number[] = [];
  for (let i = 0; i < times; i++) {
    const startedAt = performance.now();
    await new Promise((resolve) => execFile(process.execPath, args, resolve));
    values.push((performance.now() - startedAt) / 1000);
  }
  return median(values);
}
