import { once } from 'node:events';
import path from 'node:path';
import { Command } from 'commander';
import { RatchetError } from '../../core/errors.ts';
import { committedSteps, currentLineage, type RunPlace, stretchesOf } from '../../runs/run-access.ts';
import { type RolloutTableRow, type TableFormat, tableRow, writeTable } from '../../backends/rollouts/table.ts';
import { outputFile } from '../output-file.ts';
import { print, writeText } from '../print.ts';
import { lineageOfStep, scoredGroups } from '../run-records.ts';
import { findRunFolder } from '../run-place.ts';
import { storeOption } from '../store-option.ts';

interface ExportOptions {
  readonly parquet?: string;
  readonly jsonl?: string;
  readonly steps?: string;
  readonly store?: string;
}

const rollouts = new Command('rollouts')
  .description(
    'every rollout that was sampled to train, a row each, for notebooks: prompt, completion, reward and its parts, step, group, version',
  )
  .argument('<run>')
  .option('--parquet <file>', 'as Parquet: messages and parts of the reward are JSON in a column')
  .option('--jsonl <file>', 'as a JSON object a line; - writes them to stdout')
  .option('--steps <a-b>', 'of these steps alone: 12, or 10-20')
  .option(...storeOption)
  .addHelpText(
    'after',
    `
Read them:  pandas.read_parquet("rollouts.parquet")   or   pandas.read_json("rollouts.jsonl", lines=True)
As verifiers and prime-rl write evaluations, for their viewers:  ratchet rollouts RUN --export FOLDER`,
  )
  .action(async (run: string, options: ExportOptions) => {
    const { file, format } = await target(options);
    const place = await findRunFolder(run, options.store);
    const asked = options.steps === undefined ? null : readSteps(options.steps);
    const steps = (await stepsOf(place)).filter((step) => asked === null || (step >= asked.from && step <= asked.to));
    if (steps.length === 0) {
      const of = asked === null ? '' : ` of the steps ${options.steps}`;
      throw new RatchetError('RunNotFound', `Nothing is committed${of} in ${place.name}: there is nothing to export.`);
    }
    if (file === '-') {
      for await (const rows of tableOf(place, steps)) {
        writeText(rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
        if (process.stdout.writableNeedDrain) await once(process.stdout, 'drain');
      }
      return;
    }
    const rows = await writeTable(file, format, tableOf(place, steps));
    print(`${rows} rollouts of steps ${steps[0]}–${steps.at(-1)} are in ${path.relative(process.cwd(), file) || file}`);
  });

export const exportCommand = new Command('export')
  .description('what a run has stored, for other programs')
  .addCommand(rollouts);

/** All that was sampled for these steps, a step at a time. */
export async function* tableOf(place: RunPlace, steps: readonly number[]): AsyncGenerator<RolloutTableRow[]> {
  for (const step of steps) {
    const groups = await scoredGroups(place, step);
    if (groups.length === 0) continue;
    const of = { run: place.name, lineage: await lineageOfStep(place, step), step };
    yield groups.flatMap((group) => group.rollouts.map((rollout) => tableRow(of, group, rollout)));
  }
}

async function target({ parquet, jsonl }: ExportOptions): Promise<{ file: string; format: TableFormat }> {
  const file = parquet ?? jsonl;
  if (file === undefined || (parquet !== undefined && jsonl !== undefined)) {
    const got = file === undefined ? 'neither' : 'both';
    throw new RatchetError('ConfigInvalid', `expected --parquet FILE or --jsonl FILE, got ${got}.`);
  }
  const format = parquet === undefined ? 'jsonl' : 'parquet';
  if (file === '-' && format === 'jsonl') return { file, format };
  if (file === '-')
    throw new RatchetError(
      'ConfigInvalid',
      '--parquet: expected a file, got "-": Parquet is not written to a pipe. --jsonl - is.',
    );
  return { file: await outputFile(`--${format}`, file), format };
}

/** Of all lineages that led to where the run stands, ascending. Nothing is sampled for step 0. */
async function stepsOf(place: RunPlace): Promise<number[]> {
  const current = { ...place, lineage: await currentLineage(place) };
  const steps = new Set<number>();
  for (const { lineage, upTo } of await stretchesOf(current)) {
    for (const step of await committedSteps({ ...place, lineage })) if (step > 0 && step <= upTo) steps.add(step);
  }
  return [...steps].sort((a, b) => a - b);
}

function readSteps(text: string): { readonly from: number; readonly to: number } {
  const [, from, to = from] = /^(\d+)(?:-(\d+))?$/.exec(text.trim()) ?? [];
  const range = { from: Number(from), to: Number(to) };
  if (from !== undefined && range.from <= range.to) return range;
  throw new RatchetError(
    'ConfigInvalid',
    `--steps: expected a step such as 12, or steps such as 10-20; got ${JSON.stringify(text)}.`,
  );
}
