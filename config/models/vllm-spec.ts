import { z } from 'zod';

/** A vLLM server as a run file describes it: how one is started, and how weights reach it. */

/** Route by which a server receives full weights. */
export const weightRoutes = ['auto', 'reload_weights', 'update_weights'] as const;

export const VllmSpec = z.strictObject({
  /** The Python that has vLLM, or the program `vllm`; null = found on this machine. */
  program: z.string().min(1).nullable(),
  /** null = the default port, or another if it is taken. */
  port: z.int().min(1).max(65_535).nullable(),
  /** Address to listen on. Anything but loopback needs a key. */
  host: z.string().min(1),
  /** Which GPUs it sees (CUDA_VISIBLE_DEVICES); null = all of them. */
  gpuIds: z.array(z.int().min(0)).nullable(),
  /** Further arguments, in vLLM's words with underscores: `{ max_model_len: 4096, enforce_eager: true }`. */
  args: z.record(z.string(), z.json()),
  /** LoRA rank of the run; null = it trains all weights, which reach the server whole. */
  loraRank: z.int().positive().nullable(),
  /** Whether v0 is the server's initial model: neither a warm-up nor a preset's seed made another one. */
  servesBase: z.boolean(),
  /** `auto` = decided by the server's abilities. */
  weights: z.enum(weightRoutes),
  /**
   * Address of a `ratchet weights-agent` beside the servers; null = they read the run's folder by the same path as the
   * workers.
   */
  weightsAgent: z.url().nullable(),
});
export type VllmSpec = z.infer<typeof VllmSpec>;

/** Arguments of vLLM that Ratchet sets itself, with advice. Address and adapters may also be given there. */
export const vllmArgumentsKept: Readonly<Record<string, string>> = {
  api_key: 'api_key_var = "NAME" in [inference]: a key is named, never written',
  logprobs_mode: 'nothing: training needs processed_logprobs, which Ratchet asks for',
  lora_modules: 'nothing: adapters are loaded while the server runs',
  served_model_name: 'nothing: versions have names of their own',
};

/** The ranks that vLLM has kernels for (`--max-lora-rank`); as of vLLM 0.32. */
const loraRanks = [1, 8, 16, 32, 64, 128, 256, 320, 512];

/** Adapters that one batch may mix; the server keeps more in memory. */
const adaptersAtOnce = 4;
const adaptersAtHand = 8;

/** The name under which a server that Ratchet starts has the model it was started with. */
const vllmBaseName = 'base';

/**
 * The arguments of `python -m vllm.entrypoints.openai.api_server`, and of `vllm serve` after its model: the file's, and
 * those that training needs. The key is passed in the environment (VLLM_API_KEY).
 */
export function vllmArguments(spec: VllmSpec, port: number): string[] {
  const { args, loraRank, host } = spec;
  const defaults: Record<string, unknown> =
    loraRank === null
      ? {}
      : { max_loras: adaptersAtOnce, max_cpu_loras: Math.max(adaptersAtHand, numberOf(args['max_loras'])) };
  const ours: Record<string, unknown> = {
    served_model_name: vllmBaseName,
    host,
    port,
    logprobs_mode: 'processed_logprobs',
    ...(loraRank === null
      ? {}
      : { enable_lora: true, max_lora_rank: Math.max(rankFor(loraRank), numberOf(args['max_lora_rank'])) }),
  };
  return Object.entries({ ...defaults, ...args, ...ours }).flatMap(([name, value]) => argument(name, value));
}

/** Whether full weights must reach the running server, for which it needs its development routes. */
export function needsFullWeights({ loraRank, servesBase }: Pick<VllmSpec, 'loraRank' | 'servesBase'>): boolean {
  return loraRank === null || !servesBase;
}

function rankFor(rank: number): number {
  return loraRanks.find((one) => one >= rank) ?? rank;
}

function numberOf(value: unknown): number {
  return typeof value === 'number' ? value : 0;
}

/** argparse's form: switches have a `--no-` variant, lists are repeated behind the name, tables are JSON. */
function argument(name: string, value: unknown): string[] {
  const flag = `--${name.replaceAll('_', '-')}`;
  if (value === null) return [];
  if (value === true) return [flag];
  if (value === false) return [`--no-${name.replaceAll('_', '-')}`];
  if (Array.isArray(value)) return [flag, ...value.map(asText)];
  return [flag, asText(value)];
}

function asText(value: unknown): string {
  return typeof value === 'string' ? value : JSON.stringify(value);
}
