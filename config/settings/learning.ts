import { z } from 'zod';
import { present } from '../../core/present.ts';
import { defaultKey } from '../../core/eval/model-servers.ts';
import { inferenceConcurrencyDefault, inferenceTimeoutDefaultS } from '../../core/limits.ts';
import { lossTraits, policyLosses } from '../../core/rl/losses.ts';
import { advantageKinds, roleAdvantages } from '../../core/settings/learning.ts';
import { headerTable, keyVariable, serverUrls, variableName } from '../models/model-access.ts';
import { atLeastZero, choice, positive, text, whole } from '../toml/values.ts';
import { codeFile, CodeRef, codeRef } from './code.ts';
import { correctionSpec, CorrectionSpec } from './correction.ts';
import type { RatchetConfig } from './index.ts';
import { laidOver, samplingSettings, SamplingSpec, samplingSpec } from './sampling.ts';
import { EndpointsRef, endpointsSpec } from './server-pool.ts';
import { inSpec, optionalTable, setting, specFields, table } from './setting.ts';

export { LengthPenaltySpec, OverlongPenaltySpec } from './length-penalty.ts';

/**
 * The source of learning, `loss`; the loss, `[trainer.loss]` and `[trainer.advantage]`; and the teacher, `[teacher]`.
 */

export const kindOfRun = {
  loss: setting(
    choice('rl', 'sft', 'opd'),
    'what is learned from: rewards, what a `[teacher]` says (`sft`), or its log probabilities of what the policy says (`opd`); for the loss function see `[trainer.loss]`',
    { default: 'rl' },
  ),
};

const aggregations = ['token', 'sequence', 'dr_grpo'] as const;

/** A loss without settings may be written as a text: `loss = "grpo"`. */
export const loss = table({
  type: setting(
    choice(...policyLosses),
    'the policy loss; a text `loss = "grpo"` will do; cispo when missing, with `loss = "opd"` that of prime-rl: ipo without an upper bound',
  ),
  clip_low: setting(atLeastZero(), 'lower bound of the ratio; grpo 0.8, gspo 0.9997, others none'),
  clip_high: setting(positive(), 'upper bound of the ratio; cispo 3, grpo 1.2, gspo 1.0004'),
  mask_low: setting(
    atLeastZero(),
    'importance_sampling: tokens with a smaller ratio carry no loss, and still count as tokens; none when missing. dppo and ipo: tokens whose probability fell by more; 0.2 and 0.1',
  ),
  mask_high: setting(positive(), 'the same for tokens with a larger ratio, or whose probability rose by more'),
  kl_tau: setting(atLeastZero(), 'of dppo and ipo: weight of (ln ρ)², 0.001'),
  max_ratio: setting(
    z.number().min(1).meta({ expected: 'a number ≥ 1' }),
    'of ipo and grpo: the largest weight that a ratio gives a token; one beyond it learns with this weight. None when missing',
  ),
  beta: setting(atLeastZero(), 'of dro: −A · ℓ + β/2 · (ln ρ)²; 0.05'),
  adv_tau: setting(atLeastZero(), 'weight of the reward’s advantage; 1, and 0 with `loss = "opd"`'),
  teacher_tau: setting(
    atLeastZero(),
    'weight of the teacher’s lead, log π_T − log π, beside the advantage; 0, and 1 with `loss = "opd"`',
  ),
  dr_grpo_tokens: setting(whole(1), 'of dr_grpo: what a rollout is divided by; `[sampling] max_tokens` when missing'),
  old_logprobs: setting(
    choice('sampler', 'trainer'),
    'whose log probabilities a ratio compares with: those a token was sampled with, or those of the weights that the step begins from, for which the trainer makes a forward pass more; `sampler` when missing',
  ),
  aggregation: setting(choice(...aggregations), 'how tokens are summed; `token` when missing, of gspo `sequence`'),
  entropy_coef: setting(
    positive(),
    'weight of a bonus for entropy: the mean over all tokens of −Σ p log p, however losses are summed; none when missing',
  ),
  import: setting(codeFile(), 'of type "custom": the file with the function'),
});

/** Alias of [trainer.loss] clip_high. */
export const otherClip = {
  clip_high: setting(positive(), 'another place for `[trainer.loss] clip_high`', {
    otherPlaceOf: 'trainer.loss.clip_high',
  }),
};

/** An advantage without settings may be written as a text: `advantage = "std_normalized"`. */
export const advantage = table({
  type: setting(
    choice(...advantageKinds, ...roleAdvantages, 'custom'),
    'reward − mean of the group, or that divided by its standard deviation (`std_normalized`) or by the mean (`max_rl`); of several trained agents of an episode, reward − running mean of the role (`rae`) or − mean of the role in its group or episode (`hierarchical_grpo`); a text will do',
    { default: 'centered' },
  ),
  decay: setting(
    z.number().min(0).lt(1).meta({ expected: 'a number from 0 to below 1' }),
    'of rae: what a role’s running mean keeps of itself at each further reward; 0.95 when missing',
  ),
  episode_agents: setting(
    z.array(z.string().min(1)).min(1).meta({ expected: 'a list of roles, as ["solver"]' }),
    'of hierarchical_grpo: roles that are compared within their episode; others are compared over their group',
  ),
  turns: setting(
    choice('returns', 'process'),
    'what turns learn from rewards of their own: `returns` compares what each and the turns after it were rewarded with the turns in its place, `process` adds up what each has over all turns of the group; when missing, all tokens of a rollout have its advantage',
  ),
  discount: setting(
    z.number().positive().max(1).meta({ expected: 'a number > 0 and ≤ 1' }),
    'with `turns`: what a reward counts one turn earlier; 1 when missing',
  ),
  import: setting(
    codeFile(),
    'of type "custom": the file with the function; for a rollout it gives a number, or a list with one per sampled token',
  ),
});

/** Formulas: core/rl/learning/turn-credit.ts. */
export const TurnCreditSpec = z.strictObject({ by: z.enum(['returns', 'process']), discount: z.number() });

export function turnCreditSpec({ trainer }: RatchetConfig): { turnCredit?: z.infer<typeof TurnCreditSpec> } {
  const { turns: by, discount = 1 } = trainer.advantage;
  return by === undefined ? {} : { turnCredit: { by, discount } };
}

/**
 * The advantage of each rollout in a group. centered subtracts the group's mean reward; std_normalized also divides by
 * the sample's standard deviation + 1e-4, max_rl by the mean; an import is a function (rewards, group) → advantages.
 * rae and hierarchical_grpo depend on the roles of agents (core/rl/rollout/agents.ts).
 */
export const AdvantageSpec = z.union([
  z.enum(advantageKinds),
  z.strictObject({ type: z.literal('rae'), decay: z.number() }),
  z.strictObject({ type: z.literal('hierarchical_grpo'), episodeAgents: z.array(z.string()) }),
  z.strictObject({ import: CodeRef }),
]);
export type AdvantageSpec = z.infer<typeof AdvantageSpec>;

/** Whether the trained agents of an episode count by themselves. */
export function isByRole({ trainer }: Pick<RatchetConfig, 'trainer'>): boolean {
  return roleAdvantages.some((type) => type === trainer.advantage.type);
}

export function advantageSpec({ trainer: { advantage } }: RatchetConfig): AdvantageSpec {
  const { type } = advantage;
  if (type === 'custom') return { import: codeRef(advantage.import) };
  if (type === 'rae') return { type, decay: advantage.decay ?? 0.95 };
  return type === 'hierarchical_grpo' ? { type, episodeAgents: advantage.episode_agents ?? [] } : type;
}

/**
 * The policy loss. Per token, with ρ = exp(ℓ − μ), advantage A and sg = stop-gradient:
 *
 *     cispo                −sg(min(ρ, clipHigh)) · A · ℓ               (MiniMax-M1, 2025, eq. 4)
 *     grpo                 −min(ρ·A, clip(ρ, clipLow, clipHigh)·A)     (PPO, Schulman et al. 2017, eq. 7); with ratioMax as in ipo
 *     importance_sampling  −ρ · A where maskLow ≤ ρ ≤ maskHigh, else 0 (verifiers' RLTrainer); the token still counts in
 *                          the aggregation's denominator
 *     dppo                 −ρ · A, none where π − μ > maskHigh at A > 0 or π − μ < −maskLow at A ≤ 0 (probabilities, not their
 *                          logs), + klTau · (ln ρ)² of every token (prime-rl's default from April to August 2026)
 *     ipo                  like dppo, but none where π − μ is outside −maskLow … maskHigh, whatever A is; with ratioMax a
 *                          token beyond it has that weight: −min(ρ, ratioMax) · A, whose gradient is
 *                          −min(ρ, ratioMax) · A · ∇ℓ (prime-rl's "ipo", its default since 27 August 2026)
 *     gspo                 −min(s·A, clip(s, clipLow, clipHigh)·A), where s = exp(mean over the row's tokens of ln ρ); its
 *                          gradient reaches each token through its own ρ: sg(s/ρ)·ρ (Zheng et al. 2025, Group Sequence
 *                          Policy Optimization, eq. 5–7 and, for advantages of tokens, 13–14)
 *     dro                  −A · ℓ + klTau · (ln ρ)²                    (Richemond et al. 2024; Tinker's "dro", klTau = β / 2)
 *     cross_entropy        −ℓ, whatever A and the sampler are: supervised, at temperature 1
 *     custom               the result of the imported function
 *
 * The advantage A is advantageTau · A + teacherTau · sg(log π_T − ℓ), both times the correction, with a teacher's log
 * probabilities π_T (prime-rl's adv_tau and teacher_tau). The values 0 and 1 are on-policy distillation, and ipo with only its
 * lower bound is then the loss of prime-rl's "opd".
 *
 * entropyCoef c subtracts c · mean of H from the loss of a batch, H = −Σ p log p at the sampling temperature. The mean is over
 * the tokens that count, whatever the aggregation is (TRL's entropy_coef, trainer/grpo_trainer.py; verl's entropy_coeff with
 * losses summed by token; Mnih et al. 2016, Asynchronous Methods for Deep RL, §4).
 */
export const LossSpec = z.strictObject({
  type: z.enum([...policyLosses, 'cross_entropy']),
  /** Lower bound of the ratio, ρ in grpo (1 − ε_low) and s in gspo; cispo has none. */
  clipLow: z.number().min(0).default(0),
  /** Upper bound of the ratio: 1 + ε_high in grpo and gspo. */
  clipHigh: z.number().positive(),
  /**
   * In importance_sampling: bounds of the ratio ρ; a token outside carries no loss. 0 and null = unbounded. In dppo and
   * ipo: largest decrease and increase of a token's probability; null = unbounded.
   */
  maskLow: z.number().min(0).default(0),
  maskHigh: z.number().positive().nullable().default(null),
  /** Used by dppo and ipo, and by dro, where it is half of β. */
  klTau: z.number().min(0).default(0),
  /** The largest weight of a ratio, in ipo and grpo. Absent = none. */
  ratioMax: z.number().min(1).optional(),
  /** Factors of the reward's advantage, and of the teacher's log probability minus the policy's. */
  advantageTau: z.number().min(0).default(1),
  teacherTau: z.number().min(0).default(0),
  /**
   * token = Σ over the batch / Σ mask; sequence = mean over rollouts of (Σ / Σ mask of the rollout);
   * dr_grpo = Σ / (rollouts · maxTokens) (Liu et al. 2025, Understanding R1-Zero-like training).
   */
  aggregation: z.enum(aggregations),
  /**
   * Source of μ: the sampler, or the weights at the start of the step, as in GRPO trainers whose server reports no log
   * probabilities (verifiers until 0.1.6). In the latter case ρ is 1 in the first pass, and `correction` has the
   * weights for the sampling distribution.
   */
  oldLogprobs: z.enum(['sampler', 'trainer']).default('sampler'),
  /** Absent = no bonus. */
  entropyCoef: z.number().positive().optional(),
  /** Divisor of dr_grpo: the sampling's maxTokens by default. */
  maxTokens: z.int().positive().nullable().default(null),
  /**
   * Correction of the advantages before any loss, for tokens from another distribution
   * (core/rl/learning/correction.ts).
   */
  correction: CorrectionSpec.prefault({}),
  /** Code of a custom loss; else null. */
  import: CodeRef.nullable().default(null),
});
export type LossSpec = z.infer<typeof LossSpec>;

/** Default bounds of the ratio: PPO's ε = 0.2 on either side; cispo has no lower one. gspo's are the paper's. */
const defaultClips: Readonly<Record<string, { low: number; high: number }>> = {
  cispo: { low: 0, high: 3 },
  gspo: { low: 1 - 3e-4, high: 1 + 4e-4 },
};
const defaultClip = { low: 0.8, high: 1.2 };

/** prime-rl's defaults for its own losses; on-policy distillation is ipo with only its lower bound. */
const defaultMasks: Readonly<Record<string, { low: number; high: number | null; klTau: number }>> = {
  dppo: { low: 0.2, high: 0.2, klTau: 1e-3 },
  ipo: { low: 0.1, high: 0.1, klTau: 1e-3 },
  opd: { low: 0.2, high: null, klTau: 1e-3 },
};

/** Value in Tinker's example. */
const droBeta = 0.05;

/** The written type, or the default of the run's kind. */
export function lossTypeOf(config: Pick<RatchetConfig, 'loss' | 'env' | 'trainer' | 'data'>): LossSpec['type'] {
  const kind = kindOfLoss(config);
  if (kind === 'sft' || config.data !== undefined) return 'cross_entropy';
  return config.trainer.loss.type ?? (kind === 'opd' ? 'ipo' : 'cispo');
}

type Kind = RatchetConfig['loss'];

export function kindOfEnvironment(
  { loss }: Pick<RatchetConfig, 'loss'>,
  entry: Pick<RatchetConfig['env'][number], 'loss'>,
): Kind {
  return entry.loss ?? loss;
}

/** Kinds of the run's environments; without environments, the run's own. */
export function kindsOf(config: Pick<RatchetConfig, 'loss' | 'env'>): ReadonlySet<Kind> {
  return new Set(config.env.length === 0 ? [config.loss] : config.env.map((entry) => kindOfEnvironment(config, entry)));
}

/** The kind of the run's own loss: rewards, if any environment learns from them. */
export function kindOfLoss(config: Pick<RatchetConfig, 'loss' | 'env'>): Kind {
  const [first = config.loss, ...others] = kindsOf(config);
  return others.length === 0 ? first : 'rl';
}

/** Whether training needs advantages: it uses no teacher's rollouts or log probabilities. */
export function learnsFromRewards(config: Pick<RatchetConfig, 'loss' | 'env' | 'trainer' | 'data'>): boolean {
  return config.data === undefined && kindOfLoss(config) === 'rl' && (config.trainer.loss.teacher_tau ?? 0) === 0;
}

export function lossSpec(config: RatchetConfig): LossSpec {
  const { trainer, sampling } = config;
  const kind = kindOfLoss(config);
  const { clip_low, mask_low, mask_high, kl_tau, adv_tau, teacher_tau, aggregation, import: file } = trainer.loss;
  const { beta = droBeta } = trainer.loss;
  const type = lossTypeOf(config);
  const isDefaultOpd = kind === 'opd' && trainer.loss.type === undefined;
  const masks = defaultMasks[isDefaultOpd ? 'opd' : type] ?? { low: 0, high: null, klTau: 0 };
  const clip = defaultClips[type] ?? defaultClip;
  return {
    type,
    clipLow: clip_low ?? clip.low,
    clipHigh: trainer.loss.clip_high ?? trainer.clip_high ?? clip.high,
    maskLow: mask_low ?? masks.low,
    maskHigh: mask_high ?? masks.high,
    klTau: type === 'dro' ? beta / 2 : (kl_tau ?? masks.klTau),
    advantageTau: adv_tau ?? (kind === 'opd' ? 0 : 1),
    teacherTau: teacher_tau ?? (kind === 'opd' ? 1 : 0),
    aggregation: aggregation ?? (lossTraits(type).comparesRows ? 'sequence' : 'token'),
    oldLogprobs: trainer.loss.old_logprobs ?? 'sampler',
    maxTokens: trainer.loss.dr_grpo_tokens ?? sampling.max_tokens,
    ...present({ entropyCoef: trainer.loss.entropy_coef, ratioMax: trainer.loss.max_ratio }),
    correction: correctionSpec(trainer.correction),
    import: file === undefined ? null : codeRef(file),
  };
}

/**
 * Loss of environments that are trained on a teacher alone, beside others: prime-rl's, whatever `[trainer.loss]` says
 * (trainer/rl/loss.py, `ref_kl_loss_fn`).
 */
export function distillationSpec(config: RatchetConfig): { distillation?: LossSpec } {
  if (kindsOf(config).size < 2) return {};
  const { entropyCoef: _, ...ofRun } = lossSpec(config);
  const { low, high, klTau } = defaultMasks['opd']!;
  const own = { type: 'ipo', maskLow: low, maskHigh: high, klTau, advantageTau: 0, teacherTau: 1 } as const;
  const clip = { clipLow: defaultClip.low, clipHigh: defaultClip.high };
  return { distillation: { ...ofRun, ...clip, ...own, import: null } };
}

const asking = {
  headers: setting(headerTable(), 'sent with every request; none with a key in it', { default: {} }),
  timeout: setting(positive(), 'seconds a request may take; then it is asked again', {
    default: inferenceTimeoutDefaultS,
    as: 'timeoutS',
  }),
  max_concurrent: setting(whole(1), 'prompts in flight at one server', { default: inferenceConcurrencyDefault }),
};

export const teacher = optionalTable({
  model: setting(
    text(),
    'what its servers call it; without `url` a folder of weights, which the run’s policy servers hold beside the policy',
  ),
  url: setting(
    serverUrls(),
    'its servers, OpenAI-compatible; one that scores must give `prompt_logprobs`, as vLLM and Ratchet’s own do',
  ),
  endpoint_id: setting(text(), 'in place of `model` and `url`: an alias of `endpoints_path`'),
  endpoints_path: setting(
    text(),
    '`endpoints.toml`, there on every machine with workers; `./configs/endpoints.toml` when missing',
  ),
  api_key_var: setting(
    variableName(),
    'the name of the environment variable with its key; of known APIs their usual one when missing',
  ),
  demonstration: setting(
    text(),
    'in place of `model`, with `loss = "opd"`: the policy teaches itself, by what it would say if it were told how it is done. The name of what tells it, in an example’s `info`, or "answer"',
  ),
  template: setting(
    text(),
    'with `demonstration`: the system message before a rollout that tells it, `{demonstration}` in it; as prime-rl has it when missing',
  ),
  ...asking,
  /** Overrides [sampling] for a teacher that generates the rollouts. */
  sampling: optionalTable({
    ...samplingSettings({ reasoning_effort: 'the same, as a field of the request' }),
    max_tokens: setting(whole(1), 'of the teacher, with `loss = "sft"`, in place of `[sampling]`'),
  }),
});

/** A stronger model as the policy's teacher. */
export const TeacherSpec = z.strictObject({
  /**
   * samples: the teacher generates the rollouts, and the policy imitates them (cross_entropy). scores: the policy
   * generates them, and the teacher reports the log probability of each token (LossSpec.teacherTau).
   */
  role: z.enum(['samples', 'scores']),
  /** Absolute path of a folder of weights, which the run's policy servers hold beside the policy's; null = it has servers. */
  folder: z.string().min(1).nullable(),
  /** The servers' name for it; null = named by the alias, or a folder. */
  model: z.string().min(1).nullable(),
  /** Base URLs of the teacher's servers. */
  urls: z.array(z.url()),
  /** Replaces `urls`. */
  endpoints: EndpointsRef.nullable(),
  /** Name of the environment variable with their key; null = no key is needed. */
  apiKeyVar: z.string().nullable(),
  ...specFields(asking),
  /** Sampling of the teacher's rollouts; unused if it only scores. */
  sampling: SamplingSpec,
  /** The policy is its own teacher: each row is scored after a system message with the demonstration of its example. */
  demonstration: z.strictObject({ key: z.string().min(1), template: z.string().min(1) }).optional(),
});
export type TeacherSpec = z.infer<typeof TeacherSpec>;

/** Without servers its model is a folder. */
export function teacherSpec({ loss, teacher, sampling }: RatchetConfig): TeacherSpec | null {
  if (teacher === undefined) return null;
  const { model = null, url = [], endpoint_id, api_key_var: key } = teacher;
  const urls = [url].flat();
  const isFolder = urls.length === 0 && endpoint_id === undefined && teacher.demonstration === undefined;
  return {
    role: loss === 'sft' ? 'samples' : 'scores',
    folder: isFolder ? model : null,
    model: isFolder || endpoint_id !== undefined ? null : model,
    urls,
    endpoints: endpointsSpec(teacher),
    apiKeyVar: keyVariable(key, urls[0] === undefined ? null : defaultKey(urls[0])),
    ...inSpec(asking, teacher),
    sampling: samplingSpec(laidOver(sampling, teacher.sampling)),
    ...(teacher.demonstration !== undefined && {
      demonstration: { key: teacher.demonstration, template: teacher.template ?? demonstrationTemplate },
    }),
  };
}

/** prime-rl's template (OPSDAlgoConfig), so that its files keep their meaning. */
const demonstrationTemplate =
  'Here is an example of an expert response:\n<demonstration>\n{demonstration}\n</demonstration>';
