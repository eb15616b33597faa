import { refusedAttemptsMax } from '../../core/limits.ts';
import { versionName } from '../../core/names.ts';
import { present } from '../../core/present.ts';
import type { PolicyVersion } from '../../core/rl/run-state.ts';
import { learningRateOf } from '../../core/rl/sampling/schedule.ts';
import type { WarmUpState } from '../../activities/index.ts';
import { halvedLine, segmentAfter } from '../control/lines.ts';
import type { RunContext } from '../run-context.ts';
import type { CollectedStep } from './collect-step.ts';
import type { Head } from './head.ts';
import type { Publishing } from './publishing.ts';
import type { Recoveries } from './recoveries.ts';
import type { Rollouts } from './rollouts.ts';
import type { ServedWeights } from './served-weights.ts';
import type { TrainerLease } from './trainer-lease.ts';

interface Options {
  readonly head: Head;
  readonly lease: TrainerLease;
  readonly publishing: Publishing;
  readonly recoveries: Recoveries;
  readonly weights: ServedWeights;
}

type Answer = Awaited<ReturnType<Training['attempt']>>;

/** A step that made a version. */
export type TrainedStep = Answer & {
  readonly policy: PolicyVersion;
  /** All batches that were trained for it, refused ones first. */
  readonly attempts: readonly CollectedStep[];
};

/** Activities of the GPU worker that holds the run. */
export class Training {
  readonly #context: RunContext;
  readonly #options: Options;

  constructor(context: RunContext, options: Options) {
    this.#context = context;
    this.#options = options;
  }

  /** v0: the base model, after its supervised warm-up, segment by segment. */
  async warmUp(): Promise<WarmUpState> {
    const { run, spec, control } = this.#context;
    const total = spec.sft?.steps ?? 0;
    let warm: WarmUpState | null = null;
    do {
      const summary: string = warm === null ? `base model ${spec.model}` : segmentAfter(warm.step, total);
      warm = await control.waitFor(
        `warm-up: ${summary}`,
        this.#options.lease.use(({ steps, epoch }) =>
          steps.warmUp.executeWithOptions({ summary }, [{ run, from: warm, epoch }]),
        ),
      );
      if (warm.loss !== null) {
        control.emit('warm-up', 0, `warm-up (supervised) ${warm.step} of ${total}  loss ${warm.loss.toFixed(2)}`, {
          sft_step: warm.step,
          loss: warm.loss,
        });
      }
    } while (warm.step < total);
    return warm;
  }

  /**
   * Trains a step on its batch. A refused batch is set aside, and another one is collected; after some in a row the run
   * pauses.
   */
  async train(step: number, first: CollectedStep, rollouts: Rollouts): Promise<TrainedStep> {
    const { run, control } = this.#context;
    const attempts = [first];
    for (;;) {
      const collected = attempts.at(-1)!;
      const trained = await this.attempt(step, attempts.length, collected);
      const { policy } = trained;
      if (policy !== null) return { ...trained, policy, attempts };
      control.emit('refused', step, `step ${step}: batch refused (${trained.reason}); its groups are not trained`);
      if (attempts.length >= refusedAttemptsMax) {
        control.pause(
          `${attempts.length} batches for step ${step} were refused in a row: ${trained.reason}. Lower the learning rate, then resume: npx ratchet-rl set ${run.name} learning_rate=…`,
        );
        await control.untilResumed();
      }
      attempts.push(await rollouts.collect(step));
    }
  }

  /**
   * Plans and trains one batch; plans it again when memory ran out, or when a replay of stored batches gave other
   * weights.
   */
  private async attempt(step: number, attempt: number, { packed, taught, rows }: CollectedStep) {
    const { run, spec, control, account } = this.#context;
    const { head, lease, publishing, recoveries } = this.#options;
    await publishing.of(head.state.reference.step); // the trainer reads it from the store
    let halvedTo: number | undefined;
    for (;;) {
      const { policy: from, reference, klBeta } = head.state;
      const halved = halvedTo === undefined ? { attempt } : { attempt: attempt + 1, halvedTo };
      const asked = {
        run,
        step,
        from,
        reference,
        klBeta,
        overrides: control.overrides,
        packed,
        ...halved,
        ...present({ taught }),
        ...(lease.isAskedBack ? { seals: true as const } : {}),
      };
      const learningRate = learningRateOf(step, spec, control.overrides);
      const summary = `step ${step}: ${rows} rows onto ${versionName(from)}, learning rate ${learningRate.toExponential(1)}`;
      recoveries.trains(step);
      control.planned = step;
      control.progress.trains({ step, from, rows });
      const result = await control.waitFor(
        `train ${summary}`,
        lease.use(({ steps, epoch }) => steps.trainBatch.executeWithOptions({ summary }, [{ ...asked, epoch }])),
      );
      recoveries.hasTrained();
      control.progress.trains(null);
      if (result.policy === null) control.planned = 0; // settings made now can still reach this step
      if (result.lost) account.attemptsLost(result.lost);
      if (result.recovery) recoveries.emit(step, result.recovery);
      halvedTo = result.halvedTo ?? halvedTo;
      if (result.halvedTo !== undefined) control.emit('warning', step, halvedLine(step, result));
      else if (result.replay === null) return result;
      else this.#takeReplay(result.replay);
    }
  }

  /**
   * Retention removed the weights of the newest version, and the run was rewound to the step that stored batches lead
   * to.
   */
  async restore(): Promise<void> {
    const { run, control } = this.#context;
    const { policy } = this.#options.head;
    const summary = `the weights of ${versionName(policy)} again, from a checkpoint and stored batches`;
    await control.waitFor(
      `make ${summary}`,
      this.#options.lease.use(({ steps, epoch }) =>
        steps.restoreVersion.executeWithOptions({ summary }, [{ run, policy, epoch }]),
      ),
    );
  }

  /** A replay up to a committed step gave other weights, which replace that version. */
  #takeReplay(replay: PolicyVersion): void {
    const { head, weights } = this.#options;
    const { policy } = head;
    if (policy.digest === replay.digest) return;
    head.replace(policy, replay);
    weights.serve(replay, null, false);
  }
}
