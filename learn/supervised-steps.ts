import type { TrainSample } from '../core/rl/learning/batch.ts';
import type { RunHandle } from '../core/rl/run-state.ts';
import { learningRateAt } from '../core/rl/sampling/schedule.ts';
import type { RunSpec } from '../config/run-spec.ts';
import type { ChatTokenizer } from '../engine/index.ts';
import type { SftOutcome } from '../backends/trainer/types.ts';
import type { MayGoOn, PolicyTrainer } from './policy-trainer.ts';
import { checkPairs, drawPairs, preferenceStep, referenceSums } from './preference-rows.ts';
import { checkData, drawData } from './sft-rows.ts';

/** Trains supervised step n. */
type Learn = (step: number, isNext: boolean) => Promise<SftOutcome>;

interface LearnerOptions {
  readonly trainer: PolicyTrainer;
  readonly holdsReference: boolean;
  readonly mayGoOn: MayGoOn;
  /** Rows of the environments' demonstrations, step by step. */
  readonly shown: () => Promise<(step: number) => TrainSample[] | Promise<TrainSample[]>>;
}

/** Refuses, before anything is trained, rows of `[sft] data`, or of `[data]`, that the model has no room for or its chat template does not take. */
export async function checkRows(
  run: RunHandle,
  { sft, data }: Pick<RunSpec, 'sft' | 'data'>,
  model: Parameters<typeof checkData>[2],
): Promise<void> {
  if (data) await checkData(run, data.rows, { ...model, isWhole: true, tokensMax: data.seqLen + 1, at: 'data.name' });
  if (sft?.data) await (sft.dpo ? checkPairs : checkData)(run, sft.data, model);
}

/** Learner for conversations or for pairs; the trainer may or may not hold the weights from before the warm-up. */
export async function learner(
  run: RunHandle,
  spec: RunSpec,
  tokenizer: ChatTokenizer,
  { trainer, shown, ...reference }: LearnerOptions,
): Promise<Learn> {
  const { optimizer } = spec;
  const dpo = spec.sft?.dpo;
  if (dpo) {
    const sums = await referenceSums(run, spec, tokenizer, { trainer, ...reference });
    const draw = await drawPairs(run, spec, tokenizer);
    return (n) => preferenceStep(draw(n), sums, { trainer, ...dpo, optimizer, learningRate: sftRate(spec, n) });
  }
  const draw = spec.sft?.data ? await drawData(run, spec, tokenizer) : await shown();
  let made: { readonly step: number; readonly samples: TrainSample[] } | null = null;
  return async (n, isNext) => {
    const samples = made?.step === n ? made.samples : await draw(n);
    const training = trainer.sftStep({ samples, learningRate: sftRate(spec, n), optimizer });
    // The next rows are prepared while the engine, a process of its own, works on these.
    const [outcome, next] = await Promise.all([training, isNext ? draw(n + 1) : []]);
    made = { step: n + 1, samples: next };
    return outcome;
  };
}

function sftRate(spec: RunSpec, step: number): number {
  const { steps, learningRate, warmupSteps, minRatio } = spec.sft!;
  return learningRateAt({
    step,
    maxSteps: steps,
    peak: learningRate,
    schedule: { type: 'linear', warmupSteps, minRatio },
  });
}
