import { samplePolicy, turnSeed } from '../play/policy/sample-policy.ts';
import { openEnvironment } from '../backends/environments/index.ts';
import { scoreRollout } from '../backends/environments/score.ts';
import type { Environment } from '../backends/environments/types.ts';
import type { Inference } from '../backends/inference/index.ts';
import type { ServedPolicy } from '../core/rl/run-state.ts';
import { samplingRoundsMax } from '../core/limits.ts';
import { randomStream } from '../core/random.ts';
import { initialCurriculum, leaseGroups } from '../core/rl/sampling/curriculum.ts';
import { judgeGroup } from '../core/rl/filters/difficulty.ts';
import { packSamples } from '../test/core/rl/pack-samples.ts';
import type { Example, ScoredGroup, ScoredRollout } from '../core/rl/rollout/rollout.ts';
import { learningRateAt } from '../core/rl/sampling/schedule.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { EngineOptimizer, loadTokenizer, mergeAdapter, type Parameters, Sampler } from '../engine/index.ts';
import { mean } from './statistics.ts';

export interface Score {
  readonly reward: number;
  readonly exact: number;
}

export interface ControlResult {
  readonly before: Score;
  readonly after: Score;
  /** Fewer than the run's when no group carried a signal any more. */
  readonly steps: number;
}

/**
 * The control of an RL run, of all weights or of an adapter: the same recipe from the same v0, but every round's rewards are dealt out anew among all its
 * rollouts. Gains from such rewards do not come from the task. The product has no such switch, so this is the
 * engine's own loop, outside Temporal: same curriculum, random numbers, filter, advantages, schedule and staleness.
 */
export async function trainOnShuffledRewards(
  spec: RunSpec,
  weights: string,
  say: (line: string) => void,
): Promise<ControlResult> {
  const [entry, ...others] = spec.environments;
  if (!entry || others.length > 0 || spec.oversamplingFactor !== 1 || spec.kl.beta !== 0) {
    throw new Error('The control knows one environment, no oversampling and no KL penalty.');
  }
  if (spec.trainer.kind !== 'onnx') throw new Error('The control trains with the embedded engine.');
  const { threads } = spec.trainer;
  const trainer = await EngineOptimizer.open(weights, { threads, lora: spec.lora, seed: spec.seed });
  const sampler = await Sampler.open(trainer.model.config, { threads });
  const environment = await openEnvironment(entry);
  const policy = sampledWeights(trainer);
  const { play, evaluate } = await openPlayers({ spec, weights, policy, sampler, environment });
  const groupsPerBatch = spec.batchSize / spec.rolloutsPerExample;
  let curriculum = initialCurriculum;

  /** Rounds until half a batch carries a signal, as a run does; null when none does. */
  const collect = async (step: number): Promise<ScoredGroup[] | null> => {
    const kept: ScoredGroup[] = [];
    for (let rounds = 0; rounds < samplingRoundsMax; rounds++) {
      const leased = leaseGroups(curriculum, {
        count: groupsPerBatch - kept.length,
        environments: [{ ...entry, datasetLength: environment.dataset.length }],
        seed: spec.seed,
        policyStep: step - 1,
      });
      curriculum = leased.state;
      const groups = await Promise.all(
        leased.leases.map(async (lease) => ({
          ...lease,
          rollouts: await Promise.all(
            Array.from({ length: spec.rolloutsPerExample }, (_, index) =>
              play(environment.dataset.at(lease.exampleId), lease.ordinal, index),
            ),
          ),
        })),
      );
      kept.push(
        ...shuffleRewards(groups, spec.seed, step).filter((group) => judgeGroup(rewardsOf(group), spec.filter).kept),
      );
      if (kept.length * 2 >= groupsPerBatch) return kept;
    }
    return null;
  };

  const before = await evaluate();
  let step = 0;
  let collected = await collect(1);
  while (collected && step < spec.maxSteps) {
    step += 1;
    // At async level 1 the next groups are sampled from the version that this step starts from.
    const isAhead = spec.maxAsyncLevel > 0 && step < spec.maxSteps;
    const next = isAhead ? await collect(step + 1) : null;
    if (typeof spec.advantage !== 'string') throw new Error('the control knows the built-in advantages only');
    const { samples } = packSamples(collected, { advantage: spec.advantage });
    const told = samples.map((row) => ({ ...row, behaviorLogprobs: row.behaviorLogprobs! })); // its sampler reports log probabilities for all rows
    const result = await trainer.trainStep(told, {
      learningRate: learningRateAt({ step, maxSteps: spec.maxSteps, peak: spec.learningRate, schedule: spec.schedule }),
      optimizer: spec.optimizer,
      loss: spec.loss,
      temperature: spec.sampling.temperature,
      klBeta: 0,
    });
    if (!result.applied) throw new Error(`Step ${step} of the control was refused: ${result.reason}`);
    policy.update();
    if (step % 10 === 0 || spec.maxSteps < 50) say(`  control, step ${step}/${spec.maxSteps}`);
    collected = isAhead || step === spec.maxSteps ? next : await collect(step + 1);
  }
  const after = await evaluate();
  await sampler.release();
  await trainer.close();
  return { before, after, steps: step };
}

/** Weights to sample from: those in training, or the base with the adapter as of the last `update`. */
function sampledWeights({ model, adapter }: EngineOptimizer): { readonly parameters: Parameters; update(): void } {
  if (adapter === null) return { parameters: model.parameters, update: () => {} };
  const baseDigest = model.parameters.digest();
  const policy: { parameters: Parameters; update(): void } = {
    parameters: model.parameters,
    update: () => void (policy.parameters = mergeAdapter(model.parameters, adapter, baseDigest)),
  };
  return policy;
}

/** Every reward of the round goes to some rollout of the round, whichever. */
export function shuffleRewards(groups: readonly ScoredGroup[], ...key: readonly number[]): ScoredGroup[] {
  const rewards = groups.flatMap(rewardsOf);
  const random = randomStream('shuffled rewards', ...key, groups[0]?.ordinal ?? 0);
  for (let i = rewards.length - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    [rewards[i], rewards[j]] = [rewards[j]!, rewards[i]!];
  }
  return groups.map((group) => ({
    ...group,
    rollouts: group.rollouts.map((rollout) =>
      rollout.reward === null ? rollout : { ...rollout, reward: rewards.pop()! },
    ),
  }));
}

function rewardsOf({ rollouts }: ScoredGroup): number[] {
  return rollouts.flatMap(({ reward }) => reward ?? []);
}

/** The first of them is the run's. A control says that nothing moves: of 128 examples tried once, chance alone moves the mean by 0.05. */
const triesOfHeldOut = 8;

/** Rollouts and evaluations with the random numbers that a run of this name would use. */
async function openPlayers(options: {
  spec: RunSpec;
  weights: string;
  policy: { readonly parameters: Parameters };
  sampler: Sampler;
  environment: Environment;
}) {
  const { spec, weights, policy: sampled, sampler, environment } = options;
  const tokenizer = await loadTokenizer(weights);
  const { config } = sampler;
  const inference: Pick<Inference, 'sample'> = {
    sample: async ({ promptTokenIds, maxTokens, temperature, seed }) => {
      const request = { promptTokenIds, maxTokens, temperature, seed, stopTokenIds: config.endTokenIds };
      return (await sampler.generate(sampled.parameters, [request]))[0]!;
    },
  };
  // There is no server that would ask which version is meant: the trainer's own weights are.
  const served = { version: { step: 0 } } as ServedPolicy;
  const playWith = async (
    example: Example,
    place: { group: number; index: number },
    seedOfTurn: (turn: number | string) => number,
  ): Promise<ScoredRollout> => {
    const policy = samplePolicy({ inference, tokenizer, served, sampling: spec.sampling }, seedOfTurn);
    const record = await environment.rollout(example, policy);
    return scoreRollout(environment, example, { ...place, exampleId: example.id, ...record });
  };
  const play = (example: Example, group: number, index: number): Promise<ScoredRollout> =>
    playWith(example, { group, index }, (turn) => turnSeed(spec.seed, 'main', group, index, turn));
  const evaluate = async (): Promise<Score> => {
    const entry = spec.eval!.environments[0]!;
    const rollouts = await Promise.all(
      Array.from({ length: entry.numExamples * triesOfHeldOut }, (_, i) => {
        const [id, index] = [Math.floor(i / triesOfHeldOut), i % triesOfHeldOut];
        return playWith(environment.evalDataset.at(id), { group: 0, index }, (turn) =>
          turnSeed('eval', spec.seed, entry.name, id, index, turn),
        );
      }),
    );
    return {
      reward: mean(rollouts.map(({ reward }) => reward ?? 0)),
      exact: mean(rollouts.map(({ metrics }) => metrics['exact_match'] ?? 0)),
    };
  };
  return { play, evaluate };
}
