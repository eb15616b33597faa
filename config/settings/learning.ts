import { z } from 'zod';
import { present } from '../../core/present.ts';
import { usualKey } from '../../core/eval/model-servers.ts';
import { inferenceConcurrencyDefault, inferenceTimeoutDefaultS } from '../../core/limits.ts';
import { headerTable, keyVariable, serverUrls, variableName } from '../model-access.ts';
import { atLeastZero, choice, positive, text, whole } from '../values.ts';
import { codeFile, CodeRef, codeRef } from './code.ts';
import { correctionSpec, CorrectionSpec } from './correction.ts';
import type { RatchetConfig } from './index.ts';
import { laidOver, samplingSettings, SamplingSpec, samplingSpec } from './sampling.ts';
import { EndpointsRef, endpointsSpec } from './server-pool.ts';
import { inSpec, optionalTable, setting, specFields, table } from './setting.ts';

export { LengthPenaltySpec, OverlongPenaltySpec } from './length-penalty.ts';

/** What a run learns from, `loss`, and by which loss, `[trainer.loss]` and `[trainer.advantage]`, and from whom, `[teacher]`. */

export const kindOfRun = {
  loss: setting(
    choice('rl', 'sft', 'opd'),
    'what is learned from: rewards, what a `[teacher]` says (`sft`), or its log probabilities of what the policy says (`opd`); for the loss function see `[trainer.loss]`',
    { default: 'rl' },
  ),
};

const lossTypes = ['cispo', 'grpo', 'importance_sampling', 'dppo', 'ipo', 'gspo', 'dro', 'custom'] as const;
const aggregations = ['token', 'sequence', 'dr_grpo'] as const;

/** A loss without settings may be written as a text: `loss = "grpo"`. */
export const loss = table({
  type: setting(
    choice(...lossTypes),
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

/** Another place for [trainer.loss] clip_high. */
export const otherClip = {
  clip_high: setting(positive(), 'another place for `[trainer.loss] clip_high`', {
    otherPlaceOf: 'trainer.loss.clip_high',
  }),
};

/** What an advantage may be without code of the user's. */
export const advantageKinds = ['centered', 'std_normalized', 'max_rl'] as const;
/** Of episodes of several trained agents, each by its role (core/rl/agents.ts). */
export const roleAdvantages = ['rae', 'hierarchical_grpo'] as const;
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

/** The formulas stand in core/rl/turn-credit.ts. */
export const TurnCreditSpec = z.strictObject({ by: z.enum(['returns', 'process']), discount: z.number() });

export function turnCreditSpec({ trainer }: RatchetConfig): { turnCredit?: z.infer<typeof TurnCreditSpec> } {
  const { turns: by, discount = 1 } = trainer.advantage;
  return by === undefined ? {} : { turnCredit: { by, discount } };
}

/**
 * What each rollout of a group gets. centered subtracts the group's mean reward; std_normalized also divides by
 * the sample's standard deviation + 1e-4, max_rl by the mean; an import is a function (rewards, group) → advantages. rae and
 * hierarchical_grpo are by the roles of agents (core/rl/agents.ts).
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
 *                          what the aggregation divides by
 *     dppo                 −ρ · A, none where π − μ > maskHigh at A > 0 or π − μ < −maskLow at A ≤ 0 (probabilities, not their
 *                          logs), + klTau · (ln ρ)² of every token (prime-rl's default from April to August 2026)
 *     ipo                  the same, none where π − μ lies outside −maskLow … maskHigh, whatever A is; with ratioMax a token beyond it
 *                          has that weight: −min(ρ, ratioMax) · A, whose gradient is −min(ρ, ratioMax) · A · ∇ℓ (prime-rl's "ipo", its
 *                          default since 27 August 2026)
 *     gspo                 −min(s·A, clip(s, clipLow, clipHigh)·A), where s = exp(mean over the row's tokens of ln ρ); its gradient
 *                          reaches each token through its own ρ: sg(s/ρ)·ρ (Zheng et al. 2025, Group Sequence Policy
 *                          Optimization, eq. 5–7 and, for advantages of tokens, 13–14)
 *     dro                  −A · ℓ + klTau · (ln ρ)²                    (Richemond et al. 2024; Tinker's "dro", klTau = β / 2)
 *     cross_entropy        −ℓ, whatever A is and whoever sampled: supervised, at temperature 1
 *     custom               what the imported function gives
 *
 * What stands for A is advantageTau · A + teacherTau · sg(log π_T − ℓ), both times the correction, with a teacher's log probabilities π_T (prime-rl's
 * adv_tau and teacher_tau). With 0 and 1 it is on-policy distillation, and ipo with its lower bound alone is then the loss of
 * prime-rl's "opd".
 *
 * With entropyCoef c the loss of a batch is that less c · mean of H, H = −Σ p log p at the sampling temperature, over its tokens that
 * count, whatever the aggregation is (TRL's entropy_coef, trainer/grpo_trainer.py; verl's entropy_coeff where losses are summed by token;
 * Mnih et al. 2016, Asynchronous Methods for Deep RL, §4).
 */
export const LossSpec = z.strictObject({
  type: z.enum([...lossTypes, 'cross_entropy']),
  /** Lower bound of the ratio, ρ in grpo (1 − ε_low) and s in gspo; cispo has none. */
  clipLow: z.number().min(0).default(0),
  /** Upper bound of the ratio: 1 + ε_high in grpo and gspo. */
  clipHigh: z.number().positive(),
  /**
   * Of importance_sampling: a token whose ratio ρ lies outside carries no loss. 0 and null = no bound. Of dppo and ipo: how far a
   * token's probability may move down, and up; null = as far as it likes.
   */
  maskLow: z.number().min(0).default(0),
  maskHigh: z.number().positive().nullable().default(null),
  /** Of dppo, ipo and dro, whose β it is half of. */
  klTau: z.number().min(0).default(0),
  /** The largest weight that a ratio gives a token, in ipo and grpo. Absent = none. */
  ratioMax: z.number().min(1).optional(),
  /** Of the reward's advantage, and of the teacher's lead over the policy. */
  advantageTau: z.number().min(0).default(1),
  teacherTau: z.number().min(0).default(0),
  /**
   * token = Σ over the batch / Σ mask; sequence = mean over rollouts of (Σ / Σ mask of the rollout);
   * dr_grpo = Σ / (rollouts · maxTokens) (Liu et al. 2025, Understanding R1-Zero-like training).
   */
  aggregation: z.enum(aggregations),
  /**
   * Whose μ is: of what sampled, or of the weights that the step begins from, as GRPO trainers without log probabilities of their server
   * take it (verifiers until 0.1.6). Then ρ is 1 in the first pass, and `correction` has the weights for what was drawn from.
   */
  oldLogprobs: z.enum(['sampler', 'trainer']).default('sampler'),
  /** Absent where there is no bonus. */
  entropyCoef: z.number().positive().optional(),
  /** What dr_grpo divides by: the sampling's maxTokens unless the config names another. */
  maxTokens: z.int().positive().nullable().default(null),
  /** What is made of the advantages before any loss, where tokens were drawn from another distribution (core/rl/correction.ts). */
  correction: CorrectionSpec.prefault({}),
  /** Of a custom loss; null otherwise. */
  import: CodeRef.nullable().default(null),
});
export type LossSpec = z.infer<typeof LossSpec>;

/** Bounds of the ratio where the config names none: PPO's ε = 0.2 on either side; cispo has no lower one. gspo's are the paper's. */
const defaultClips: Readonly<Record<string, { low: number; high: number }>> = {
  cispo: { low: 0, high: 3 },
  gspo: { low: 1 - 3e-4, high: 1 + 4e-4 },
};
const usualClip = { low: 0.8, high: 1.2 };

/** prime-rl's, of the losses that are its own; on-policy distillation is ipo that leaves out only what fell. */
const defaultMasks: Readonly<Record<string, { low: number; high: number | null; klTau: number }>> = {
  dppo: { low: 0.2, high: 0.2, klTau: 1e-3 },
  ipo: { low: 0.1, high: 0.1, klTau: 1e-3 },
  opd: { low: 0.2, high: null, klTau: 1e-3 },
};

/** That of Tinker's example. */
const droBeta = 0.05;

/** The type that is written, or what the kind of run asks for. */
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

/** What the environments of a run are learned from; of a run without any what it says itself. */
export function kindsOf(config: Pick<RatchetConfig, 'loss' | 'env'>): ReadonlySet<Kind> {
  return new Set(config.env.length === 0 ? [config.loss] : config.env.map((entry) => kindOfEnvironment(config, entry)));
}

/** The kind that the run's own loss is of: that of rewards where they are learned from in any environment. */
export function kindOfLoss(config: Pick<RatchetConfig, 'loss' | 'env'>): Kind {
  const [first = config.loss, ...others] = kindsOf(config);
  return others.length === 0 ? first : 'rl';
}

/** Whether what is trained asks for advantages: without a teacher's rollouts or log probabilities. */
export function learnsFromRewards(config: Pick<RatchetConfig, 'loss' | 'env' | 'trainer' | 'data'>): boolean {
  return config.data === undefined && kindOfLoss(config) === 'rl' && (config.trainer.loss.teacher_tau ?? 0) === 0;
}

export function lossSpec(config: RatchetConfig): LossSpec {
  const { trainer, sampling } = config;
  const kind = kindOfLoss(config);
  const { clip_low, mask_low, mask_high, kl_tau, adv_tau, teacher_tau, aggregation, import: file } = trainer.loss;
  const { beta = droBeta } = trainer.loss;
  const type = lossTypeOf(config);
  const isUsualOpd = kind === 'opd' && trainer.loss.type === undefined;
  const usual = defaultMasks[isUsualOpd ? 'opd' : type] ?? { low: 0, high: null, klTau: 0 };
  const clip = defaultClips[type] ?? usualClip;
  return {
    type,
    clipLow: clip_low ?? clip.low,
    clipHigh: trainer.loss.clip_high ?? trainer.clip_high ?? clip.high,
    maskLow: mask_low ?? usual.low,
    maskHigh: mask_high ?? usual.high,
    klTau: type === 'dro' ? beta / 2 : (kl_tau ?? usual.klTau),
    advantageTau: adv_tau ?? (kind === 'opd' ? 0 : 1),
    teacherTau: teacher_tau ?? (kind === 'opd' ? 1 : 0),
    aggregation: aggregation ?? (type === 'gspo' ? 'sequence' : 'token'),
    oldLogprobs: trainer.loss.old_logprobs ?? 'sampler',
    maxTokens: trainer.loss.dr_grpo_tokens ?? sampling.max_tokens,
    ...present({ entropyCoef: trainer.loss.entropy_coef, ratioMax: trainer.loss.max_ratio }),
    correction: correctionSpec(trainer.correction),
    import: file === undefined ? null : codeRef(file),
  };
}

/** Of environments that are learned from a teacher beside others: prime-rl's, whatever `[trainer.loss]` says (trainer/rl/loss.py, `ref_kl_loss_fn`). */
export function distillationSpec(config: RatchetConfig): { distillation?: LossSpec } {
  if (kindsOf(config).size < 2) return {};
  const { entropyCoef: _, ...ofRun } = lossSpec(config);
  const { low, high, klTau } = defaultMasks['opd']!;
  const own = { type: 'ipo', maskLow: low, maskHigh: high, klTau, advantageTau: 0, teacherTau: 1 } as const;
  const clip = { clipLow: usualClip.low, clipHigh: usualClip.high };
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
  /** Lies over [sampling], where it plays the rollouts. */
  sampling: optionalTable({
    ...samplingSettings({ reasoning_effort: 'the same, as a field of the request' }),
    max_tokens: setting(whole(1), 'of the teacher, with `loss = "sft"`, in place of `[sampling]`'),
  }),
});

/** A stronger model that the policy learns from. */
export const TeacherSpec = z.strictObject({
  /**
   * samples: it plays the rollouts, and the policy learns to say what it said (cross_entropy).
   * scores: the policy plays them, and the teacher says how likely it would have found each token (LossSpec.teacherTau).
   */
  role: z.enum(['samples', 'scores']),
  /** Absolute path of a folder of weights, which the run's policy servers hold beside the policy's; null = it has servers. */
  folder: z.string().min(1).nullable(),
  /** What its servers call it; null = as the alias says, or it is a folder. */
  model: z.string().min(1).nullable(),
  /** Base URLs of its servers. */
  urls: z.array(z.url()),
  /** In place of `urls`. */
  endpoints: EndpointsRef.nullable(),
  /** Name of the environment variable with their key; null = they ask for none. */
  apiKeyVar: z.string().nullable(),
  ...specFields(asking),
  /** How it is sampled; where it only scores, nothing is. */
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
    apiKeyVar: keyVariable(key, urls[0] === undefined ? null : usualKey(urls[0])),
    ...inSpec(asking, teacher),
    sampling: samplingSpec(laidOver(sampling, teacher.sampling)),
    ...(teacher.demonstration !== undefined && {
      demonstration: { key: teacher.demonstration, template: teacher.template ?? demonstrationTemplate },
    }),
  };
}

/** prime-rl's (OPSDAlgoConfig), so that its files mean the same. */
const demonstrationTemplate =
  'Here is an example of an expert response:\n<demonstration>\n{demonstration}\n</demonstration>';
