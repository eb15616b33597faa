import { RatchetError } from '../core/errors.ts';
import type { ScoredGroup, ScoredRollout } from '../core/rl/rollout/rollout.ts';
import { runEvaluations } from '../runs/evaluations/run-evaluations.ts';
import { lineagesOf, type RunPlace, runRecordOf, storeOf } from '../runs/run-access.ts';
import { stepRecords } from '../runs/metrics/step-records.ts';
import { sampledSteps, scoredGroups } from '../runs/run-records.ts';
import { resolveStoreUri } from '../store/index.ts';
import { requireText } from './arguments.ts';
import type * as Api from './index.mjs';

/** Opens the folder of a run. Throws `RunNotFound` if it has none. */
export async function openStoredRun(place: string): Promise<StoredRunReader> {
  requireText('readRun', 'the folder of a run, such as outputs/words', place);
  const run = placeOf(place);
  await runRecordOf(run);
  return new StoredRunReader(run);
}

/** The store above a run's folder, and the run's name. */
function placeOf(place: string): RunPlace {
  const uri = resolveStoreUri(place, process.cwd());
  // A bucket's options come after its path.
  const [, above, name, options = ''] = /^([^?]*\/)([^/?]+)\/?(\?.*)?$/.exec(uri) ?? [];
  if (above !== undefined && name !== undefined) return { store: above + options, name: decodeURIComponent(name) };
  throw new RatchetError(
    'ConfigInvalid',
    `${JSON.stringify(place)}: expected the folder of a run, such as outputs/words or s3://bucket/runs/words.`,
  );
}

export class StoredRunReader implements Api.StoredRun {
  readonly name: string;
  readonly uri: string;
  readonly #run: RunPlace;

  constructor(run: RunPlace) {
    this.#run = run;
    this.name = run.name;
    this.uri = storeOf(run).uri;
  }

  steps(): Promise<Api.StepRecord[]> {
    return stepRecords(this.#run);
  }

  async metric(name: string): Promise<{ step: number; value: number }[]> {
    const steps = await stepRecords(this.#run);
    return steps.flatMap(({ step, metrics }) => (metrics[name] === undefined ? [] : [{ step, value: metrics[name] }]));
  }

  async evaluations(): Promise<Api.Evaluation[]> {
    const { evaluations } = await runEvaluations(storeOf(this.#run), await lineagesOf(this.#run));
    const all = evaluations.map(({ step, lineage, environment, model, id, where, metadata }) => {
      const variant = /^step_\d+(?:\.r\d+)?\.(?!r\d+$)(.+)$/.exec(id)?.[1] ?? null;
      const { numExamples, rolloutsPerExample, avgReward: reward, seconds } = metadata;
      const figures = { numExamples, rolloutsPerExample, reward, seconds };
      return { step, lineage, environment, model, variant, ...figures, uri: where };
    });
    const order = ({ environment, variant }: Api.Evaluation): string => `${environment} ${variant ?? ''}`;
    return all.sort((a, b) => a.step - b.step || (order(a) < order(b) ? -1 : 1));
  }

  async *rollouts({ step, environment }: Api.RolloutOptions = {}): AsyncGenerator<Api.Rollout, void, undefined> {
    for (const one of step === undefined ? await sampledSteps(this.#run) : [step]) {
      for (const group of await scoredGroups(this.#run, one)) {
        if (environment !== undefined && group.environment !== environment) continue;
        for (const rollout of group.rollouts) yield told(one, group, rollout);
      }
    }
  }
}

function told(step: number, group: ScoredGroup, rollout: ScoredRollout): Api.Rollout {
  const { ordinal, environment, exampleId, policyStep } = group;
  const { index, outcome, reward, metrics, error = null } = rollout;
  const turns = rollout.turns.map(({ text, finishReason, promptTokenIds, tokenIds, logprobs }) => ({
    text,
    finishReason,
    promptTokenIds,
    tokenIds,
    logprobs,
  }));
  return { step, group: ordinal, index, environment, exampleId, policyStep, outcome, reward, metrics, turns, error };
}
