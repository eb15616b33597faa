import { cutEvaluation } from '../../core/eval/chunks.ts';
import type { EvaluationHandle, EvaluationInput, StoredEvaluation } from '../../core/eval/evaluation.ts';
import { differencesOf } from '../../core/eval/same-evaluation.ts';
import { RatchetError } from '../../core/errors.ts';
import type { ObjectRef } from '../../core/rl/run-state.ts';
import { environments as allEnvironments, type Environments } from '../../backends/environments/index.ts';
import type { Environment } from '../../backends/environments/types.ts';
import { isPriced, type Prices, pricesAt } from '../../backends/inference/openai/prices.ts';
import { pricesOfEndpoint, pricesOfRun } from '../../play/budget/budgets-around.ts';
import { requireReadable } from '../../play/policy/text-models.ts';
import { requireOwnFolder, showStoreUri, type Store } from '../../store/index.ts';
import { sha256 } from '../../store/file-store.ts';
import { encodeStored } from '../../runs/forms/stored-forms.ts';
import { withHeartbeat } from '../around/heartbeat.ts';
import { specOf, storeOf } from '../../runs/run-access.ts';
import { adoptTheirs, differencesFromTheirs } from '../../runs/evaluations/adopt-results.ts';
import { evaluationKeys, newestAttempt } from '../../runs/evaluations/evaluation-store.ts';
import { writeMetadata, writeResults } from './write-results.ts';

interface OpenEvaluationInput {
  readonly input: EvaluationInput;
  /** Requester, `WORKFLOW_ID/EXECUTION_ID`: a repeated request opens no new attempt. */
  readonly request: string;
}

interface OpenDependencies {
  readonly codeVersion: string;
  readonly countRolloutWorkers: () => Promise<number>;
  readonly environments?: Environments;
  /** Looks up a model's prices at its servers; missing = asks servers that report them. */
  readonly prices?: typeof pricesOf;
}

/**
 * Opens an evaluation, or reopens the one in its folder, which then continues with missing rollouts and those lost to
 * infrastructure. Refuses a different one. Idempotent for each requester.
 */
export const createOpenEvaluation =
  ({
    codeVersion,
    countRolloutWorkers,
    environments = allEnvironments,
    prices: findPrices = pricesOf,
  }: OpenDependencies) =>
  async (asked: OpenEvaluationInput): Promise<EvaluationHandle> =>
    withHeartbeat(async () => {
      const { request } = asked;
      const { prices, warning } = await findPrices(asked.input.model);
      const input = { ...asked.input, ...(prices === null || asked.input.prices ? {} : { prices }) };
      const store = storeOf(input.results);
      if ((await newestAttempt(input.results)) === null) await requireOwnFolder(input.results);
      await requirePrices(input);
      const environment = await environments.open(input.environment);
      const length = Math.max(0, environment.evalDataset.length - (input.skipExamples ?? 0));
      const examples = input.numExamples < 0 ? length : Math.min(input.numExamples, length);
      if (examples === 0) throw nothingToEvaluate(input, length);
      await requireReadable(input.environment.name, environment.evalDataset, input.model);
      const workers = await countRolloutWorkers().catch(() => 1);
      const opening = { input, examples, request, codeVersion, workers };
      const { evaluation, ref } = await openAttempt(store, environment, opening);
      const handle = handleOf(evaluation, { ref, workers }, [
        ...(environment.warnings ?? []).filter((line) => !isOfTraining(line)),
        ...(warning === null ? [] : [warning]),
        ...(input.numExamples > length
          ? [`${input.environment.name} has ${length} held-out examples, not ${input.numExamples}: all are evaluated`]
          : []),
      ]);
      const { tally } = await writeResults(handle);
      await writeMetadata(handle, { environment, tally, seconds: 0 });
      return handle;
    });

/** Money is limited only where it can be counted. */
async function requirePrices(input: EvaluationInput): Promise<void> {
  const { model, budget, environment, prices } = input;
  if ((budget?.money ?? environment.budget?.money ?? null) === null) return;
  const known = model.kind === 'version' ? pricesOfRun(await specOf(model.run)) : pricesOfEndpoint(prices);
  if (known.policy !== null) return;
  const where =
    model.kind === 'version'
      ? `prompt and completion in [cost] of ${model.run.name}`
      : 'prices = { input = …, output = … } in the file, US dollars of a million tokens';
  throw new RatchetError(
    'ConfigInvalid',
    `budget.money: what ${model.model} costs is not known, so money cannot be limited. Write ${where}; 0 where it costs nothing.`,
  );
}

/**
 * `metadata.json` has a cost in the same place as verifiers' has. An evaluation whose prices are unknown continues
 * without.
 */
export async function pricesOf(
  model: EvaluationInput['model'],
): Promise<{ readonly prices: Prices | null; readonly warning: string | null }> {
  if (model.kind !== 'endpoint' || !isPriced(model.servers)) return { prices: null, warning: null };
  try {
    const [server] = model.servers;
    return { prices: await pricesAt(server!, server!.model), warning: null };
  } catch (error) {
    if (!(error instanceof RatchetError)) throw error;
    return { prices: null, warning: `what ${model.model} costs is not known: ${error.message}` };
  }
}

/** The newest attempt if this requester opened it, else the next one. Concurrent requesters get separate attempts. */
async function openAttempt(
  store: Store,
  environment: Environment,
  {
    input,
    examples,
    request,
    codeVersion,
    workers,
  }: Pick<OpenEvaluationInput, 'input' | 'request'> & {
    readonly examples: number;
    readonly codeVersion: string;
    readonly workers: number;
  },
): Promise<{ evaluation: StoredEvaluation; ref: ObjectRef }> {
  for (;;) {
    const before = await newestAttempt(input.results);
    if (before?.evaluation.request === request) return before;
    const theirs = before === null ? await differencesFromTheirs(store, input, environment, examples) : null;
    if (before)
      requireSame(
        store,
        differencesOf(before.evaluation.input, input, { before: before.evaluation.examples, now: examples }),
      );
    else if (theirs !== null) requireSame(store, theirs);
    const { chunkExamples } = cutEvaluation({
      examples,
      rolloutsPerExample: input.rolloutsPerExample,
      maxConcurrent: input.maxConcurrent,
      workers,
      chunkExamples: before?.evaluation.chunkExamples,
    });
    const attempt = (before?.evaluation.attempt ?? 0) + 1;
    const evaluation: StoredEvaluation = {
      schemaVersion: 1,
      input,
      examples,
      chunkExamples,
      attempt,
      request,
      openedAt: new Date().toISOString(),
      codeVersion,
    };
    if (theirs !== null) await adoptTheirs(store, input, environment, { chunkExamples, examples });
    const key = evaluationKeys.attempt(input.results, attempt);
    const { stored, bytes } = await store.putIfAbsent(key, encodeStored(key, evaluation));
    if (stored) return { evaluation, ref: { key, sha256: sha256(bytes), bytes: bytes.byteLength } };
  }
}

function requireSame(store: Store, differences: readonly string[]): void {
  if (differences.length === 0) return;
  throw new RatchetError(
    'ConfigInvalid',
    `The evaluation in ${showStoreUri(store.uri)} cannot continue: ${differences.join('; ')}. Continue with the settings it was begun with, or begin another one (without --resume, or with --fresh).`,
  );
}

function handleOf(
  { input, examples, chunkExamples, attempt }: StoredEvaluation,
  { ref: spec, workers }: { readonly ref: ObjectRef; readonly workers: number },
  warnings: readonly string[],
): EvaluationHandle {
  const { rolloutsPerExample, maxConcurrent } = input;
  return {
    place: input.results,
    spec,
    environment: input.environment.name,
    model: input.model.model,
    examples,
    rolloutsPerExample,
    attempt,
    ...cutEvaluation({ examples, rolloutsPerExample, maxConcurrent, workers, chunkExamples }),
    warnings,
  };
}

function nothingToEvaluate({ environment, numExamples }: EvaluationInput, length: number): RatchetError {
  const why = length === 0 ? `${environment.name} has no held-out examples` : `num_examples is ${numExamples}`;
  return new RatchetError('ConfigInvalid', `There is nothing to evaluate: ${why}.`);
}

/**
 * Warnings that only matter to training; an evaluation uses the environment's own sampling, and only reads examples.
 */
function isOfTraining(line: string): boolean {
  return /the run's \[sampling\] decides|that it is trained on/.test(line);
}
