import { cutEvaluation, positionsOf } from '../../core/eval/chunks.ts';
import type { EvaluationInput } from '../../core/eval/evaluation.ts';
import { exampleOrder } from '../../core/eval/example-order.ts';
import { differencesFromMetadata, goodRowsByExample, rolloutOfRow } from '../../core/eval/verifiers-results.ts';
import type { Rollout, RolloutRow } from '../../core/rl/rollout/rollout.ts';
import type { JsonValue } from '../../core/json-value.ts';
import type { Store } from '../../store/index.ts';
import { decodeJson, rowOfOthers } from '../../store/objects.ts';
import { encodeStoredRows } from '../forms/stored-forms.ts';
import { evaluationKeys, type ScoredExample } from './evaluation-store.ts';

/** Our own attempts count from 1. */
const theirAttempt = 0;

/** Request to an opened environment. */
interface OpenedEnvironment {
  readonly evalDataset: { readonly length: number };
  /** Whether its rewards compare the rollouts of an example. */
  readonly isComparing?: boolean;
  /** Sampling settings of its own. */
  readonly sampling?: Readonly<Record<string, JsonValue>>;
}

/** Whether vf-eval was here, and we were not; what of its evaluation differs from ours, or null where nothing of it lies there. */
export async function differencesFromTheirs(
  store: Store,
  input: EvaluationInput,
  { sampling = {} }: Pick<OpenedEnvironment, 'sampling'>,
  examples: number,
): Promise<string[] | null> {
  const key = evaluationKeys.metadata(input.results);
  const metadata = await store.read(key);
  const results = await store.read(evaluationKeys.results(input.results));
  if (!metadata || !results) return null;
  return differencesFromMetadata(decodeJson<RolloutRow>(metadata, key), input, examples, sampling);
}

/**
 * Adopts vf-eval's finished work: whole examples unchanged; from others the good rollouts, unless rewards compare an
 * example's rollouts, which are then sampled again. Leaves out failed rows, torn lines and rows beyond the number of
 * rollouts.
 */
export async function adoptTheirs(
  store: Store,
  input: EvaluationInput,
  environment: OpenedEnvironment,
  cut: { readonly chunkExamples: number; readonly examples: number },
): Promise<void> {
  const { results, rolloutsPerExample, maxConcurrent, shuffleSeed } = input;
  const bytes = (await store.read(evaluationKeys.results(results))) ?? Buffer.of();
  const byExample = goodRowsByExample(Buffer.from(bytes).toString('utf8'), rowOfOthers);
  const exampleAt = exampleOrder(environment.evalDataset.length, shuffleSeed);
  const { chunks } = cutEvaluation({ ...cut, rolloutsPerExample, maxConcurrent });
  for (let chunk = 0; chunk < chunks; chunk++) {
    const { from, to } = positionsOf(chunk, cut);
    const whole: ScoredExample[] = [];
    const parts: Rollout[] = [];
    for (let group = from; group < to; group++) {
      const exampleId = exampleAt(group);
      const rows = (byExample.get(exampleId) ?? []).slice(0, rolloutsPerExample);
      if (rows.length === rolloutsPerExample) whole.push({ group, rows });
      else if (environment.isComparing !== true)
        parts.push(...rows.map((row, index) => rolloutOfRow(row, { group, index, exampleId })));
    }
    const put = async (key: string, rows: readonly object[]) => {
      if (rows.length > 0) await store.putIfAbsent(key, encodeStoredRows(key, rows));
    };
    await put(`${evaluationKeys.ofAttempt(results, chunk, theirAttempt)}rows_1.jsonl`, whole);
    await put(`${evaluationKeys.chunk(results, chunk)}part_1.jsonl`, parts);
  }
}
