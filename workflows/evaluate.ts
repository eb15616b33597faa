import {
  ApplicationFailure,
  condition,
  defineQuery,
  defineSignal,
  executeChild,
  isCancellation,
  log,
  ParentClosePolicy,
  setCurrentDetails,
  setHandler,
  workflowInfo,
} from '@temporalio/workflow';
import type {
  ChunkResult,
  EvaluationFileInput,
  EvaluationHandle,
  EvaluationInput,
  EvaluationResult,
  EvaluationsInput,
  EvaluationStatus,
} from '../core/eval/evaluation.ts';
import { passFigures } from '../core/eval/pass-at-k.ts';
import { addTallies, averageReward, emptyTally } from '../core/eval/tally.ts';
import { evaluationChunksInPlayMax, evaluationsSideBySide } from '../core/limits.ts';
import { chunkLeftSignalName } from '../core/names.ts';
import { onceItsIdIsFree, tellingItsEnd } from './beside/child-work.ts';
import { recordingItsCancel } from './beside/recorded.ts';
import { rootCause } from './beside/root-cause.ts';
import { onSignal } from './control/listen.ts';
import { readEvaluateInput } from './inputs.ts';
import { evaluationChunks, evaluationParts, memoOfPoolHere } from './options.ts';
import { describeEvaluation, describeParts } from './control/evaluation-lines.ts';

const chunkLeftSignal = defineSignal<[chunk: number, left: number], typeof chunkLeftSignalName>(chunkLeftSignalName);
const evaluationStatusQuery = defineQuery<EvaluationStatus>('status');

/** Results of all requested evaluations, in order; also for a single one. */
interface Evaluated {
  readonly results: readonly EvaluationResult[];
}

/**
 * Evaluates a model on an environment's held-out examples: opens the evaluation, generates chunk after chunk, closes
 * it. Started with the path of a file, it does so for each of its evaluations, in child workflows. Whatever is killed,
 * no stored rollout is sampled again.
 */
export async function evaluate(
  ...given: [string | EvaluationFileInput | EvaluationsInput | EvaluationInput]
): Promise<Evaluated> {
  const input = readEvaluateInput(given);
  if ('config' in input || 'inputs' in input) return evaluateAll(input);
  // An evaluation of a run is cancelled by the run, whose own changes say who ended that.
  const of = input.notify === undefined ? ({ kind: 'evaluation', place: input.results } as const) : null;
  return { results: [await tellingItsEnd(input, () => recordingItsCancel(of, () => evaluateOne(input)))] };
}

async function evaluateOne(input: EvaluationInput): Promise<EvaluationResult> {
  const { workflowId, runId } = workflowInfo();
  const startedAt = Date.now();
  const seconds = (): number => (Date.now() - startedAt) / 1000;
  let phase: EvaluationStatus['phase'] = 'opening';
  let handle: EvaluationHandle | null = null;
  let tally = emptyTally;
  let adopted = 0;
  const open = new Set<number>();
  const status = (): EvaluationStatus => ({
    environment: input.environment.name,
    model: input.model.model,
    phase,
    examples: handle?.examples ?? null,
    rollouts: {
      done: tally.rollouts,
      of: handle === null ? null : handle.examples * handle.rolloutsPerExample,
      failed: tally.failed,
    },
    avgReward: averageReward(tally),
    passAtK: passFigures(input.rolloutsPerExample, tally.examplesByRight).atK,
    waitingOn: [...open].map((chunk) => describeChunk(handle!, chunk)),
    folder: `${input.results.store}${input.results.name}/${input.results.prefix}`,
    warnings: handle?.warnings ?? [],
    parts: [],
  });
  const tell = (next = phase): void => {
    phase = next;
    setCurrentDetails(describeEvaluation(status()));
  };
  setHandler(evaluationStatusQuery, status);
  tell();

  handle = await evaluationParts.openEvaluation.executeWithOptions(
    { summary: `${input.environment.name} with ${input.model.model}` },
    [{ input, request: `${workflowId}/${runId}` }],
  );
  const opened = handle;
  const { chunks } = opened;
  tell('evaluating');

  /** Under way; one that is due begins when it has ended. */
  const notes: { under: Promise<void> | null; isDue: boolean } = { under: null, isDue: false };
  const inPlay = new RolloutsInPlay(opened);
  await sideBySide(
    chunks,
    evaluationChunksInPlayMax,
    () => inPlay.hasRoom(),
    async (chunk) => {
      inPlay.begin(chunk);
      open.add(chunk);
      const result = await evaluateChunk(opened, chunk).finally(() => inPlay.end(chunk));
      open.delete(chunk);
      tally = addTallies(tally, result.tally);
      adopted += result.adopted;
      tell();
      notes.isDue = chunks > 1;
      notes.under ??= noteProgress().finally(() => (notes.under = null));
    },
  );
  await notes.under;

  tell('closing');
  const result = await evaluationParts.closeEvaluation.executeWithOptions({ summary: `${tally.rollouts} rollouts` }, [
    { handle: opened, adopted, seconds: seconds() },
  ]);
  tell('finished');
  return result;

  /** One write at a time and no queue: only the newest figures matter. */
  async function noteProgress(): Promise<void> {
    while (notes.isDue) {
      notes.isDue = false;
      const summary = `${tally.rollouts} rollouts`;
      await evaluationParts.noteProgress.executeWithOptions({ summary }, [
        { handle: opened, tally, seconds: seconds() },
      ]);
    }
  }
}

function evaluateChunk(handle: EvaluationHandle, chunk: number): Promise<ChunkResult> {
  const [from, to] = examplesOf(handle, chunk);
  const chunks = evaluationChunks((to - from) * handle.rolloutsPerExample);
  return chunks.evaluateChunk.executeWithOptions({ summary: describeChunk(handle, chunk) }, [{ handle, chunk }]);
}

function examplesOf({ chunkExamples, examples }: EvaluationHandle, chunk: number): readonly [from: number, to: number] {
  const from = chunk * chunkExamples;
  return [from, Math.min(examples, from + chunkExamples)];
}

function describeChunk(handle: EvaluationHandle, chunk: number): string {
  const { examples, rolloutsPerExample } = handle;
  const [from, to] = examplesOf(handle, chunk);
  return `examples ${from + 1}–${to} of ${examples} × ${rolloutsPerExample}`;
}

/** Runs each evaluation of a file in its own workflow, named after this one. A failure does not stop the others. */
async function evaluateAll(asked: EvaluationFileInput | EvaluationsInput): Promise<Evaluated> {
  const { workflowId } = workflowInfo();
  const title = 'config' in asked ? asked.config : asked.title;
  const parts: string[] = [];
  const results: (EvaluationResult | null)[] = [];
  const failures: string[] = [];
  const status = (): EvaluationStatus => ({
    environment: title,
    model: '',
    phase: parts.length === 0 ? 'opening' : 'evaluating',
    examples: null,
    rollouts: { done: results.reduce((sum, result) => sum + (result?.rollouts ?? 0), 0), of: null, failed: 0 },
    avgReward: null,
    passAtK: {},
    waitingOn: parts.filter((_, i) => results[i] === undefined),
    folder: '',
    warnings: failures,
    parts,
  });
  setHandler(evaluationStatusQuery, status);
  const inputs = 'inputs' in asked ? asked.inputs : await plan(asked);
  const { names, atOnce = evaluationsSideBySide }: Partial<EvaluationsInput> = 'inputs' in asked ? asked : {};
  const nameOf = (one: EvaluationInput, i: number) => names?.[i] ?? `${one.environment.name}.${one.results.name}`;
  parts.push(...inputs.map((one, i) => `${workflowId}.${nameOf(one, i)}`));
  setCurrentDetails(describeParts(parts, results));
  await sideBySide(
    inputs.length,
    atOnce,
    () => true,
    async (i) => {
      try {
        const { results: one } = await onceItsIdIsFree(() =>
          executeChild(evaluate, {
            args: [inputs[i]!],
            workflowId: parts[i]!,
            ...memoOfPoolHere(),
            parentClosePolicy: ParentClosePolicy.REQUEST_CANCEL,
            staticSummary: `${inputs[i]!.environment.name} · ${inputs[i]!.model.model}`,
          }),
        );
        results[i] = one[0]!;
      } catch (error) {
        if (isCancellation(error)) throw error;
        results[i] = null;
        failures.push(`${inputs[i]!.environment.name}: ${rootCause(error).message}`);
      }
      setCurrentDetails(describeParts(parts, results));
    },
  );
  if (failures.length > 0) {
    throw ApplicationFailure.nonRetryable(
      `${failures.length} of ${inputs.length} evaluations failed. ${failures.join(' ')}`,
      'EvaluationsFailed',
    );
  }
  return { results: results.filter((result) => result !== null) };
}

async function plan(file: EvaluationFileInput): Promise<readonly EvaluationInput[]> {
  const { workflowId, runId } = workflowInfo();
  const asked = { ...file, request: `${workflowId}/${runId}` };
  return (await evaluationParts.planEvaluations.executeWithOptions({ summary: file.config }, [asked])).inputs;
}

/** Limits on rollouts in flight for each chunk, which together stay within the evaluation's. */
class RolloutsInPlay {
  readonly #of: Pick<EvaluationHandle, 'inFlight' | 'atOnce'>;
  readonly #chunks = new Map<number, number>();

  constructor(of: Pick<EvaluationHandle, 'inFlight' | 'atOnce'>) {
    this.#of = of;
    const take = (chunk: number, left: number): void => {
      if (this.#chunks.has(chunk)) this.#chunks.set(chunk, left);
    };
    onSignal(chunkLeftSignal, take, (problem) => log.warn(problem));
  }

  hasRoom(): boolean {
    const taken = [...this.#chunks.values()].reduce((sum, one) => sum + one, 0);
    return taken === 0 || taken + this.#of.atOnce <= this.#of.inFlight;
  }

  begin(chunk: number): void {
    this.#chunks.set(chunk, this.#of.atOnce);
  }

  end(chunk: number): void {
    this.#chunks.delete(chunk);
  }
}

/**
 * Starts 0 … count−1 in order, each when there is room for it. Throws the first failure once those under way have
 * ended.
 */
async function sideBySide(
  count: number,
  atOnce: number,
  hasRoom: () => boolean,
  work: (i: number) => Promise<void>,
): Promise<void> {
  const failures: unknown[] = [];
  const working = new Set<Promise<void>>();
  for (let i = 0; i < count; i++) {
    await condition(() => failures.length > 0 || (working.size < atOnce && hasRoom()));
    if (failures.length > 0) break;
    const one: Promise<void> = work(i)
      .catch((reason: unknown) => void failures.push(reason))
      .finally(() => working.delete(one));
    working.add(one);
  }
  await Promise.all(working);
  if (failures.length > 0) throw failures[0];
}
