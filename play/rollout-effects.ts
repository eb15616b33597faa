import { present } from '../core/present.ts';
import { callInDoubt, countEffects, effectNotes, type EffectsNoted, sayInDoubt } from '../core/rl/rollout/effects.ts';
import type { Rollout } from '../core/rl/rollout/rollout.ts';
import { EffectInDoubt } from '../backends/environments/effects.ts';
import { failedRollout } from '../backends/environments/score.ts';
import type { RolloutNotes } from '../backends/environments/types.ts';
import type { NotesView } from '../runs/rollouts/notes.ts';

/** The calls of a rollout that change something outside of it, over all its attempts. */
export class RolloutEffects {
  readonly #view: NotesView;

  constructor(view: NotesView) {
    this.#view = view;
  }

  get notes(): RolloutNotes {
    return this.#view;
  }

  /** False where no call is noted, so that there is nothing to wait for. */
  get mayHaveAny(): boolean {
    return this.#view.mayHaveAny();
  }

  /** Throws if an earlier try left a once-only call in doubt: the rollout is not tried again then. */
  async requireNoDoubt(): Promise<void> {
    const said = await this.inDoubt();
    if (said !== null) throw new EffectInDoubt(said);
  }

  /** Throws where another attempt has taken the rollout over: what this one makes of it counts no more. */
  throwIfTakenOver(): void {
    const over = this.#view.takenOver();
    if (over !== null) throw over;
  }

  /** What is said about a once-only call of unknown outcome; null if there is none. */
  async inDoubt(): Promise<string | null> {
    if (!this.mayHaveAny) return null;
    const call = callInDoubt(await this.#noted());
    return call && sayInDoubt(call);
  }

  /** The rollout with its effects counted; `in_doubt`, whatever it was before, if a once-only call has an unknown outcome. */
  async settle(rollout: Rollout): Promise<Rollout> {
    const noted = await this.#noted();
    const effects = countEffects(noted) ?? undefined;
    const call = callInDoubt(noted);
    if (call === null) return { ...rollout, ...present({ effects }) };
    const { group, index, exampleId, turns, prompt } = rollout;
    const place = { group, index, exampleId, turns, ...present({ prompt, effects }) };
    return failedRollout(place, 'in_doubt', sayInDoubt(call));
  }

  async #noted(): Promise<EffectsNoted> {
    const { begun, again, settled } = effectNotes;
    return {
      begun: await this.#view.all(begun),
      again: await this.#view.all(again),
      settled: await this.#view.all(settled),
    };
  }
}
