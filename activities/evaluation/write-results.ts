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
import type { RolloutRow } from '../../core/rl/rollout.ts';
import { environments as allEnvironments, type Environments } from '../../backends/environments/index.ts';
import type { Environment } from '../../backends/environments/types.ts';
import { showStoreUri } from '../../backends/store/index.ts';
import { decodeJson, encodeJson, encodeRows } from '../../backends/store/objects.ts';
import { withHeartbeat } from '../heartbeat.ts';
import { storeOf } from '../run-access.ts';
import { evaluationKeys, isWhole, type ScoredExample, scoredExamples, storedEvaluation } from './evaluation-store.ts';

/** All scored examples, in the evaluation's order. */
async function allScored(handle: EvaluationHandle): Promise<ScoredExample[]> {
  const store = storeOf(handle.place);
  const scored: ScoredExample[] = [];
  for (let chunk = 0; chunk < handle.chunks; chunk++) {
    scored.push(...(await scoredExamples(store, handle, chunk)).values());
  }
  return scored.sort((a, b) => a.group - b.group);
}

/** `results.jsonl` anew, from what lies in the store: in order, each rollout once. */
export async function writeResults(handle: EvaluationHandle): Promise<ScoredExample[]> {
  const store = storeOf(handle.place);
  const scored = await allScored(handle);
  const key = evaluationKeys.results(handle.place);
  await store.removeAll(`${key}.tail/`); // of a store whose logs do not grow: lines that are in it now
  await store.put(key, encodeRows(scored.flatMap(({ rows }) => rows)));
  return scored;
}

/** `metadata.json` over all scored examples, or over what the tally sums. */
export async function writeMetadata(
  handle: EvaluationHandle,
  of: {
    readonly environment: Environment;
    readonly seconds: number;
    readonly tally?: EvaluationTally;
  },
): Promise<void> {
  const { place, examples, rolloutsPerExample } = handle;
  const { input } = await storedEvaluation(handle);
  const { environment, seconds } = of;
  const tally =
    of.tally ??
    tallyOf(
      (await allScored(handle)).map(({ rows }) => rows),
      rolloutsPerExample,
    );
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

export interface ProgressInput {
  readonly handle: EvaluationHandle;
  /** Of the chunks that are finished. */
  readonly tally: EvaluationTally;
  readonly seconds: number;
}

/** Figures so far, for whoever looks into the folder meanwhile. */
export const createNoteProgress =
  ({ environments = allEnvironments }: { readonly environments?: Environments }) =>
  async ({ handle, tally, seconds }: ProgressInput): Promise<void> => {
    const { input } = await storedEvaluation(handle);
    await writeMetadata(handle, { environment: await environments.open(input.environment), tally, seconds });
  };

export interface CloseEvaluationInput {
  readonly handle: EvaluationHandle;
  /** Rollouts that attempts before this one had finished. */
  readonly adopted: number;
  readonly seconds: number;
}

/** Brings results and metadata into their final form. Whoever closes an attempt first decides what came of it. */
export const createCloseEvaluation =
  ({ environments = allEnvironments }: { readonly environments?: Environments }) =>
  async (closing: CloseEvaluationInput): Promise<EvaluationResult> =>
    withHeartbeat(async () => {
      const { handle, adopted, seconds } = closing;
      const { place, attempt, rolloutsPerExample } = handle;
      const store = storeOf(place);
      const key = evaluationKeys.summary(place, attempt);
      const { input } = await storedEvaluation(handle);
      const environment = await environments.open(input.environment);
      const scored = await writeResults(handle);
      const tally =
        scored.length === 0
          ? emptyTally
          : tallyOf(
              scored.map(({ rows }) => rows),
              rolloutsPerExample,
            );
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
        says: sayingIn(scored, rolloutsPerExample),
      };
      const { bytes } = await store.putIfAbsent(key, encodeJson(result));
      return decodeJson<EvaluationResult>(bytes, key);
    });

/** Of history nothing more is asked than a look at it. */
const sayingCharsMax = 400;

function sayingIn(scored: readonly ScoredExample[], rolloutsPerExample: number): EvaluationSaying | null {
  const example = scored.find((one) => isWhole(one, rolloutsPerExample)) ?? scored[0];
  const row = example?.rows.find(({ reward }) => typeof reward === 'number') ?? example?.rows[0];
  if (row === undefined) return null;
  return {
    exampleId: Number(row['example_id'] ?? 0),
    prompt: lastContent(row['prompt']),
    completion: lastContent(row['completion']),
    answer: typeof row['answer'] === 'string' ? row['answer'].slice(0, sayingCharsMax) : '',
    reward: typeof row['reward'] === 'number' ? row['reward'] : null,
  };
}

function lastContent(said: RolloutRow[string] | undefined): string {
  const last: unknown = Array.isArray(said) ? said.at(-1) : said;
  const content = typeof last === 'object' && last !== null && 'content' in last ? last.content : last;
  return typeof content === 'string' ? content.slice(0, sayingCharsMax) : '';
}
