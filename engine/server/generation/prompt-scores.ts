import type { SessionOptions } from '../../onnx/session.ts';
import { GradientComputer } from '../../train/gradient-computer.ts';
import { HttpError } from '../http-error.ts';
import type { HeldVersion } from '../policy-versions.ts';

/** Log probability of each token of a prompt given the tokens before it, at temperature 1; null for the first. */
export type PromptScores = readonly (number | null)[];

/** Computes log probabilities of prompts, one prompt at a time. Sampling continues meanwhile in its own threads. */
export class PromptScorer {
  readonly #session: SessionOptions;
  /** The computer of the latest architecture; versions of one architecture share it. */
  #computer: { readonly key: string; readonly computer: GradientComputer } | null = null;
  #turn: Promise<unknown> = Promise.resolve();

  constructor(session: SessionOptions) {
    this.#session = session;
  }

  score(version: HeldVersion, prompts: readonly (readonly number[])[], signal: AbortSignal): Promise<PromptScores[]> {
    const turn = this.#turn.then(async () => {
      signal.throwIfAborted();
      const samples = prompts.map((tokenIds) => ({ tokenIds, lossMask: tokenIds.map((_, t) => Number(t > 0)) }));
      const computer = await this.#computerOf(version);
      const scores = await version.withWeights(
        (parameters) => computer.score(samples, { parameters, adapter: null }, 1),
        signal,
      );
      return scores.map((row, p) => {
        const own = [...row.subarray(1)];
        if (own.every(Number.isFinite)) return prompts[p]!.length === 0 ? [] : [null, ...own];
        const message = `The version "${version.name}" gives probabilities that are not numbers: its weights are broken.`;
        throw new HttpError(500, message, { code: 'CheckpointDamaged', headers: { 'x-should-retry': 'false' } });
      });
    });
    this.#turn = turn.catch(() => undefined);
    return turn;
  }

  async close(): Promise<void> {
    await this.#turn;
    await this.#computer?.computer.close();
    this.#computer = null;
  }

  async #computerOf({ model: { config }, scoring }: HeldVersion): Promise<GradientComputer> {
    const key = JSON.stringify([config, scoring]);
    if (this.#computer?.key !== key) {
      await this.#computer?.computer.close();
      this.#computer = { key, computer: new GradientComputer(config, { ...this.#session, ...scoring }) };
    }
    return this.#computer.computer;
  }
}
