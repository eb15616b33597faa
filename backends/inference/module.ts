import { asRatchetError, RatchetError } from '../../core/errors.ts';
import type { ModuleSpec } from '../../config/run-spec.ts';
import { importUserFunction } from '../../engine/train/user-code.ts';
import { registerKit } from '../environments/load.ts';
import { requireFree } from './openai/openai-bodies.ts';
import { askPatiently } from './patience.ts';
import type { HoldOutcome, Inference, Sample, SampleRequest, ScoreRequest } from './types.ts';
import type { ServedPolicy } from '../../core/rl/run-state.ts';

/** The user's own inference: the result of the default export of `import` for `options`, made at the first call. */
export class ModuleInference implements Inference {
  readonly #spec: ModuleSpec;
  #made: Promise<Inference> | null = null;

  constructor(spec: ModuleSpec) {
    this.#spec = spec;
  }

  async sample(request: SampleRequest): Promise<Sample> {
    requireFree(request, "an engine of the user's own");
    const inference = await this.#inference();
    return askPatiently(request.signal, () =>
      inference.sample(request).catch((error: unknown) => {
        throw asRatchetError(error);
      }),
    );
  }

  async bringTo(policy: ServedPolicy): Promise<void> {
    await (await this.#inference()).bringTo(policy);
  }

  /** Null if the user's own does not implement it. */
  async score(request: ScoreRequest): Promise<readonly number[] | null> {
    const inference = await this.#inference();
    return (await inference.score?.(request)) ?? null;
  }

  /** Without an implementation it serves any requested version. */
  async hold(policy: ServedPolicy, holder: string, seconds: number): Promise<HoldOutcome> {
    return (await (await this.#inference()).hold?.(policy, holder, seconds)) ?? 'held';
  }

  async release(policy: ServedPolicy, holder: string): Promise<void> {
    await (await this.#inference()).release?.(policy, holder);
  }

  #inference(): Promise<Inference> {
    return (this.#made ??= loadInference(this.#spec));
  }
}

async function loadInference({ import: code, options }: ModuleSpec): Promise<Inference> {
  await registerKit();
  const create = (await importUserFunction(code, 'inference')) as (given: ModuleSpec['options']) => unknown;
  const made = (await create(options)) as Partial<Record<string, unknown>> | null | undefined;
  if (typeof made?.['sample'] === 'function' && typeof made['bringTo'] === 'function') {
    return made as unknown as Inference; // both methods exist
  }
  throw new RatchetError(
    'Unsupported',
    `${code.path}: its default export must give an inference with sample and bringTo (backends/inference/types.ts).`,
  );
}
