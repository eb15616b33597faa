import { Command } from '@commander-js/extra-typings';
import type { FoundEvaluation } from '../../runs/evaluations/evaluation.ts';
import { inColumns } from '../output/in-columns.ts';
import { onOneLine } from '../output/plain-text.ts';
import { print, printAside, printJson } from '../output/print.ts';
import { readCount } from '../typed/read-count.ts';
import { storeOption } from '../typed/store-option.ts';
import { figure, placeOf } from './figures.ts';
import { allEvaluations } from './find.ts';

export const listCommand = new Command('list')
  .description('evaluations that lie here, the newest first, by the names that show and compare take')
  .argument('[path|run]', 'a folder, or a run; without one, ./outputs and environments/*/outputs')
  .option('--env <name>', 'of this environment alone')
  .option('-n, --limit <n>', 'how many', '20')
  .option('--json', 'a JSON array, one object for each evaluation')
  .option(...storeOption)
  .action(async (name, options) => {
    const limit = readCount('--limit', options.limit);
    const found = await allEvaluations(name, options);
    const asked = newestFirst(found.evaluations).filter(
      ({ of, environment }) => of === 'evaluation' && (options.env === undefined || environment === options.env),
    );
    const listed = asked.slice(0, limit);
    if (options.json) return printJson(listed.map(told), 2);
    for (const { where, why } of found.incomplete) printAside(`${where} is left out: it has ${why}`);
    if (listed.length === 0) return print('no evaluation here yet; npx ratchet-rl eval run makes one');
    const head = ['environment', 'model', 'reward', 'examples', 'id or step', 'where'];
    print(inColumns([head, ...listed.map(row)]).join('\n'));
    if (listed.length < asked.length) print(`${asked.length - listed.length} more: --limit ${asked.length}`);
  });

/** A run's evaluations come by step, oldest first; others newest first. */
export function newestFirst(found: readonly FoundEvaluation[]): FoundEvaluation[] {
  const isOfRun = (one: FoundEvaluation): boolean => 'lineage' in one;
  return [...found.filter((one) => !isOfRun(one)), ...found.filter(isOfRun).toReversed()];
}

function told({ environment, model, id, step, where, metadata }: FoundEvaluation) {
  const { avgReward, numExamples, rolloutsPerExample } = metadata;
  return { environment, model, id, step, where, avgReward, numExamples, rolloutsPerExample };
}

function row(found: FoundEvaluation): string[] {
  const { environment, model, id, step, metadata } = found;
  const { avgReward, numExamples, rolloutsPerExample } = metadata;
  const size = numExamples === null ? '–' : `${numExamples} × ${rolloutsPerExample ?? '–'}`;
  const name = step === null ? id : `v${step}${id.endsWith('.greedy') ? ' greedy' : ''}`;
  return [environment, model, figure(avgReward), size, name, placeOf(found)].map(onOneLine);
}
