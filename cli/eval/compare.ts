import { Command } from '@commander-js/extra-typings';
import { RatchetError } from '../../core/errors.ts';
import { type Comparison, compareEvaluations, type ExampleDifference } from '../../core/eval/comparison.ts';
import { differentSettings } from '../../core/eval/result-metadata.ts';
import type { FoundEvaluation } from '../../runs/evaluations/evaluation.ts';
import { onOneLine } from '../output/plain-text.ts';
import { readCount } from '../typed/read-count.ts';
import { storeOption } from '../typed/store-option.ts';
import {
  aligned,
  change,
  counted,
  figure,
  passText,
  passesIn,
  placeOf,
  rewardsText,
  settingText,
  titleOf,
} from './figures.ts';
import { leftOutText, verdict } from './compare-words.ts';
import { namedEvaluations } from './find.ts';
import { readEvaluation, type ReadEvaluation } from './read.ts';
import { told } from './show.ts';
import { print, printJson } from '../output/print.ts';

export const compareCommand = new Command('compare')
  .description(
    'evaluations side by side: settings that differ, summaries, and example by example what changed, with its 95 % interval',
  )
  .argument(
    '<a>',
    "a folder (verifiers' own, too), ENV--MODEL or an id of `ratchet eval list`, or a version of a run: my-run, my-run@20",
  )
  .argument('<b...>', 'what is compared with it')
  .option('--env <name>', 'of this environment alone')
  .option('--examples <n>', 'how many of the most better and of the most worse', '5')
  .option('--seed <n>', 'of the interval: resampled examples', '0')
  .option('--json', 'as one JSON object')
  .option(...storeOption)
  .action(async (a, others, options) => {
    const examples = readCount('--examples', options.examples);
    const seed = readSeed(options.seed);
    const found = [];
    for (const name of [a, ...others])
      found.push({ name, evaluations: inOwnSampling(await namedEvaluations(name, options)) });
    const compared = [];
    for (const set of byEnvironment(found)) compared.push(await compare(set, seed));
    if (options.json) printJson({ seed, environments: compared.map(toldComparison) }, 2);
    else print(compared.map((one) => describeComparison(one, examples).join('\n')).join('\n\n'));
  });

function readSeed(text: string): number {
  if (/^\d{1,9}$/.test(text)) return Number(text);
  throw new RatchetError('ConfigInvalid', `--seed: expected a whole number from 0, got ${JSON.stringify(text)}.`);
}

/** Prefers `[eval]`'s own sampling for a version that was also evaluated greedily. */
function inOwnSampling(evaluations: readonly FoundEvaluation[]): FoundEvaluation[] {
  return evaluations.filter(
    ({ step, id, environment }) =>
      !evaluations.some(
        (other) => other.step === step && other.environment === environment && id.startsWith(`${other.id}.`),
      ),
  );
}

interface Named {
  readonly name: string;
  readonly evaluations: readonly FoundEvaluation[];
}

/**
 * One evaluation per name for each environment that all have. Throws when a name has several for one environment, or no
 * environment is common to all.
 */
function byEnvironment(named: readonly Named[]): FoundEvaluation[][] {
  for (const { name, evaluations } of named) {
    const several = evaluations.filter((one) => evaluations.some((other) => other !== one && isSame(other, one)));
    if (several.length === 0) continue;
    const list = several.slice(0, 8).map(({ where }) => `\n  ${where}`);
    throw new RatchetError(
      'ConfigInvalid',
      `${name} holds ${several.length} evaluations of ${several[0]!.environment}. Expected one to compare; name it:${list.join('')}${several.length > 8 ? '\n  …' : ''}`,
    );
  }
  const sets = named[0]!.evaluations.map((one) =>
    named.map(({ evaluations }) => evaluations.find((other) => isSame(other, one))),
  );
  const whole = sets.filter((set): set is FoundEvaluation[] => set.every((one) => one !== undefined));
  if (whole.length > 0) return whole;
  const single = named.map(({ evaluations }) => evaluations[0]!);
  // Users may name one environment differently: the prompts show whether the evaluations compare.
  if (named.every(({ evaluations }) => evaluations.length === 1)) return [single];
  const had = named.map(({ name, evaluations }) => `${name}: ${evaluations.map((one) => one.environment).join(', ')}`);
  throw new RatchetError('ConfigInvalid', `Nothing to compare: they have no environment in common. ${had.join('; ')}.`);
}

function isSame(a: FoundEvaluation, b: FoundEvaluation): boolean {
  return a.environment === b.environment;
}

interface Compared {
  /** The first is the baseline of the others. */
  readonly all: readonly ReadEvaluation[];
  /** Each further evaluation compared with the first. */
  readonly comparisons: readonly Comparison[];
}

async function compare(found: readonly FoundEvaluation[], seed: number): Promise<Compared> {
  const all: ReadEvaluation[] = [];
  for (const one of found) all.push(await readEvaluation(one));
  const [first, ...others] = all;
  return { all, comparisons: others.map(({ file }) => compareEvaluations(first!.file.rows, file.rows, { seed })) };
}

/** `--json`: one of these for each environment. */
function toldComparison({ all, comparisons }: Compared) {
  const evaluations = all.map(told);
  const settings = differentSettings(all.map(({ found }) => found.metadata));
  return { evaluations, settings, comparisons: comparisons.map((one, i) => ({ a: 0, b: i + 1, ...one })) };
}

/** A, B, C, … */
function letter(i: number): string {
  return String.fromCodePoint(65 + i);
}

function describeComparison({ all, comparisons }: Compared, examples: number): string[] {
  const settings = differentSettings(all.map(({ found }) => found.metadata));
  return [
    ...all.map(({ found }, i) => `${letter(i)}  ${titleOf(found)}   ${placeOf(found)}`),
    '',
    ...(settings.length === 0
      ? ['settings are the same']
      : ['settings that differ', ...indented(settingRows(settings, all.length))]),
    '',
    ...indented(summaryRows(all)),
    ...comparisons.flatMap((one, i) => ['', ...differenceLines(one, letter(i + 1), examples)]),
  ];
}

function settingRows(settings: ReturnType<typeof differentSettings>, count: number): string[] {
  const head = ['', ...Array.from({ length: count }, (_, i) => letter(i))];
  return aligned([head, ...settings.map(({ name, values }) => [onOneLine(name), ...values.map(settingText)])]);
}

function summaryRows(all: readonly ReadEvaluation[]): string[] {
  const metrics = [...new Set(all.flatMap(({ figures }) => Object.keys(figures.metrics)))];
  const row = (name: string, of: (one: ReadEvaluation) => string): string[] => [onOneLine(name), ...all.map(of)];
  const rows = [
    ['', ...all.map((_, i) => letter(i))],
    row('examples', ({ figures }) => String(figures.examples)),
    row('rollouts', ({ figures }) => String(figures.rollouts)),
    row('failed', ({ figures }) => String(figures.failures.reduce((sum, { count }) => sum + count, 0))),
    row('reward', ({ figures }) => figure(figures.reward?.mean)),
    ...metrics.map((name) => row(name, ({ figures }) => figure(figures.metrics[name]?.mean))),
    row('pass@k', ({ found, figures }) => passText(passesIn(found.metadata, figures).passAtK) || '–'),
    row('output tokens', ({ figures }) => figure(figures.usage.output?.mean)),
  ];
  return aligned(rows);
}

function differenceLines(
  { difference, means, better, same, worse, leftOut, examples }: Comparison,
  b: string,
  shown: number,
): string[] {
  const out = leftOutText(leftOut, b);
  if (difference === null || means === null) {
    return [`${b} and A have no example in common that both answered: nothing is compared.`, ...indented(out)];
  }
  const gained = examples.filter((one) => one.difference > 0).slice(0, shown);
  const lost = examples
    .filter((one) => one.difference < 0)
    .slice(-shown)
    .reverse();
  return [
    `${b} against A: ${change(difference.mean)} reward per example (${figure(means[0])} → ${figure(means[1])}), 95 % between ${change(difference.low)} and ${change(difference.high)}`,
    ...indented([
      `${counted(examples.length, 'example')}: ${better} better, ${same} the same, ${worse} worse; ${verdict(difference)}`,
      ...out,
    ]),
    ...(gained.length === 0 ? [] : ['', `  most better`, ...indented(exampleRows(gained, b), 4)]),
    ...(lost.length === 0 ? [] : ['', `  most worse`, ...indented(exampleRows(lost, b), 4)]),
  ];
}

function exampleRows(examples: readonly ExampleDifference[], b: string): string[] {
  const rows = examples.map(({ exampleId, difference, rewards }) => [
    `#${onOneLine(exampleId)}`,
    change(difference),
    rewardsText(rewards[0]),
    rewardsText(rewards[1]),
  ]);
  const lines = aligned([['', '', 'A', b], ...rows]);
  return [lines[0]!, ...examples.map(({ promptStart }, i) => `${lines[i + 1]!}  ${onOneLine(promptStart)}`)];
}

function indented(lines: readonly string[], by = 2): string[] {
  return lines.map((line) => `${' '.repeat(by)}${line}`.trimEnd());
}
