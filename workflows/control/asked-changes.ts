import type { UpdateDefinition } from '@temporalio/common';
import { allHandlersFinished, CancellationScope, currentUpdateInfo } from '@temporalio/workflow';
import { askedText, changeLine, type RunChange } from '../../core/rl/changes.ts';
import { rootCause } from '../beside/root-cause.ts';
import { onUpdate } from './listen.ts';
import type { RunEvent } from './messages.ts';

/** An update that the workflow has accepted. */
export interface AskedChange extends Pick<RunChange, 'what' | 'asked' | 'step'> {
  /** Its id. */
  readonly update: string;
}

interface ChangeOptions {
  /** Keeps an accepted update; returns who asked for it. */
  readonly record: (change: AskedChange) => Promise<string>;
  readonly emit: (kind: 'change' | 'warning', text: string, values?: RunEvent['values']) => void;
  /** The step of a run that was committed last; missing for all else than a run. */
  readonly step?: () => number;
}

/** Updates of people. Each that is done joins the stored record of changes, beside what the workflow does next. */
export class AskedChanges {
  readonly #options: ChangeOptions;
  #recording = 0;

  constructor(options: ChangeOptions) {
    this.#options = options;
  }

  /** Whether every update has its answer, and is in the stored record. */
  get areDone(): boolean {
    return allHandlersFinished() && this.#recording === 0;
  }

  on<Args extends unknown[]>(
    update: UpdateDefinition<string, Args>,
    handler: (...args: NoInfer<Args>) => string | Promise<string>,
    validator?: (...args: NoInfer<Args>) => void,
  ): void {
    onUpdate(
      update,
      (...args) => {
        const { id } = currentUpdateInfo()!;
        const step = this.#options.step?.() ?? null;
        const answer = handler(...args);
        this.#recording += 1;
        const change = { update: id, what: update.name, asked: askedText(args[0]), step };
        void this.#record(change, answer).finally(() => (this.#recording -= 1));
        return answer;
      },
      validator,
    );
  }

  /** The workflow goes on without a record that cannot be written, and says so. */
  async #record(change: AskedChange, answer: string | Promise<string>): Promise<void> {
    const { record, emit } = this.#options;
    try {
      await answer;
    } catch {
      return; // refused, which its sender is told: nothing has changed
    }
    try {
      const who = await CancellationScope.nonCancellable(() => record(change));
      const { what } = change;
      emit('change', changeLine({ ...change, identity: who, principal: null }), { who, what });
    } catch (error) {
      emit('warning', `${change.what} was done, and is not in the record of changes: ${rootCause(error).message}`);
    }
  }
}
