import type { ModelCounts } from './run-plan.ts';
import type { RunSpec } from './run-spec.ts';

/** What one thread of a processor computes in 32-bit floats, as the embedded engine's matrices reach it: within a factor of three. */
const perThreadPerSecond = 3e10;
/** Operations for each parameter and token: sampled; and trained, where adapters need no gradients of the weights. */
const operations = { sampled: 2, trained: 6, adapted: 4 };
/** Quicker steps speak for themselves. */
const toldFromSeconds = 120;

/** Said before a run whose steps take long on this machine's processor; null where a step is quick, or computed elsewhere. */
export function slowStepWarning(spec: RunSpec, { parameterCount, adapterCount }: ModelCounts): string | null {
  const { trainer, inference, batchSize, oversamplingFactor, sampling, data } = spec;
  const answers = data ? data.batchSize * data.seqLen : batchSize * sampling.maxTokens;
  const each = adapterCount === null ? operations.trained : operations.adapted;
  const trains = trainer.kind === 'onnx' && trainer.provider === 'cpu' ? (each * answers) / trainer.threads : 0;
  const isHere = inference.kind === 'embedded' && inference.provider === 'cpu' && inference.url === null;
  const samples = isHere && !data ? operations.sampled * answers * oversamplingFactor : 0;
  const seconds = (parameterCount * (trains + samples)) / perThreadPerSecond;
  if (spec.maxSteps === 0 || seconds < toldFromSeconds) return null;
  const parts = [trains > 0 ? 'training' : null, samples > 0 ? 'sampling' : null].filter((part) => part !== null);
  return `${parts.join(' and ')} on this machine's processor: a step may take about ${duration(seconds)}, where ${data ? 'sequences are full' : 'answers are as long as they may be'} (${data ? `${data.batchSize} sequences of ${data.seqLen}` : `${batchSize} rollouts of ${sampling.maxTokens}`} tokens, ${millions(parameterCount)} parameters; within a factor of three). Smaller ${data ? '[data] seq_len' : 'max_tokens'} and batch_size, or a GPU (provider = "cuda", vLLM, Tinker), make it less; \`ratchet train FILE --dry-run\` says what memory it takes`;
}

function duration(seconds: number): string {
  if (seconds < 90 * 60) return `${Math.round(seconds / 60)} minutes`;
  if (seconds < 48 * 3600) return `${Math.round(seconds / 3600)} hours`;
  return `${Math.round(seconds / 86_400)} days`;
}

function millions(count: number): string {
  return `${Math.round(count / 1e6)} million`;
}
