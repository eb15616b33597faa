import { stat } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import type { EvaluationFigures } from '../../core/eval/summary.ts';
import { summarize } from '../../core/eval/summary.ts';
import type { FoundEvaluation } from '../../runs/evaluations/evaluation.ts';
import { ResultFile } from '../../runs/evaluations/result-file.ts';

/** An evaluation with its rows. */
export interface ReadEvaluation {
  readonly found: FoundEvaluation;
  readonly file: ResultFile;
  readonly figures: EvaluationFigures;
}

/** Throws without rows, since it would show nothing. */
export async function readEvaluation(found: FoundEvaluation): Promise<ReadEvaluation> {
  const name = await found.rows();
  const file = await new ResultFile(name, found.metadata.rolloutsPerExample).read();
  if (file.withoutExample > 0) {
    throw new RatchetError(
      'ConfigInvalid',
      `${found.where}: ${file.withoutExample} of ${file.rows.length} rows in ${path.basename(name)} have neither example_id nor id nor a prompt, so nobody can tell which rollouts are of one example. Write one of them into each row: {"example_id": 0, …}.`,
    );
  }
  if (file.rows.length > 0) return { found, file, figures: summarize(file.rows, found.metadata.passThreshold) };
  const { size } = await stat(name);
  const holds = size === 0 ? 'it is empty' : `it holds ${file.unreadable} lines that are no rows`;
  throw new RatchetError(
    'ConfigInvalid',
    `${found.where}: expected rows in ${name.split('/').at(-1)!}; ${holds}. An evaluation writes them as its groups end.`,
  );
}
