import { bootstrapMean } from '../core/eval/bootstrap.ts';
import { RatchetError } from '../core/errors.ts';
import { firstLineage } from '../core/names.ts';
import type { FoundEvaluation, FoundEvaluations } from '../runs/evaluations/evaluation.ts';
import { findEvaluations } from '../runs/evaluations/folders.ts';
import { ResultFile } from '../runs/evaluations/result-file.ts';
import { runEvaluations } from '../runs/evaluations/run-evaluations.ts';
import { lineagesOf, type RunPlace, storeOf } from '../runs/run-access.ts';
import type { EvaluationAnswer, EvaluationsAnswer } from './answers.ts';

/** Rows that one answer shows. */
const rowsShown = 500;
const textMax = 4_000;
const resamples = 500;

type Listed = EvaluationsAnswer['evaluations'][number];

interface Known {
  readonly file: ResultFile;
  readonly listed: Listed;
}

/** An evaluation with its place. `lineage`: for one of a run. */
type Found = FoundEvaluation & { readonly lineage?: string };

/** Evaluations from their own result files; each file is read once. */
export class Evaluations {
  /** Path of the folder above them, which their ids leave out. */
  readonly #above: string;
  readonly #find: () => Promise<FoundEvaluations<Found>>;
  readonly #known = new Map<string, Promise<Known>>();

  private constructor(above: string, find: () => Promise<FoundEvaluations<Found>>) {
    this.#above = above;
    this.#find = find;
  }

  static ofRun(place: RunPlace): Evaluations {
    const store = storeOf(place);
    return new Evaluations(store.uri, async () => runEvaluations(store, await lineagesOf(place)));
  }

  /** Evaluations in a folder and below it, in the layout of `vf-eval`, `prime eval run` and `ratchet eval run`. */
  static inFolder(folder: string): Evaluations {
    return new Evaluations('', () => findEvaluations(folder, folder));
  }

  async list(): Promise<EvaluationsAnswer> {
    const { evaluations, incomplete } = await this.#find();
    const listed: Listed[] = [];
    for (const one of evaluations) listed.push((await this.#open(one)).listed);
    return {
      evaluations: listed.sort(
        (a, b) => a.environment.localeCompare(b.environment) || a.step - b.step || a.name.localeCompare(b.name),
      ),
      incomplete: incomplete.map(({ where, why }) => `${where}: ${why}`),
    };
  }

  async rows(id: string): Promise<EvaluationAnswer> {
    const known = await this.#known.get(id);
    if (!known) throw new RatchetError('RunNotFound', `There is no evaluation ${JSON.stringify(id)} here.`);
    const { file } = known;
    const shown = Math.min(rowsShown, file.rows.length);
    const rows: EvaluationAnswer['rows'][number][] = [];
    for (let i = 0; i < shown; i++) {
      const row = await file.row(i);
      if (!row) continue; // the file has been replaced meanwhile
      rows.push({
        exampleId: row.exampleId,
        reward: row.reward,
        error: row.error && `${row.error.cause}: ${row.error.message}`.slice(0, textMax),
        asked: (row.prompt.findLast(({ role }) => role === 'user')?.text ?? '').slice(0, textMax),
        said: row.completion
          .map(({ text }) => text)
          .join('\n')
          .slice(0, textMax),
        answer: row.answer?.slice(0, textMax) ?? null,
      });
    }
    return { rows, leftOut: file.rows.length - shown };
  }

  #open(one: Found): Promise<Known> {
    const id = one.where.slice(this.#above.length);
    const known = this.#known.get(id) ?? read(one, id);
    this.#known.set(id, known);
    known.catch(() => this.#known.delete(id));
    return known;
  }
}

async function read(one: Found, id: string): Promise<Known> {
  const file = await new ResultFile(await one.rows(), one.metadata.rolloutsPerExample).read();
  const byExample = new Map<string, number[]>();
  for (const { exampleId, reward } of file.rows)
    if (reward !== null) byExample.set(exampleId, [...(byExample.get(exampleId) ?? []), reward]);
  const means = [...byExample.values()].map((rewards) => rewards.reduce((a, b) => a + b) / rewards.length);
  const found = means.length === 0 ? null : bootstrapMean(means, { key: [id], resamples });
  return {
    file,
    listed: {
      id,
      environment: one.environment,
      name: one.lineage === undefined ? `${one.model}, ${one.id}` : one.id,
      lineage: one.lineage ?? firstLineage,
      step: one.step ?? 0,
      rows: file.rows.length,
      mean: found?.mean ?? null,
      interval: found && [found.low, found.high],
      failed: file.rows.filter(({ error }) => error !== null).length,
      truncated: file.rows.filter(({ isTruncated }) => isTruncated).length,
    },
  };
}
