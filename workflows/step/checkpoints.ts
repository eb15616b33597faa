import { versionName } from '../../core/names.ts';
import type { Beside } from '../beside/beside.ts';
import { orchestratorFor } from '../options.ts';
import type { RunContext } from '../run-context.ts';
import type { Publishing } from './publishing.ts';

interface Options {
  readonly publishing: Publishing;
  readonly beside: Beside;
  /** Steps whose weights are still needed beside the loop. */
  readonly pinned: () => readonly number[];
}

/** Seals versions as checkpoints beside later steps, one after another, since retention depends on sealed ones. */
export class Checkpoints {
  readonly #context: RunContext;
  readonly #options: Options;
  #last = Promise.resolve();

  constructor(context: RunContext, options: Options) {
    this.#context = context;
    this.#options = options;
  }

  /** v0 is sealed before anything else happens. */
  async sealFirst(): Promise<void> {
    const { run, spec, control } = this.#context;
    const first = { run, step: 0, pinned: [] };
    const saving = orchestratorFor(spec).saveCheckpoint.executeWithOptions({ summary: 'step 0 (v0)' }, [first]);
    await control.waitFor('save the checkpoint of step 0', saving);
  }

  /** Seals the step as a checkpoint once its weights are in the store. `commit`: sha256 of the commit. */
  seal(step: number, commit: string): void {
    const { control } = this.#context;
    const { publishing, beside } = this.#options;
    const before = this.#last;
    this.#last = beside.start(async () => {
      await before;
      const replaced = await publishing.of(step);
      if (replaced?.replay) {
        const text = `checkpoint ${step} is left out: its parts were lost before their upload, and ${versionName(replaced)} took its place`;
        return control.emit('warning', step, text);
      }
      await this.#save(step, commit);
    });
  }

  async #save(step: number, commit: string): Promise<void> {
    const { run, spec, control } = this.#context;
    const pinned = this.#options.pinned();
    const keepsAll = control.rewind === null ? {} : { keepsAll: true };
    const saving = orchestratorFor(spec).saveCheckpoint.executeWithOptions({ summary: `step ${step}` }, [
      { run, step, pinned, commit, ...keepsAll },
    ]);
    const { kept } = await control.waitFor(`save the checkpoint of step ${step}`, saving);
    control.emit('checkpoint', step, `checkpoint ${step} sealed (kept: ${kept.join(', ')})`);
  }
}
