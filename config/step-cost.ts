import { samplesOn } from './gpu-settings.ts';
import type { ModelCounts } from './run-plan.ts';
import type { RunSpec } from './run-spec.ts';

/**
 * Speed of one processor thread in 32-bit floats, as measured for the embedded engine's matrices: within a factor of
 * three.
 */
const perThreadPerSecond = 3e10;
/**
 * Operations per parameter and token: sampled; trained; and trained with adapters, which need no gradients of the
 * weights.
 */
const operations = { sampled: 2, trained: 6, adapted: 4 };
/** Quicker steps need no warning. */
const toldFromSeconds = 120;
/** A longer step is unintended: even a third of it is over an hour. */
const refusedFromSeconds = 4 * 3600;

/** Turns of the policy in a rollout, by environment; 1 by default. */
export type TurnsOf = ReadonlyMap<string, number>;

interface StepCost {
  readonly seconds: number;
  /** Description for people, with its parts. */
  readonly says: string;
}

/**
 * Duration of a step on this machine's processor, as far as it computes there; 0 seconds if all of it is computed
 * elsewhere.
 */
function stepCost(spec: RunSpec, { parameterCount, adapterCount }: ModelCounts, turns: TurnsOf): StepCost {
  const { trainer, batchSize, oversamplingFactor, data } = spec;
  const answers = data ? data.batchSize * data.seqLen : batchSize * tokensOfRollout(spec, turns);
  const each = adapterCount === null ? operations.trained : operations.adapted;
  const trains = 'provider' in trainer && trainer.provider === 'cpu' ? (each * answers) / trainer.threads : 0;
  const isHere = samplesOn(spec) === 'cpu';
  const samples = isHere && !data ? operations.sampled * answers * oversamplingFactor : 0;
  const seconds = spec.maxSteps === 0 ? 0 : (parameterCount * (trains + samples)) / perThreadPerSecond;
  const parts = [trains > 0 ? 'training' : null, samples > 0 ? 'sampling' : null].filter((part) => part !== null);
  const most = Math.max(1, ...turns.values());
  const size = data
    ? `${data.batchSize} sequences of ${data.seqLen}`
    : `${batchSize} rollouts of ${most === 1 ? '' : `up to ${most} turns of `}${spec.sampling.maxTokens}`;
  const says = `${parts.join(' and ')} on this machine's processor: a step may take about ${duration(seconds)}, where ${data ? 'sequences are full' : 'answers are as long as they may be'} (${size} tokens, ${millions(parameterCount)} parameters; within a factor of three${most === 1 ? '' : ', what tools answer not counted'})`;
  return { seconds, says };
}

/** Mean over environments, by weight, of the most tokens in a rollout. */
function tokensOfRollout({ environments, sampling }: RunSpec, turns: TurnsOf): number {
  const weight = environments.reduce((sum, entry) => sum + entry.weight, 0);
  if (weight === 0) return sampling.maxTokens;
  const tokens = environments.map(
    (entry) => entry.weight * (turns.get(entry.name) ?? 1) * (entry.sampling ?? sampling).maxTokens,
  );
  return tokens.reduce((sum, each) => sum + each, 0) / weight;
}

const instead = ({ data }: RunSpec): string =>
  `Smaller ${data ? '[data] seq_len' : 'max_tokens'} and batch_size, or GPUs (kind = "torch", vLLM, Tinker), make it less`;

/** Warning about slow steps on this machine's processor; null if steps are quick, or computed elsewhere. */
export function slowStepWarning(spec: RunSpec, counts: ModelCounts, turns: TurnsOf = new Map()): string | null {
  const { seconds, says } = stepCost(spec, counts, turns);
  if (seconds < toldFromSeconds) return null;
  return `${says}. ${instead(spec)}; \`ratchet train FILE --dry-run\` says what memory it takes`;
}

/** Refusal of a run whose steps take hours, unless confirmed; null if they do not. */
export function slowStepRefusal(spec: RunSpec, counts: ModelCounts, turns: TurnsOf = new Map()): string | null {
  const { seconds, says } = stepCost(spec, counts, turns);
  return seconds < refusedFromSeconds ? null : `${says}. ${instead(spec)}.`;
}

function duration(seconds: number): string {
  if (seconds < 90 * 60) return `${Math.round(seconds / 60)} minutes`;
  if (seconds < 48 * 3600) return `${Math.round(seconds / 3600)} hours`;
  return `${Math.round(seconds / 86_400)} days`;
}

function millions(count: number): string {
  return `${Math.round(count / 1e6)} million`;
}
