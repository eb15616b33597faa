import { bootstrapMean } from '../core/eval/bootstrap.ts';
import { RatchetError } from '../core/errors.ts';
import { ResultFile } from '../runs/evaluations/result-file.ts';
import { type RunEvaluation, runEvaluations } from '../runs/evaluations/run-evaluations.ts';
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

/** The evaluations of a run, from their own result files; a file that was read is not read again. */
export class Evaluations {
  readonly #place: RunPlace;
  readonly #known = new Map<string, Promise<Known>>();

  constructor(place: RunPlace) {
    this.#place = place;
  }

  async list(): Promise<EvaluationsAnswer> {
    const { evaluations, incomplete } = await runEvaluations(storeOf(this.#place), await lineagesOf(this.#place));
    const listed: Listed[] = [];
    for (const one of evaluations) listed.push((await this.#open(one)).listed);
    return {
      evaluations: listed.sort((a, b) => a.environment.localeCompare(b.environment) || a.step - b.step),
      incomplete: incomplete.map(({ where, why }) => `${where}: ${why}`),
    };
  }

  async rows(id: string): Promise<EvaluationAnswer> {
    const known = await this.#known.get(id);
    if (!known) throw new RatchetError('RunNotFound', `There is no evaluation ${JSON.stringify(id)} of this run.`);
    const { file } = known;
    const shown = Math.min(rowsShown, file.rows.length);
    const rows: EvaluationAnswer['rows'][number][] = [];
    for (let i = 0; i < shown; i++) {
      const row = await file.row(i);
      if (!row) continue; // the file is another one by now
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

  #open(one: RunEvaluation): Promise<Known> {
    const id = one.where.slice(storeOf(this.#place).uri.length);
    const known = this.#known.get(id) ?? read(one, id);
    this.#known.set(id, known);
    known.catch(() => this.#known.delete(id));
    return known;
  }
}

async function read(one: RunEvaluation, id: string): Promise<Known> {
  const file = await new ResultFile(await one.rows()).read();
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
      name: one.id,
      lineage: one.lineage,
      step: one.step,
      rows: file.rows.length,
      mean: found?.mean ?? null,
      interval: found && [found.low, found.high],
      failed: file.rows.filter(({ error }) => error !== null).length,
      truncated: file.rows.filter(({ isTruncated }) => isTruncated).length,
    },
  };
}
