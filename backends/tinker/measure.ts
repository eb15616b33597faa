import { RatchetError } from '../../core/errors.ts';
import { linearLoss } from './batch.ts';
import type { TinkerModel } from './model.ts';
import { type AdamSetting, policyLosses, type PolicyLoss, type ServerFacts, type ServerLoss } from './server-facts.ts';
import { isTrouble } from './trouble.ts';
import type { AdamParams, Datum, LossCall } from './types.ts';

/**
 * Finds out what a server does, by tiny steps of a model that is thrown away: no run's weights are touched.
 *
 * How it adds losses up: every row begins with the same token, whose gradient is g. All other tokens have a coefficient
 * of 0, so each gradient is a multiple of g, which the norm tells (or the loss, where no norm is told). One row of one
 * token gives the unit. Beside it a row of five tokens, two of which count, gives
 *
 *     sum                          2
 *     mean of rows                 1
 *     mean of tokens that count    2 / 3
 *     mean of rows' means          (1 + 1/2) / 2
 *     means by all tokens          2 / 6, (1 + 1/5) / 2    not supported
 *
 * and the same two rows in two requests tell whether a mean is over the step or over a request.
 */
export async function measureLoss(model: TinkerModel, url: string): Promise<ServerLoss | null> {
  for (const linearIn of ['weights', 'advantages'] as const) {
    const gauge = new Gauge(model, linearLoss(linearIn));
    const unit = await gauge.of([row(linearIn, 1)]);
    if (unit === 'none') return null;
    if (unit === 'refused' || unit === 0) continue;
    const doubled = await gauge.of([row(linearIn, -2)]);
    if (typeof doubled !== 'number' || !isAbout(doubled / unit, 2)) continue; // its means divide by weights
    const together = ratio(await gauge.of([row(linearIn, 1), longRow(linearIn)]), unit);
    const reduction = reductionBy(together, linearIn === 'advantages');
    const apart = ratio(await gauge.of([row(linearIn, 1)], [longRow(linearIn)]), unit);
    const idle = ratio(await gauge.of([row(linearIn, 1), row(linearIn, 0)]), unit);
    const isWeighed = linearIn === 'weights' && reduction === 'row_mean' && !isAbout(idle, 1 / 2);
    if (reduction === null || isWeighed) throw unsupported(url, together);
    const byRequest = { sum: 2, row_mean: 2, token_mean: 3 / 2, sequence_mean: 3 / 2 }[reduction];
    if (reduction === 'sum' || isAbout(apart, together)) return { reduction, over: 'step', linearIn };
    if (isAbout(apart, byRequest)) return { reduction, over: 'request', linearIn };
    throw unsupported(url, apart);
  }
  throw new RatchetError(
    'Unsupported',
    `The server at ${url} follows neither the weights of cross_entropy nor the advantages of cispo: a row that counts −2 gave another gradient than −2 times that of one that counts 1. Its losses cannot be those of a run.`,
  );
}

/** A gauge's reading: `none` = the server tells neither norm nor loss; `refused` = it does not know this loss. */
type Reading = number | 'none' | 'refused';

class Gauge {
  readonly #model: TinkerModel;
  readonly #loss: LossCall;
  /** What the last reading is of. */
  by: 'norm' | 'loss' = 'loss';

  constructor(model: TinkerModel, loss: LossCall) {
    this.#model = model;
    this.#loss = loss;
  }

  /** The size of the gradient of these requests, in any unit. The step has no length. */
  async of(...requests: readonly (readonly Datum[])[]): Promise<Reading> {
    let loss: number | null = null;
    try {
      for (const data of requests) {
        const { metrics } = await this.#model.forwardBackward(data, this.#loss);
        const told = Object.entries(metrics).find(([name]) => /loss/.test(name))?.[1];
        if (told !== undefined) loss = (loss ?? 0) + told;
      }
      const told = await this.#model.optimStep(adam({ learning_rate: 0 }));
      const norm = Object.entries(told).find(([name]) => /(?:^|\/)grad_norm/.test(name))?.[1];
      this.by = norm !== undefined && Number.isFinite(norm) ? 'norm' : 'loss';
      const size = this.by === 'norm' ? norm! : loss;
      return size === null ? 'none' : Math.abs(size);
    } catch (error) {
      if (isTrouble(error, 'refused')) return 'refused';
      throw error;
    }
  }
}

/** The log probability of a token. Throws if the server tells none. */
export async function measureLogprob(model: TinkerModel, url: string): Promise<number> {
  const { logprobs } = await model.forward([row('weights', 1)]);
  const logprob = logprobs[0]?.[0];
  if (logprob !== undefined && Number.isFinite(logprob)) return logprob;
  throw new RatchetError(
    'Unsupported',
    `The server at ${url} tells no log probabilities: expected one for the token of the row that it was asked to score, got ${String(logprob ?? 'none')}. A run learns by them: use a server that returns "logprobs" in loss_fn_outputs.`,
  );
}

/**
 * The losses that a server computes as the API says, by a row of one token with advantage A and the ratio ρ of its new to
 * its old probability; ℓ is its log probability (`logprob`), g the gradient of that:
 *
 *                            A = −2, ρ = 1          A = 1, ρ = e
 *                            gradient   loss        gradient   loss
 *     importance_sampling    2 g        2           e g        e
 *     ppo, 0.8 to 1.2        2 g        2           0          1.2
 *     cispo, 0.8 to 1.2      2 g        2 |ℓ|       1.2 g      1.2 |ℓ|
 */
export async function measureLosses(
  model: TinkerModel,
  { linearIn }: ServerLoss,
  logprob: number,
): Promise<PolicyLoss[]> {
  const g = await new Gauge(model, linearLoss(linearIn)).of([row(linearIn, 1)]);
  const found: PolicyLoss[] = [];
  for (const lossFn of policyLosses) {
    const config = lossFn === 'importance_sampling' ? null : { clip_low_threshold: 0.8, clip_high_threshold: 1.2 };
    const gauge = new Gauge(model, { lossFn, config });
    const [plain, far] = [
      await gauge.of([policyRow(linearIn, -2, logprob)]),
      await gauge.of([policyRow(linearIn, 1, logprob - 1)]),
    ];
    const isOfNorm = gauge.by === 'norm';
    const unit = isOfNorm ? Number(g) : lossFn === 'cispo' ? Math.abs(logprob) : 1;
    const expected = lossFn === 'importance_sampling' ? Math.E : lossFn === 'ppo' && isOfNorm ? 0 : 1.2;
    const isSame = (reading: Reading, wanted: number): boolean =>
      typeof reading === 'number' && Math.abs(reading / unit - wanted) < tolerance * Math.max(wanted, 1);
    if (isSame(plain, 2) && isSame(far, expected)) found.push(lossFn);
  }
  return found;
}

function policyRow(linearIn: ServerLoss['linearIn'], advantage: number, logprob: number): Datum {
  const floats = (data: readonly number[]) => ({ dtype: 'float32' as const, data });
  return {
    tokens: tokens.slice(0, 1),
    inputs: {
      target_tokens: { dtype: 'int64', data: tokens.slice(1, 2) },
      logprobs: floats([logprob]),
      advantages: floats([advantage]),
      ...(linearIn === 'advantages' ? { weights: floats([1]) } : {}),
    },
  };
}

/** Rounding of 16-bit floats stays below it; the ratios that are told apart differ by more than a tenth. */
const tolerance = 0.04;

function isAbout(found: number, expected: number): boolean {
  return Math.abs(found / expected - 1) < tolerance;
}

function ratio(reading: Reading, unit: number): number {
  return typeof reading === 'number' ? reading / unit : Number.NaN;
}

function reductionBy(together: number, isMasked: boolean): ServerLoss['reduction'] | null {
  if (isAbout(together, 2)) return 'sum';
  if (isAbout(together, 1)) return 'row_mean';
  if (isMasked && isAbout(together, 2 / 3)) return 'token_mean';
  return isMasked && isAbout(together, 3 / 4) ? 'sequence_mean' : null;
}

function unsupported(url: string, found: number): RatchetError {
  return new RatchetError(
    'Unsupported',
    `The server at ${url} adds losses up in a way that is not known here: two rows gave ${Number.isNaN(found) ? 'no' : found.toPrecision(3)} times the gradient of one. Expected their sum (2), or a mean over rows (1), over tokens that count (0.667) or of the rows’ means (0.75).`,
  );
}

/** The first tokens of any vocabulary. */
const tokens = [1, 2, 3, 4, 5, 6] as const;

function row(linearIn: ServerLoss['linearIn'], coefficient: number): Datum {
  return datum(linearIn, [coefficient], [1]);
}

function longRow(linearIn: ServerLoss['linearIn']): Datum {
  return datum(linearIn, [1, 0, 0, 0, 0], [1, 1, 0, 0, 0]);
}

function datum(linearIn: ServerLoss['linearIn'], coefficients: readonly number[], mask: readonly number[]): Datum {
  const length = coefficients.length;
  const targets = { target_tokens: { dtype: 'int64' as const, data: tokens.slice(1, length + 1) } };
  const floats = (data: readonly number[]) => ({ dtype: 'float32' as const, data });
  return {
    tokens: tokens.slice(0, length),
    inputs:
      linearIn === 'weights'
        ? { ...targets, weights: floats(coefficients) }
        : { ...targets, logprobs: floats(mask.map(() => 0)), advantages: floats(coefficients), weights: floats(mask) },
  };
}

function adam(wanted: Partial<AdamParams>): AdamParams {
  return {
    learning_rate: probeRate,
    beta1: 0.9,
    beta2: 0.95,
    eps: 1e-8,
    weight_decay: 0,
    grad_clip_norm: 0,
    ...wanted,
  };
}

/** Large, so that a step that is made shows in a log probability. */
const probeRate = 1e-2;
/** So large that no gradient moves a weight. */
const hugeEpsilon = 1e15;

/**
 * Which settings of Adam a server takes no notice of. A step whose settings forbid any movement shows it: log
 * probabilities that change all the same were moved by other settings.
 */
export async function measureAdam(
  model: TinkerModel,
  linearIn: ServerLoss['linearIn'],
): Promise<{ readonly ignored: AdamSetting[]; readonly unknown: AdamSetting[] }> {
  const mover = new Mover(model, linearIn);
  const movedByEpsilon = await mover.moves(1, { eps: hugeEpsilon });
  if (!(await mover.moves(1, {}))) return { ignored: [], unknown: ['beta1 and beta2', 'epsilon', 'weight_decay'] };
  // Without a gradient, only what Adam remembers moves a weight; beta1 = 0 remembers nothing.
  const movedByMomentum = await mover.moves(0, { beta1: 0 });
  // What decays by half moves, whatever else holds still.
  const isStill = !movedByEpsilon || !movedByMomentum;
  const decays = await mover.moves(0, { beta1: 0, eps: hugeEpsilon, learning_rate: 0.5, weight_decay: 1 });
  return {
    ignored: [
      ...(movedByMomentum ? (['beta1 and beta2'] as const) : []),
      ...(movedByEpsilon ? (['epsilon'] as const) : []),
      ...(isStill && !decays ? (['weight_decay'] as const) : []),
    ],
    unknown: isStill ? [] : ['weight_decay'],
  };
}

/** Gives the log probability of a token that is sampled from a path, by one seed. */
export type SampleFrom = (path: string) => Promise<number>;

/** What a sampler's path is sampled from. The model must be one that is thrown away. */
export async function measureSampling(
  model: TinkerModel,
  linearIn: ServerLoss['linearIn'],
  sampleFrom: SampleFrom,
): Promise<ServerFacts['sampling']> {
  const mover = new Mover(model, linearIn);
  try {
    const first = await model.saveForSampler('ratchet-probe-1', null);
    // If nothing can be seen, the answer is the one that is right everywhere: each step loads a model of its own.
    if (!(await mover.moves(1, {}))) return 'in the model';
    const before = await mover.look();
    const asSaved = await sampleFrom(first); // once the model has moved: SkyRL loads a checkpoint once
    if (mover.isOther(before, await mover.look())) return 'in the model';
    const noise = Math.abs((await sampleFrom(first)) - asSaved);
    await model.saveForSampler('ratchet-probe-2', null);
    return Math.abs((await sampleFrom(first)) - asSaved) > Math.max(1e-3, 4 * noise) ? 'latest' : 'apart';
  } catch (error) {
    if (isTrouble(error, 'refused', 'missing', 'failed')) return 'apart'; // nobody samples there
    throw error;
  }
}

/** Makes steps of a model, and sees whether they move it. */
class Mover {
  readonly #model: TinkerModel;
  readonly #linearIn: ServerLoss['linearIn'];
  /** Difference of two log probabilities under the same weights. */
  #noise: number | null = null;

  constructor(model: TinkerModel, linearIn: ServerLoss['linearIn']) {
    this.#model = model;
    this.#linearIn = linearIn;
  }

  async moves(coefficient: number, wanted: Partial<AdamParams>): Promise<boolean> {
    this.#noise ??= Math.abs((await this.look()) - (await this.look()));
    const before = await this.look();
    await this.#model.forwardBackward([row(this.#linearIn, coefficient)], linearLoss(this.#linearIn));
    await this.#model.optimStep(adam(wanted));
    return this.isOther(before, await this.look());
  }

  async look(): Promise<number> {
    const { logprobs } = await this.#model.forward([row('weights', 1)]);
    return logprobs[0]?.[0] ?? Number.NaN;
  }

  /** NaN is another number than any: a step that ruins the weights has moved them. */
  isOther(before: number, after: number): boolean {
    return !(Math.abs(after - before) < Math.max(1e-5, 4 * (this.#noise ?? 0)));
  }
}
