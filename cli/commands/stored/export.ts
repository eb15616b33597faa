import { once } from 'node:events';
import path from 'node:path';
import { Command } from '@commander-js/extra-typings';
import { RatchetError } from '../../../core/errors.ts';
import {
  committedSteps,
  currentLineage,
  type LineagePlace,
  type RunPlace,
  stretchesOf,
} from '../../../runs/run-access.ts';
import { endsOfStep, type GroupEnd, trainedAdvantages } from '../../../runs/rollouts/trained-advantages.ts';
import { type RolloutTableRow, type TableFormat, tableRow, writeTable } from '../../../play/table.ts';
import { exportArchive } from './export-archive.ts';
import { outputFile } from '../../typed/output-file.ts';
import { print, writeText } from '../../output/print.ts';
import { lineageOfStep, scoredGroups } from '../../../runs/run-records.ts';
import { findRunFolder } from '../../stored/run-place.ts';
import { storeOption } from '../../typed/store-option.ts';

interface ExportOptions {
  readonly parquet?: string;
  readonly jsonl?: string;
  readonly steps?: string;
  readonly store?: string;
}

const rollouts = new Command('rollouts')
  .description(
    'every rollout that was sampled to train, a row each, for notebooks: prompt, completion, reward and its parts, advantage, how its group ended, step, group, version',
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
  .action(async (run, options) => {
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
  .description('what a run has stored: all of it as one archive, or its rollouts as a table')
  .addCommand(exportArchive, { isDefault: true })
  .addCommand(rollouts);

/** All rollouts sampled for these steps, step by step. */
export async function* tableOf(place: RunPlace, steps: readonly number[]): AsyncGenerator<RolloutTableRow[]> {
  const ends = new GroupEnds(place);
  for (const step of steps) {
    const groups = await scoredGroups(place, step);
    if (groups.length === 0) continue;
    const of = { run: place.name, lineage: await lineageOfStep(place, step), step };
    const rows: RolloutTableRow[] = [];
    for (const group of groups) {
      const { end, advantages } = await ends.of(group.ordinal, step);
      const became = { end: end?.end ?? null, end_step: end?.step ?? null };
      for (const rollout of group.rollouts) {
        const advantage = rollout.reward === null ? null : (advantages?.get(rollout.index) ?? null);
        rows.push(tableRow(of, group, rollout, { ...became, advantage }));
      }
    }
    yield rows;
  }
}

/** Batches whose advantages are cached: groups of one step end with it or with one of the next. */
const batchesHeld = 4;

/** Looks up how groups ended, from the commits of the steps that led to the run's position. */
class GroupEnds {
  readonly #place: RunPlace;
  readonly #ends = new Map<number, GroupEnd>();
  readonly #batches = new Map<number, ReturnType<typeof trainedAdvantages>>();
  #readUpTo = 0;
  #steps: readonly number[] | null = null;

  constructor(place: RunPlace) {
    this.#place = place;
  }

  /** `step`: the one that the group was sampled for. */
  async of(
    ordinal: number,
    step: number,
  ): Promise<{ readonly end: GroupEnd | null; readonly advantages: ReadonlyMap<number, number> | null }> {
    this.#steps ??= await stepsOf(this.#place);
    for (const next of this.#steps) {
      if (next >= step && this.#ends.has(ordinal)) break;
      if (next <= this.#readUpTo) continue;
      this.#readUpTo = next;
      for (const [group, end] of await endsOfStep(await this.#at(next), next)) this.#ends.set(group, end);
    }
    const end = this.#ends.get(ordinal) ?? null;
    if (end?.end !== 'trained') return { end, advantages: null };
    const trained = await this.#batch(end.step);
    return { end, advantages: typeof trained === 'string' ? null : (trained.get(ordinal)?.advantages ?? null) };
  }

  #batch(step: number): ReturnType<typeof trainedAdvantages> {
    const batch = this.#batches.get(step) ?? this.#at(step).then((place) => trainedAdvantages(place, step));
    this.#batches.set(step, batch);
    if (this.#batches.size > batchesHeld) this.#batches.delete(this.#batches.keys().next().value!);
    return batch;
  }

  async #at(step: number): Promise<LineagePlace> {
    return { ...this.#place, lineage: await lineageOfStep(this.#place, step) };
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

/** Ascending steps of all lineages that led to the run's position. Step 0 has no rollouts. */
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
