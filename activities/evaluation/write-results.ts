import { inTemporaryFolder } from '../../host/temporary-folder.ts';
import { appendFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { averageMetrics, averageReward, averageUsage, costOf, emptyTally, tallyOf } from '../../core/eval/tally.ts';
import type {
  EvaluationHandle,
  EvaluationResult,
  EvaluationSaying,
  EvaluationTally,
} from '../../core/eval/evaluation.ts';
import { evaluationMetadata } from '../../core/eval/metadata.ts';
import { passFigures } from '../../core/eval/pass-at-k.ts';
import { describeFailures } from '../../core/rl/failures.ts';
import type { RolloutRow } from '../../core/rl/rollout/rollout.ts';
import type { Environments } from '../../backends/environments/index.ts';
import type { Environment } from '../../backends/environments/types.ts';
import { environmentsOfEvaluation } from '../../play/environment-users.ts';
import { showStoreUri } from '../../store/index.ts';
import { encodeJson, encodeRows } from '../../store/objects.ts';
import { decodeStored, encodeStored } from '../../runs/forms/stored-forms.ts';
import { withHeartbeat } from '../around/heartbeat.ts';
import { storeOf } from '../../runs/run-access.ts';
import {
  evaluationKeys,
  isWhole,
  type ScoredExample,
  scoredExamples,
  storedEvaluation,
} from '../../runs/evaluations/evaluation-store.ts';

/** Results over all scored examples. */
interface WrittenResults {
  readonly tally: EvaluationTally;
  readonly says: EvaluationSaying | null;
}

/**
 * Rewrites `results.jsonl` from the store: in order, each rollout once. Works chunk by chunk, as all rows may not fit
 * into memory.
 */
export async function writeResults(handle: EvaluationHandle): Promise<WrittenResults> {
  const store = storeOf(handle.place);
  const key = evaluationKeys.results(handle.place);
  return inTemporaryFolder('results', async (folder) => {
    const file = path.join(folder, 'results.jsonl');
    await writeFile(file, '');
    let tally = emptyTally;
    let sample: ScoredExample | undefined;
    for (let chunk = 0; chunk < handle.chunks; chunk++) {
      const found = await scoredExamples(store, handle, chunk);
      const scored = [...found.values()].toSorted((a, b) => a.group - b.group);
      for (const { rows } of scored) await appendFile(file, encodeRows(rows));
      tally = tallyOf(
        scored.map(({ rows }) => rows),
        handle.rolloutsPerExample,
        tally,
      );
      const isSettled = sample !== undefined && isWhole(sample, handle.rolloutsPerExample);
      if (!isSettled) sample = scored.find((one) => isWhole(one, handle.rolloutsPerExample)) ?? sample ?? scored[0];
    }
    await store.removeAll(`${key}.tail/`); // parts of a store that cannot append; their lines are in the file now
    await store.putFile(key, file);
    return { tally: tally.rollouts === 0 ? emptyTally : tally, says: sampleOf(sample) };
  });
}

/** Writes `metadata.json` for the tally. */
export async function writeMetadata(
  handle: EvaluationHandle,
  {
    environment,
    tally,
    seconds,
  }: { readonly environment: Environment; readonly tally: EvaluationTally; readonly seconds: number },
): Promise<void> {
  const { place, examples } = handle;
  const { input } = await storedEvaluation(handle);
  const metadata = evaluationMetadata({
    input,
    examples,
    tally,
    seconds,
    tools: environment.tools ?? null,
    environmentSampling: environment.sampling,
  });
  await storeOf(place).put(evaluationKeys.metadata(place), encodeJson(metadata));
}

interface ProgressInput {
  readonly handle: EvaluationHandle;
  /** Tally of the finished chunks. */
  readonly tally: EvaluationTally;
  readonly seconds: number;
}

/** Writes figures so far, for people who look into the folder. */
export const createNoteProgress =
  ({ environments }: { readonly environments?: Environments }) =>
  async ({ handle, tally, seconds }: ProgressInput): Promise<void> => {
    const { input } = await storedEvaluation(handle);
    const environment = await environmentsOfEvaluation(environments, handle).open(input.environment);
    await writeMetadata(handle, { environment, tally, seconds });
  };

interface CloseEvaluationInput {
  readonly handle: EvaluationHandle;
  /** Rollouts that attempts before this one had finished. */
  readonly adopted: number;
  readonly seconds: number;
}

/** Writes the final results and metadata. Idempotent: the first close of an attempt wins. */
export const createCloseEvaluation =
  ({ environments }: { readonly environments?: Environments }) =>
  async (closing: CloseEvaluationInput): Promise<EvaluationResult> =>
    withHeartbeat(async () => {
      const { handle, adopted, seconds } = closing;
      const { place, attempt, rolloutsPerExample } = handle;
      const store = storeOf(place);
      const key = evaluationKeys.summary(place, attempt);
      const { input } = await storedEvaluation(handle);
      const environment = await environmentsOfEvaluation(environments, handle).open(input.environment);
      const { tally, says } = await writeResults(handle);
      await writeMetadata(handle, { environment, seconds, tally });
      const { atK, allK } = passFigures(rolloutsPerExample, tally.examplesByRight);
      const cost = costOf(tally, input.prices);
      const rewarded = tally.rollouts - tally.failed;
      const result: EvaluationResult = {
        environment: handle.environment,
        model: handle.model,
        id: place.name,
        place,
        folder: `${showStoreUri(store.uri)}${place.prefix}`.replace(/\/$/, ''),
        examples: handle.examples,
        rollouts: tally.rollouts,
        rolloutsPerExample,
        failed: tally.failed,
        avgReward: averageReward(tally),
        avgMetrics: averageMetrics(tally),
        truncatedShare: rewarded === 0 ? null : tally.truncated / rewarded,
        passAtK: atK,
        passAllK: allK,
        failures: describeFailures(tally.causes),
        usage: averageUsage(tally),
        cost: cost === null ? null : cost.input + cost.output,
        attempt,
        sampled: tally.rollouts - adopted,
        adopted,
        seconds,
        says,
      };
      const { bytes } = await store.putIfAbsent(key, encodeStored(key, result));
      return decodeStored<EvaluationResult>(bytes, key);
    });

/** Truncated: history keeps a preview only. */
const sampleCharsMax = 400;

function sampleOf(example: ScoredExample | undefined): EvaluationSaying | null {
  const row = example?.rows.find(({ reward }) => typeof reward === 'number') ?? example?.rows[0];
  if (row === undefined) return null;
  return {
    exampleId: Number(row['example_id'] ?? 0),
    prompt: lastContent(row['prompt']),
    completion: lastContent(row['completion']),
    answer: typeof row['answer'] === 'string' ? row['answer'].slice(0, sampleCharsMax) : '',
    reward: typeof row['reward'] === 'number' ? row['reward'] : null,
  };
}

function lastContent(said: RolloutRow[string] | undefined): string {
  const last: unknown = Array.isArray(said) ? said.at(-1) : said;
  const content = typeof last === 'object' && last !== null && 'content' in last ? last.content : last;
  return typeof content === 'string' ? content.slice(0, sampleCharsMax) : '';
}
