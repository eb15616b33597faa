import { mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { parseRunConfig } from '../config/parse-run-config.ts';
import { anyEnvironment, compared, type Difference, isOneLine } from '../test/config/home/compare.ts';
import { type HomeFile, homeFiles, verifiersFiles } from '../test/config/home/files.ts';
import { openStage } from '../test/config/home/play.ts';
import { runFiles } from '../test/config/run-files.ts';
import { type Bench, type Figures, measurement } from './measurement.ts';

/**
 * Compares the meaning of a run file here with its meaning at home. Home's values are those that its own config code
 * gave (test/data/prime-rl); the
 * files are read as `ratchet check` reads them, with environments stood in for by their names.
 *
 * - `files`: run files of prime-rl (its releases and its history) and of the documents that start a training.
 * - `loaded`, `refused_in_one_line`: what becomes of them. Refused is: every reason is one line that says what was expected.
 *   `files` less both, goal 0, are read as something else, or end in an error.
 * - `played`, with `--play`: files of prime-rl's releases that train, which made one step here, with a tiny model and an environment that
 *   stands in for theirs; `played_of` such files that load.
 * - `silent_differences`, goal 0: values of the normalized run that are others at home, and that no line of `ratchet check` names.
 * - `details.newest_home`: the newest state of prime-rl whose own code was asked, by its commit and date. Later changes of prime-rl are
 *   tested by test/config/prime-rl-ages.test.ts and test/engine/prime-rl-losses.test.ts.
 */
export const fidelity = measurement(
  'fidelity',
  'whether a run file of another system means here what it means there',
  measure,
)
  .option('--show', 'print each difference and each refusal')
  .option(
    '--play [environment]',
    'play a step of each file of a release that trains, with this environment in place of its own',
  )
  .addHelpText('after', '\nGoals: files = loaded + refused_in_one_line; silent_differences 0.');

interface Options {
  readonly show?: boolean;
  readonly play?: boolean | string;
}

const shownMax = 20;

async function measure(bench: Bench, { show = false, play = false }: Options): Promise<Figures> {
  const home = [...homeFiles(), ...verifiersFiles()];
  const documents = [...runFiles('seeds'), ...runFiles('runs')];
  bench.doing(`reading ${home.length + documents.length} run files`);
  const figures = { loaded: 0, refused: 0, named: 0 };
  const silent: string[] = [];
  const notOneLine: string[] = [];
  for (const file of home) {
    bench.signal.throwIfAborted();
    const comparison = compared(file);
    if (comparison.kind === 'refused') {
      const { problems } = comparison;
      if (problems.every(isOneLine)) figures.refused++;
      else notOneLine.push(nameOf(file));
      if (show) for (const { path, expected } of problems) bench.say(`${nameOf(file)}: refused, ${path}: ${expected}`);
      continue;
    }
    figures.loaded++;
    for (const difference of comparison.differences) {
      if (difference.line === null) silent.push(`${nameOf(file)}: ${shown(difference)}`);
      else figures.named++;
      if (show) bench.say(`${nameOf(file)}: ${shown(difference)} (${difference.line ?? 'silent'})`);
    }
  }
  for (const { name, text } of documents) {
    const run = parseRunConfig(text, { file: name, findEnvironment: anyEnvironment });
    if (run.ok) figures.loaded++;
    else if (run.problems.every(isOneLine)) figures.refused++;
    else notOneLine.push(name);
  }
  const plays = play === false ? null : await playAll(bench, home, play === true ? 'reverse-text' : play);
  return {
    files: home.length + documents.length,
    loaded: figures.loaded,
    refused_in_one_line: figures.refused,
    silent_differences: silent.length,
    ...(plays === null ? {} : { played: plays.played, played_of: plays.of }),
    details: {
      newest_home: newestOf(home),
      ...(plays === null ? {} : { not_played: plays.failed }),
      named_differences: figures.named,
      silent: silent.slice(0, shownMax),
      not_one_line: notOneLine.slice(0, shownMax),
    },
  };
}

/** The newest commit, with its date. */
function newestOf(files: readonly HomeFile[]): string {
  const { commit, date } = files.reduce((newest, file) => (file.date > newest.date ? file : newest));
  return `${commit.slice(0, 9)} of ${date.slice(0, 10)}`;
}

/** Runs one step of each file of a release that trains and loads. */
async function playAll(
  bench: Bench,
  home: readonly HomeFile[],
  environment: string,
): Promise<{ readonly played: number; readonly of: number; readonly failed: readonly string[] }> {
  const training = home.filter((file) => file.release !== undefined && file.entry === 'rl');
  const loaded = training.flatMap((file) => {
    const comparison = compared(file);
    return comparison.kind === 'loaded' ? [{ file, spec: comparison.run.spec }] : [];
  });
  const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-fidelity-'));
  const stage = await openStage(folder, environment);
  const failed: string[] = [];
  try {
    for (const [i, { file, spec }] of loaded.entries()) {
      bench.signal.throwIfAborted();
      bench.doing(`playing ${i + 1} of ${loaded.length}: ${nameOf(file)}`);
      await stage.play(spec).catch((error: unknown) => failed.push(`${nameOf(file)}: ${String(error)}`));
    }
  } finally {
    await stage.close();
    await rm(folder, { recursive: true, force: true });
  }
  return { played: loaded.length - failed.length, of: loaded.length, failed };
}

function nameOf({ path, release, commit, date }: HomeFile): string {
  return `${path} (${release ?? `${date} ${commit.slice(0, 9)}`})`;
}

function shown({ what, home, here }: Difference): string {
  return `${what}: ${JSON.stringify(home)} at home, ${JSON.stringify(here)} here`;
}
