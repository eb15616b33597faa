import { Command } from '@commander-js/extra-typings';
import { average } from '../../core/gepa/fronts.ts';
import { candidateTree } from '../../core/gepa/results.ts';
import { unifiedDiff } from '../../core/gepa/text-diff.ts';
import { frontsByExample } from '../../runs/searches/search-results.ts';
import { onOneLine, withoutControls } from '../output/plain-text.ts';
import { findSearchFolder, readSearchFolder, type SearchFolder } from './search-folder.ts';
import { RatchetError } from '../../core/errors.ts';
import { print, printJson, writeText } from '../output/print.ts';

export const showCommand = new Command('show')
  .description(
    'what a search found: the candidates and who came from whom, their fronts, how the best differs from the start',
  )
  .argument(
    '<search>',
    "outputs/gepa/ENV--MODEL/ID, its id, an environment's newest, a run's newest branch or its workflow; verifiers' own folders, too",
  )
  .option('--candidate <n>', 'how this one differs from the start, in place of the best')
  .option('--prompt', 'the prompt alone')
  .option('--json', 'as one JSON object')
  .action(async (name, options) => {
    const found = await readSearchFolder(await findSearchFolder(name, process.cwd()));
    if (found === null)
      throw new RatchetError('ConfigInvalid', `${name}: results.jsonl there has no candidates of a search.`);
    const candidate = chosen(options.candidate, found);
    if (options.prompt === true) writeText(`${found.candidates[candidate]!.prompt}\n`);
    else if (options.json === true) printJson({ ...found, fronts: frontsByExample(found) }, 2);
    else print(describeSearch(found, candidate));
  });

function chosen(written: string | undefined, { best, candidates }: SearchFolder): number {
  if (written === undefined) return best;
  const candidate = /^\d+$/.test(written) ? Number(written) : -1;
  if (candidate in candidates) return candidate;
  throw new RatchetError(
    'ConfigInvalid',
    `--candidate: expected a number from 0 to ${candidates.length - 1}, got ${written}.`,
  );
}

/** Tree, fronts, and how one candidate differs from the start. */
export function describeSearch(found: SearchFolder, candidate = found.best): string {
  const { candidates, best, calls, maxCalls, comparison, trial, environment, model, reflectionModel, stopReason } =
    found;
  const [start] = candidates;
  const scored = candidates[best]!.scores.filter((score) => score !== null);
  const beside = start!.scores.filter((score, i) => score !== null && candidates[best]!.scores[i] !== null);
  const budget = calls === null ? [] : [`calls ${calls}${maxCalls === null ? '' : ` of ${maxCalls}`}`];
  const ended = stopReason === null ? [] : [`ended by ${stopReason}`];
  const { prompt } = candidates[candidate]!;
  const diff = unifiedDiff(start!.prompt, prompt, { from: 'start', to: `candidate ${candidate}` });
  const front = frontsByExample(found).map(({ candidate: at, examples }) => {
    const list = examples.length > 12 ? `${examples.slice(0, 12).join(' ')} …` : examples.join(' ');
    return `  ${String(at).padStart(3)}  best at ${examples.length}: ${list}`;
  });
  return [
    onOneLine(`${environment} · ${model} · reflected on by ${reflectionModel}`),
    [
      ...(best === 0
        ? [
            `best: the start, no other prompt scored clearly above it: ${figure(average(scored))} on ${scored.length} examples`,
          ]
        : [
            `best candidate ${best}: ${figure(average(scored))} on ${scored.length} examples`,
            `the start ${figure(average(beside))}${beside.length < scored.length ? ` on ${beside.length} of them` : ''}`,
          ]),
      ...budget,
      ...ended,
    ].join('  '),
    ...(comparison === null
      ? []
      : [
          `on ${comparison.examples} further examples: the start ${figure(comparison.before)}, the best ${figure(comparison.after)}`,
        ]),
    ...(trial === null
      ? []
      : [
          `played once more on ${trial.version} and ${trial.examples} examples that nobody had seen: the prompt in use ${figure(trial.before)}, the best ${figure(trial.after)}`,
        ]),
    '',
    'candidates',
    ...candidateTree(candidates, best).map(({ line }) => `  ${line}`),
    '',
    'fronts, by validation example',
    ...front,
    '',
    diff === '' ? `candidate ${candidate} is the start's text` : withoutControlsInLines(diff.trimEnd()),
  ].join('\n');
}

function figure(value: number | null): string {
  return value === null || !Number.isFinite(value) ? '–' : value.toFixed(3);
}

function withoutControlsInLines(text: string): string {
  return text.split('\n').map(withoutControls).join('\n');
}
