import type { Recovery } from '../../activities/index.ts';
import { recoveryLines } from '../control/lines.ts';
import type { RunContext } from '../run-context.ts';
import type { Head } from './head.ts';

/** Recoveries of trainers: their cost, and their event lines. */
export class Recoveries {
  readonly #context: RunContext;
  readonly #head: Head;
  /** The step that this execution, or its newest turn with a trainer, makes first: loading a checkpoint for it is no recovery. */
  #firstStep: number;
  #inTraining = 0;
  /** Rollouts generated again meanwhile for that step or an earlier one; a recovery normally needs none. */
  #regenerated = 0;

  constructor(context: RunContext, head: Head) {
    this.#context = context;
    this.#head = head;
    this.#firstStep = head.isCommitted ? head.step + 1 : 1;
  }

  /** The trainer was given back: the next one loads a checkpoint. */
  turnIsOver(): void {
    this.#firstStep = this.#head.step + 1;
  }

  trains(step: number): void {
    this.#inTraining = step;
  }

  hasTrained(): void {
    this.#inTraining = 0;
  }

  samplesFor(step: number): void {
    if (step <= this.#inTraining) this.#regenerated += this.#context.spec.batchSize;
  }

  /** `step`: the one for which the trainer restored. */
  emit(step: number, recovery: Recovery): void {
    const { account, control } = this.#context;
    const isFirstLoad = recovery.replayedSteps === 0 && recovery.restoredFrom === this.#head.step;
    const isExpected = isFirstLoad && step === this.#firstStep;
    if (!isExpected) account.restored(recovery.seconds);
    for (const { kind, text, values } of recoveryLines(step, recovery, this.#regenerated, isExpected)) {
      control.emit(kind, step, text, values);
    }
  }
}
