import { RatchetError } from '../core/errors.ts';
import { layout } from '../runs/layout.ts';
import { warmUpStepsPerSegment } from '../core/limits.ts';
import type { RunHandle } from '../core/rl/run-state.ts';
import { EngineFailures } from '../core/rl/engine-failures.ts';
import { withHeartbeat } from './around/heartbeat.ts';
import { openWarmUp, storedWarmUp, storeWarmUp, type WarmUpState } from '../runs/versions/warm-up-state.ts';
import { specOf, storeOf } from '../runs/run-access.ts';
import { makeBase } from '../learn/make-base.ts';
import { learner } from '../learn/supervised-steps.ts';
import { type OpenTokenizer, policyTokenizer } from '../play/policy/policy-tokenizer.ts';
import type { TrainDependencies } from './train-batch.ts';
import { goingOn } from './trainer-claims.ts';
import { demonstrations } from '../backends/environments/demonstrations.ts';

/**
 * Makes the base model (`from` null), or trains one more segment of the warm-up. Each state is stored under its step: a
 * retry returns it. Batches are drawn by key, so a resumed warm-up gives the same bits.
 */
export const createWarmUp = (
  { trainer, lease }: Pick<TrainDependencies, 'trainer' | 'lease'>,
  openTokenizer: OpenTokenizer,
) => {
  const failures = new EngineFailures();
  return async (input: {
    readonly run: RunHandle;
    readonly from: WarmUpState | null;
    readonly epoch: number;
  }): Promise<WarmUpState> => {
    const { run, from } = input;
    const work = `${run.store}${run.name}/${from?.step ?? 'base'}`;
    return withHeartbeat(
      () => failures.during(work, `warm-up after step ${from?.step ?? 0}`, attempt),
      () => ({ waitsFor: trainer.waitsFor() }),
    );

    async function attempt(): Promise<WarmUpState> {
      const mayGoOn = goingOn(run, input.epoch, lease);
      await mayGoOn();
      const spec = await specOf(run);
      const total = spec.sft?.steps ?? 0;
      const step = from === null ? 0 : Math.min(total, from.step + warmUpStepsPerSegment);
      const isLast = step === total;
      const stored = await storedWarmUp(run, step);
      if (stored) return stored;

      const made = from === null ? await makeBase(trainer, run, spec, isLast) : await trainSegment(from, step);
      await mayGoOn();
      await storeWarmUp(run, made);
      return made;

      async function trainSegment(start: WarmUpState, end: number): Promise<WarmUpState> {
        const { folder, optimizer } = await openWarmUp(run, start);
        const found = await trainer.startFrom(run, folder, { optimizer, isWarmUp: true });
        if (found.digest !== start.policy.digest) {
          throw new RatchetError(
            'CheckpointDamaged',
            `${start.policy.weights} in ${storeOf(run).uri} holds other weights than warm-up step ${start.step} left there. Restore the folder from a copy.`,
          );
        }
        const tokenizer = await policyTokenizer(run, spec, { folder, open: openTokenizer });
        const learn = await learner(run, spec, tokenizer, {
          trainer,
          holdsReference: start.step === 0,
          mayGoOn,
          shown: () => demonstrations(spec, tokenizer),
        });
        let { loss } = start;
        for (let n = start.step + 1; n <= end; n++) {
          const outcome = await learn(n, n < end);
          if (!outcome.applied) {
            throw new RatchetError(
              'Unsupported',
              `Warm-up step ${n} was refused: ${outcome.reason}. Lower [sft] learning_rate (now ${spec.sft?.learningRate}).`,
            );
          }
          loss = outcome.metrics['loss'] ?? null;
        }
        const digest = await trainer.digest();
        await mayGoOn();
        const weights = isLast ? layout.weights(run.lineage, 0) : layout.warmUp(end);
        const files = await trainer.exportTo(run, weights);
        // v0 begins with a fresh optimizer: the moments of another loss are no help (learning rate and scale differ).
        if (isLast) await trainer.resetOptimizer();
        const state = isLast ? null : await trainer.saveOptimizer(run, layout.warmUp(end), 'optimizer.state');
        // The RL steps train adapters, with another trainer: it opens v0 as after a crash.
        if (isLast && spec.lora && !trainer.hasAdaptersOnly) await trainer.close();
        return {
          step: end,
          policy: { step: 0, digest, weights, ...files },
          optimizer: state,
          loss,
        };
      }
    }
  };
};
