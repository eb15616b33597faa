/**
 * The thresholds of `ratchet check`, `ratchet baseline` and `ratchet advise`, each with its source. They are rules of thumb:
 * they show where to look, and prove nothing.
 *
 *     [V]  verifiers, docs/training, "RL Rules of Thumb" and "Common Issues"
 *     [H]  Hosted Training, configuration page, "Best Practices" and "Common Issues"
 *     [P]  prime-rl's and tinker-cookbook's users: group ≥ 8, batch ≥ 64, reward from 10 to 80 % before training, errors above 5 %
 *     [G]  verifiers before v0.1.7, GRPO trainer page, "RL Rules of Thumb": the values in its GRPOConfig
 *     [M]  "Training & Evaluation with Prime-RL", tables of parameters
 *     [D]  DAPO (Yu et al. 2025), §3.2: a group whose rewards are equal has no gradient; §3.1: entropy collapse
 *     [S]  Schulman, "Approximating KL divergence", and PPO (2017): how far one update may go
 *     [R]  ours: chosen so that the learning runs of configs/rl cause no finding, and deliberately broken ones do
 */
export const rules = {
  /** Attempts from which a reward of 0 means too hard. [V] "0% reward after 10+ attempts" */
  attemptsMin: 10,
  /** Mean reward from which it is too easy. [V] "already 80%+", [H] */
  tooEasyReward: 0.8,
  /** Mean reward below which little is learned. [P] */
  hardReward: 0.1,
  /**
   * Share of groups with unequal rewards below which most of the sampling is wasted. [V] "varied scores within each
   * group", [D]; the figure [R]
   */
  diverseGroupsMin: 0.3,
  /** Limit on the share of truncated answers. [R] */
  truncatedMax: 0.1,
  /** Share of rollouts lost to infrastructure. [P] */
  failedMax: 0.05,
  /** Share of different answers within a group, below which sampling hardly explores. [R] */
  distinctAnswersMin: 0.5,
  /** Temperatures that give groups diversity. [V] "High temperature (0.8-1.0) increases diversity within groups" */
  temperature: { low: 0.8, high: 1 },
  /** Temperature below which the rollouts of a group are too similar. [M] "0.5-1.0; higher = more diverse rollouts" */
  temperatureMin: 0.5,
  /** Rollouts per group. [P]; [V] names 16-32 for more diversity */
  groupSizeMin: 8,
  /** Rollouts per step. [P] */
  batchSizeMin: 64,

  /** Range for pretrained models. [V] "1e-5 to 1e-4 for LoRA, 1e-6 to 1e-5 for full finetuning" */
  learningRate: { lora: { low: 1e-5, high: 1e-4 }, full: { low: 1e-6, high: 1e-5 } },
  /** Parameters below which models take several times those rates. [R] */
  learningRateParametersMin: 0.5e9,
  /** Steps of warm-up. [G] "10-20 steps minimum" */
  warmupStepsMin: 10,
  /**
   * Share of the run above which a warm-up is no longer advised: a short run would spend most of its steps in it. [R]
   */
  warmupShareMax: 0.2,
  /** Coefficient of the KL penalty above which little is learned. [G] "High beta values (0.1+) - more conservative" */
  klBetaMax: 0.1,
  /** LoRA's alpha ÷ rank. [M] "Often same as rank or 2x rank" */
  loraAlphaShare: { low: 1, high: 2 },
  /** Ranks of LoRA. [M] "16-64 typical" */
  loraRank: { low: 16, high: 64 },
  /** Passes over a batch from which the policy leaves the one that sampled it. [G] "num_iterations (2-4)" to be aggressive, 1 to be stable */
  iterationsMax: 4,
  /** Bound of the gradient norm that steadies a run. [G] "Decrease max_grad_norm (0.001-0.005)" */
  maxGradNormStable: { low: 0.001, high: 0.005 },
  /** Group sizes of the oldest trainer for stability. [G] "num_generations (32-64)" */
  groupSizeStable: { low: 32, high: 64 },
  /** Parameters from which models train more calmly. [V] "larger models (14B+)" */
  calmModelParameters: 14e9,
  /** Part of a GPU's memory that the policy server takes. [M] "0.6-0.9 typical" */
  gpuMemoryUtilization: { low: 0.6, high: 0.9 },
  /** The largest variance that rewards from 0 to 1 can have: half of the group at either end. Arithmetic, not opinion. */
  rewardVarianceMax: 0.25,
  /** Share of the mixed groups of right and wrong answers below which a filter drops nearly everything. [R] */
  mixedGroupsKeptMin: 0.25,

  /** Steps from which a series is judged. [R] */
  stepsMin: 10,
  /** Entropy now ÷ at first, below which it has collapsed, unless nearly all is solved. [D]; the figure [R] */
  entropyShareMin: 0.1,
  /** Nats per token from the reference from which the policy is another one; [H] sets target_kl = 0.01. The figure [R] */
  klMax: 1,
  /** KL relative to the middle of the run from which it runs away, if above `klRunaway.least`. [R] */
  klRunaway: { factor: 5, least: 0.1 },
  /** Gradient norm ÷ the median of the steps before, and share of steps with such a spike. [R] */
  gradientSpike: { factor: 5, share: 0.05, least: 2 },
  /** Share of tokens outside of the clip range. [S]; the figure [R] */
  clippedMax: 0.2,
  /** Nats per token between sampler and trainer, beyond what one step's staleness explains. [R] */
  mismatchKlMax: 0.05,
  /** Versions between sampling and training, on average. [R] */
  offPolicyMax: 2,
  /** Share of groups without signal. [D]; the figure [R] */
  rejectedGroupsMax: 0.6,
  /** Share of groups dropped from which sampling rounds repeat: fewer than half a batch is kept, as `collectStep` samples. */
  starvationShare: 0.75,
  /** Share of a step that generation, or training, takes while the other one waits. [R] */
  boundShare: 0.7,
  /** Effective training time. ByteRobust reports 0.97 for three months on 9,600 GPUs. [R] */
  ettrMin: 0.9,
  /** Standard errors between two means from which they differ. */
  standardErrors: 3,
  /** Fall of the reward from its best stretch, as a share of it, that counts as one. [R] */
  fallShare: 0.15,
} as const;

/** Names of the sources above, for messages. */
export const ruleSources = {
  V: 'verifiers, RL Rules of Thumb',
  G: 'verifiers before v0.1.7, RL Rules of Thumb',
  M: 'Training & Evaluation with Prime-RL',
  P: 'rules that prime-rl and tinker-cookbook users trust',
  arithmetic: 'arithmetic',
} as const;

/** An observation with its figures, its cause, and what to change. */
export interface Finding {
  /** `stop`: training is useless like this; `look`: it may be; `note`: good to know. */
  readonly level: 'stop' | 'look' | 'note';
  readonly symptom:
    | 'too hard'
    | 'too easy'
    | 'little signal'
    | 'unstable'
    | 'slow'
    | 'no learning'
    | 'lost work'
    | 'settings';
  /** The environment's name, or the run. */
  readonly about: string;
  /** In words, with numbers and their steps. */
  readonly evidence: string;
  readonly causes: readonly string[];
  /** Changes to the run file, or actions. */
  readonly change: readonly string[];
}

/** Most urgent first. */
export function byUrgency<F extends Pick<Finding, 'level'>>(findings: readonly F[]): F[] {
  const order = ['stop', 'look', 'note'];
  return findings.toSorted((a, b) => order.indexOf(a.level) - order.indexOf(b.level));
}
